"""Coroutines that enqueue: one thread writes for all of them, and each hears what became of its own job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.errors import InvalidArguments, InvalidJob, JobExists, JobTooLarge, StoreUnreachable
from recruiter.steps import enqueue
from recruiter.steps.enqueue import Enqueuer
from recruiter.store import database
from recruiter.store.codec import LARGEST_JOB, encode_job
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.commands import Recorder, recorded
from tests.conftest import eventually
from tests.samples import a_job, document


class Held:
    """Writes that are held up until they may go on."""

    def __init__(self, insert: Callable[..., dict[int, str]]) -> None:
        self._insert = insert
        self.writing = threading.Semaphore(0)
        self.may_go = threading.Semaphore(0)

    def __call__(self, *args: Any) -> dict[int, str]:
        self.writing.release()
        assert self.may_go.acquire(timeout=20)
        return self._insert(*args)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.writing.acquire, timeout=20)

    def go_on(self) -> None:
        for _ in range(10):
            self.may_go.release()


@pytest.fixture
def held(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(store.scheduled.insert)
    monkeypatch.setattr(store.scheduled, "insert", held)
    yield held
    held.go_on()


def put(enqueuer: Enqueuer, id: Any, within: float | None = None, **fields: Any) -> Awaitable[None]:
    job = a_job(id, **fields)
    return enqueuer.aencoded(job.id, job.task, encode_job(job), within)


def note(text: str) -> str:
    return text


def pool_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("recruiter_")}


@pytest.mark.parametrize("how", ["the task", "the builder"])
def test_coroutines_share_their_writes_and_need_no_threads_of_their_own(recruiter: Recruiter, how: str) -> None:
    """Given a recruiter that is connected, when 100 coroutines enqueue one job after another, then no other thread than
    the writing one works for them, and each job is durable when its call returns."""
    task = recruiter.task(note)
    assert recruiter.store is not None
    before, missing = pool_threads(), []

    async def caller(number: int) -> None:
        for each in range(5):
            text = f"{number} {each}"
            await (task.aenqueue(text) if how == "the task" else task.job(text).in_group("mail").aenqueue())
            if not recruiter.store.scheduled.collection.count_documents({"args.text": text}, limit=1):
                missing.append(text)

    async def main() -> None:
        await asyncio.gather(*map(caller, range(100)))

    asyncio.run(main())

    assert missing == []
    assert recruiter.store.scheduled.collection.count_documents({}) == 500
    assert pool_threads() == before


def test_what_has_gathered_goes_in_one_write(target: str, store: Store) -> None:
    assert store.database.name in target
    recorder = Recorder()
    watched = recorded(target, recorder)
    enqueuer = Enqueuer(watched)
    assert watched.scheduled.lanes() == []

    async def main() -> None:
        with recorder.only_these():
            await asyncio.gather(*(put(enqueuer, number) for number in range(200)))

    asyncio.run(main())
    enqueuer.close()
    watched.close()

    inserts = recorder.named("insert")
    assert len(inserts) < 20
    assert sum(len(insert["documents"]) for insert in inserts) == 200
    assert all(insert["writeConcern"] == {"w": "majority", "j": True} for insert in inserts)


def test_threads_and_loops_enqueue_together(store: Store) -> None:
    enqueuer = Enqueuer(store)

    async def many(name: str) -> None:
        await asyncio.gather(*(put(enqueuer, f"{name} {number}") for number in range(50)))

    def one_by_one(name: str) -> None:
        for number in range(50):
            enqueuer.one(a_job(f"{name} {number}"))

    loops = [threading.Thread(target=lambda name=name: asyncio.run(many(name))) for name in ("a", "b")]
    threads = [threading.Thread(target=one_by_one, args=(name,)) for name in ("c", "d")]
    for each in (*loops, *threads):
        each.start()
    for each in (*loops, *threads):
        each.join(30)

    assert store.scheduled.collection.count_documents({}) == 200


def test_a_refusal_is_heard_by_the_one_it_concerns(store: Store) -> None:
    enqueuer = Enqueuer(store)
    enqueuer.one(a_job("taken", args={"a": 1}))

    async def main() -> list[Any]:
        return await asyncio.gather(*(put(enqueuer, id) for id in ("x", "taken", "y")), return_exceptions=True)

    answers = asyncio.run(main())

    assert [type(answer) for answer in answers] == [type(None), JobExists, type(None)]
    assert "'taken'" in str(answers[1])
    assert document(store, "taken")["args"] == {"a": 1}


def test_what_cannot_be_a_job_is_refused_as_in_a_thread(recruiter: Recruiter) -> None:
    task = recruiter.task(note)
    assert recruiter.store is not None

    async def main() -> None:
        with pytest.raises(JobTooLarge, match="'note'"):
            await task.aenqueue("x" * LARGEST_JOB)
        with pytest.raises(JobTooLarge, match="'note'"):
            await task.job("x" * LARGEST_JOB).aenqueue()
        with pytest.raises(InvalidArguments):
            await task.aenqueue("x", "y")  # type: ignore[call-arg]
        with pytest.raises(InvalidJob, match="here"):
            await task.job("x").here().aenqueue()

    asyncio.run(main())

    assert recruiter.store.scheduled.collection.count_documents({}) == 0


def test_when_the_time_is_over_it_is_said_that_the_job_may_be_stored(store: Store, held: Held) -> None:
    enqueuer = Enqueuer(store)

    async def main() -> None:
        with pytest.raises(StoreUnreachable, match=r"within 0.05 s; it is not known whether job 'late' is stored"):
            await put(enqueuer, "late", within=0.05)

    asyncio.run(main())

    held.go_on()
    eventually(lambda: store.scheduled.exists("late"))  # it was on its way


def test_the_builder_says_how_long_to_wait(recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch) -> None:
    task = recruiter.task(note)
    held = Held(recruiter.store.scheduled.insert)
    monkeypatch.setattr(recruiter.store.scheduled, "insert", held)

    async def main() -> None:
        with pytest.raises(StoreUnreachable, match="it is not known whether job"):
            await task.job("x").aenqueue(server_timeout="50ms")

    asyncio.run(main())
    held.go_on()


def test_when_no_server_answers_every_coroutine_hears_of_it() -> None:
    nowhere = Store(Target.parse("127.0.0.1:1"), patience=0.1)
    enqueuer = Enqueuer(nowhere)

    async def main() -> list[Any]:
        return await asyncio.gather(*(put(enqueuer, number) for number in range(4)), return_exceptions=True)

    answers = asyncio.run(main())
    enqueuer.close()
    nowhere.close()

    assert [type(answer) for answer in answers] == [StoreUnreachable] * 4
    assert ["it is not known whether job" in str(answer) for answer in answers] == [True] * 4


def test_cancelled_before_it_is_on_its_way_it_is_not_stored(store: Store, held: Held) -> None:
    """Given one job on its way and two behind it, when one of these is cancelled, then the others are stored."""
    enqueuer = Enqueuer(store)

    async def main() -> None:
        first = asyncio.ensure_future(put(enqueuer, "first"))
        await held.begun()
        gone, other = (asyncio.ensure_future(put(enqueuer, id)) for id in ("gone", "other"))
        await asyncio.sleep(0)  # both have left their calls
        gone.cancel()
        await asyncio.wait([gone])
        held.go_on()
        await asyncio.gather(first, other)
        assert gone.cancelled()

    asyncio.run(main())

    assert store.scheduled.which_exist(["first", "gone", "other"]) == {"first", "other"}


def test_cancelled_on_its_way_it_is_stored_and_others_go_on(store: Store, held: Held) -> None:
    """Given a loop that has ended before the answer comes, then the writing thread answers the next one."""
    enqueuer = Enqueuer(store)

    async def leave() -> None:
        going = asyncio.ensure_future(put(enqueuer, "gone"))
        await held.begun()
        going.cancel()

    asyncio.run(leave())
    held.go_on()
    asyncio.run(asyncio.wait_for(put(enqueuer, "next"), 20))

    assert store.scheduled.which_exist(["gone", "next"]) == {"gone", "next"}


def test_somebody_is_told_when_mongodb_is_silent(store: Store, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "SILENCE", 0.02)
    told: list[str] = []
    enqueuer = Enqueuer(store, told.append)

    async def main() -> None:
        waiting = asyncio.ensure_future(put(enqueuer, "x"))
        await asyncio.to_thread(eventually, lambda: told)
        held.go_on()
        await waiting

    asyncio.run(main())

    assert told == ["job 'x' is not stored yet"]


def test_the_code_of_a_codec_does_not_run_in_the_loop(target: str) -> None:
    """Given a codec, which is code of the application and may take long, then jobs are sealed in other threads."""
    sealed_in: list[threading.Thread] = []

    class Codec:
        name = "plain"

        def encode(self, payload: bytes, context: bytes) -> bytes:
            del context
            sealed_in.append(threading.current_thread())
            return payload

        def decode(self, payload: bytes, context: bytes) -> bytes:
            del context
            return payload

    with Recruiter(target, codec=Codec()) as recruiter:
        task = recruiter.task(note)
        assert recruiter.store is not None
        asyncio.run(task.aenqueue("x"))

    assert sealed_in
    assert threading.current_thread() not in sealed_in


def test_the_first_use_connects_in_a_thread(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_in: list[threading.Thread] = []
    opened = database.opened

    def noting(*args: Any, **kwargs: Any) -> Store:
        opened_in.append(threading.current_thread())
        return opened(*args, **kwargs)

    monkeypatch.setattr(database, "opened", noting)
    with Recruiter(target) as recruiter:
        asyncio.run(recruiter.task(note).aenqueue("x"))

    assert opened_in
    assert threading.current_thread() not in opened_in
