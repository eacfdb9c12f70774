"""A job can be part of the caller's own transaction, on the caller's own connection, plain or async."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession

from recruiter import Recruiter, Task
from recruiter.embedded import EmbeddedServer
from recruiter.errors import InvalidSession, JobExists, JobNotFound
from tests.commands import Recorder
from tests.samples import Parcel

Client = MongoClient[dict[str, Any]]
Note = Task[[str], str, str]


def note(text: str) -> str:
    return text


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def own(target: str, recorder: Recorder) -> Iterator[Client]:
    with Client(target, w=1, event_listeners=[recorder]) as client:
        yield client


@pytest.fixture
def task(recruiter: Recruiter) -> Note:
    return recruiter.task(note)


Plain = Callable[[Recruiter, Note, ClientSession], Any]
PLAIN: dict[str, Plain] = {
    "enqueue": lambda _, task, s: task.enqueue("x", session=s),  # type: ignore[call-arg]
    "create": lambda _, task, s: task.create("x", session=s),  # type: ignore[call-arg]
    "enqueue_many": lambda _, task, s: task.enqueue_many([("x",)], session=s)[0],
    "enqueue_many with ids": lambda _, task, s: task.enqueue_many([("x",)], ids=["own"], session=s)[0],
    "create_many": lambda _, task, s: task.create_many([("x",)], session=s)[0],
    "builder": lambda _, task, s: task.job("x").in_group("g").enqueue(session=s),
    "builder execute": lambda _, task, s: task.job("x").execute(session=s),
    "builder with an id": lambda _, task, s: task.job("x").with_id("own").enqueue(session=s),
    "builder create": lambda _, task, s: task.job("x").create(session=s),
    "by name": lambda recruiter, _, s: recruiter.create("note", {"text": "x"}, session=s),
    "workable": lambda recruiter, _, s: Parcel(1).as_job_of(recruiter).execute(session=s),
    "workable's method": lambda recruiter, _, s: Parcel(1).as_job_of(recruiter).weigh(session=s),
}

Awaited = Callable[[Recruiter, Note, AsyncClientSession], Awaitable[Any]]
AWAITED: dict[str, Awaited] = {
    "aenqueue": lambda _, task, s: task.aenqueue("x", session=s),  # type: ignore[call-arg]
    "acreate": lambda _, task, s: task.acreate("x", session=s),  # type: ignore[call-arg]
    "aenqueue_many": lambda _, task, s: _first(task.aenqueue_many([("x",)], session=s)),
    "aenqueue_many with ids": lambda _, task, s: _first(task.aenqueue_many([("x",)], ids=["own"], session=s)),
    "acreate_many": lambda _, task, s: _first(task.acreate_many([("x",)], session=s)),
    "builder": lambda _, task, s: task.job("x").in_group("g").aenqueue(session=s),
    "builder aexecute": lambda _, task, s: task.job("x").aexecute(session=s),
    "builder with an id": lambda _, task, s: task.job("x").with_id("own").aenqueue(session=s),
    "builder acreate": lambda _, task, s: task.job("x").acreate(session=s),
    "by name": lambda recruiter, _, s: recruiter.acreate("note", {"text": "x"}, session=s),
    "workable": lambda recruiter, _, s: Parcel(1).as_job_of(recruiter).aexecute(session=s),
}


async def _first(many: Awaitable[list[Any]]) -> Any:
    return (await many)[0]


@asynccontextmanager
async def async_session(target: str) -> AsyncIterator[AsyncClientSession]:
    async with AsyncMongoClient[dict[str, Any]](target) as client, client.start_session() as session:
        yield session


class TestPlain:
    @pytest.mark.parametrize("how", PLAIN)
    def test_committed_it_is_there_and_before_nobody_sees_it(
        self, recruiter: Recruiter, task: Note, own: Client, how: str
    ) -> None:
        with own.start_session() as session:
            session.start_transaction()
            handle = PLAIN[how](recruiter, task, session)
            assert recruiter.store.scheduled.collection.count_documents({}) == 0
            session.commit_transaction()

        assert recruiter.find(handle.id).state == "waiting"

    @pytest.mark.parametrize("how", PLAIN)
    def test_aborted_it_never_was(self, recruiter: Recruiter, task: Note, own: Client, how: str) -> None:
        with own.start_session() as session:
            session.start_transaction()
            handle = PLAIN[how](recruiter, task, session)
            session.abort_transaction()

        with pytest.raises(JobNotFound):
            recruiter.find(handle.id)
        assert recruiter.store.creations.count_documents({}) == 0

    def test_without_a_transaction_the_write_is_still_durable(
        self, task: Note, own: Client, recorder: Recorder
    ) -> None:
        """Given a session of a client with w=1 and no transaction, then the job is written with majority."""
        with own.start_session() as session, recorder.only_these():
            task.job("x").enqueue(session=session)

        (insert,) = recorder.named("insert")
        assert insert.get("writeConcern") == {"w": "majority", "j": True}

    def test_an_id_of_ones_own_needs_a_transaction(self, task: Note, own: Client) -> None:
        """It is compared with the archive, and that means something only in a transaction."""
        with own.start_session() as session:
            with pytest.raises(InvalidSession, match="start_transaction"):
                task.job("x").with_id("own").enqueue(session=session)
            with pytest.raises(InvalidSession, match="start_transaction"):
                task.job("x").create(session=session)

    def test_an_id_that_is_taken_does_not_end_the_transaction(
        self, recruiter: Recruiter, task: Note, own: Client
    ) -> None:
        task.job("x").with_id("waits").enqueue()
        task.job("x").with_id("ended").here().execute()
        with own.start_session() as session, session.start_transaction():
            for id in ("waits", "ended"):
                with pytest.raises(JobExists, match=id):
                    task.job("y").with_id(id).enqueue(session=session)
            task.job("y").with_id("fresh").enqueue(session=session)

        assert recruiter.find("fresh").args == {"text": "y"}
        assert recruiter.find("waits").args == {"text": "x"}

    def test_a_conflict_is_tried_again_by_with_transaction(self, recruiter: Recruiter, task: Note, own: Client) -> None:
        """Given another transaction that holds the same id, when it lets go, then the caller's is run again."""
        runs: list[int] = []
        with own.start_session() as other:
            other.start_transaction()
            task.job("theirs").with_id("same").enqueue(session=other)

            def write(session: ClientSession) -> None:
                runs.append(1)
                if len(runs) == 2:
                    other.abort_transaction()
                task.job("mine").with_id("same").enqueue(session=session)

            with own.start_session() as session:
                session.with_transaction(write)

        assert len(runs) >= 2
        assert recruiter.find("same").args == {"text": "mine"}


class TestAsync:
    @pytest.mark.parametrize("how", AWAITED)
    def test_committed_it_is_there_and_before_nobody_sees_it(
        self, recruiter: Recruiter, task: Note, target: str, how: str
    ) -> None:
        async def use() -> Any:
            async with async_session(target) as session:
                await session.start_transaction()
                handle = await AWAITED[how](recruiter, task, session)
                assert recruiter.store.scheduled.collection.count_documents({}) == 0
                await session.commit_transaction()
            return handle.id

        assert recruiter.find(asyncio.run(use())).state == "waiting"

    @pytest.mark.parametrize("how", PLAIN)
    def test_a_plain_call_refuses_it_and_says_which_call_to_use(
        self, recruiter: Recruiter, task: Note, target: str, how: str
    ) -> None:
        async def use() -> None:
            async with async_session(target) as session:
                await session.start_transaction()
                with pytest.raises(InvalidSession, match="await"):
                    PLAIN[how](recruiter, task, session)  # type: ignore[arg-type]

        asyncio.run(use())

        assert recruiter.store.scheduled.collection.count_documents({}) == 0


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    with EmbeddedServer() as server:
        yield server.uri


class TestAnotherDeployment:
    def test_a_session_of_another_server_is_refused(self, recruiter: Recruiter, task: Note, elsewhere: str) -> None:
        with Client(elsewhere) as client, client.start_session() as session:
            with session.start_transaction(), pytest.raises(InvalidSession, match="no worker would look there"):
                task.job("x").enqueue(session=session)
            assert client.get_database(recruiter.store.target.database).list_collection_names() == []

        assert recruiter.store.scheduled.collection.count_documents({}) == 0

    def test_clients_are_compared_once(self, task: Note, own: Client, recorder: Recorder) -> None:
        with own.start_session() as session, session.start_transaction():
            task.job("x").enqueue(session=session)
            with recorder.only_these():
                task.job("y").enqueue(session=session)
                assert [next(iter(command)) for command in recorder.commands] == ["insert"]
