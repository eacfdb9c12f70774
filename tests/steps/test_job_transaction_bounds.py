"""`current_job.transaction()`: blocks that can never be committed fail their attempt, and conflicts are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import DuplicateKeyError

from recruiter import Recruiter, RetryManyTimes, current_job
from recruiter.domain.job import ArchivedJob
from recruiter.embedded import EmbeddedServer
from recruiter.steps import execute
from recruiter.store.codec import encode, job_document
from recruiter.store.database import Store
from recruiter.store.outcomes import Settled
from tests.conftest import eventually
from tests.samples import a_job, hold

Client = MongoClient[dict[str, Any]]


def ended(recruiter: Recruiter, job: Any) -> ArchivedJob:
    """It runs until it has ended, and must not need more than a few runs for that."""
    recruiter.run_all(recruiter.find(job.id).task)
    found = recruiter.find(job.id)
    assert isinstance(found, ArchivedJob), recruiter.explain(job.id)
    return found


def message(job: ArchivedJob) -> str:
    assert job.last_execution is not None
    return f"{job.last_execution.exception}: {job.last_execution.message}"


@pytest.fixture
def runs() -> list[int]:
    return []


class TestCaughtInTheBlock:
    """Given an operation that fails inside the block: MongoDB has ended the transaction."""

    def test_the_attempt_fails_with_what_to_do(self, recruiter: Recruiter, store: Store, runs: list[int]) -> None:
        store.database["docs"].insert_one({"_id": 1})

        @recruiter.task(retry=RetryManyTimes(1, 0))
        def count() -> None:
            runs.append(current_job.attempt)
            with current_job.transaction() as session:
                docs = session.client.get_database(store.target.database).docs
                docs.insert_one({"_id": 2}, session=session)
                with suppress(DuplicateKeyError):
                    docs.insert_one({"_id": 1}, session=session)

        job = ended(recruiter, count.enqueue())

        assert (job.done, job.attempts, set(runs)) == (False, 2, {1, 2})
        assert "an operation inside the transaction" in message(job)
        assert "the error was caught inside the block" in message(job)
        assert "Let the error out of the block" in message(job)
        assert [each["_id"] for each in store.database["docs"].find({})] == [1]

    def test_a_caught_error_fails_the_attempt_at_the_next_operation(self, recruiter: Recruiter, store: Store) -> None:
        store.database["docs"].insert_one({"_id": 1})

        @recruiter.task
        async def count() -> None:
            connected: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(store.target.uri)
            async with connected as client, current_job.atransaction(client) as session:
                docs = client.get_database(store.target.database).docs
                try:
                    await docs.insert_one({"_id": 1}, session=session)
                except DuplicateKeyError:
                    await docs.insert_one({"_id": 2}, session=session)

        job = ended(recruiter, count.enqueue())

        assert not job.done
        assert "the error was caught inside the block" in message(job)


class TestEndedByTheJob:
    @pytest.mark.parametrize("call", ["abort_transaction", "commit_transaction", "end_session"])
    @pytest.mark.parametrize("caught", [False, True])
    def test_it_is_refused_at_once(self, recruiter: Recruiter, store: Store, call: str, caught: bool) -> None:
        @recruiter.task
        def count() -> None:
            with current_job.transaction() as session:
                session.client.get_database(store.target.database).docs.insert_one({"_id": 1}, session=session)
                try:
                    getattr(session, call)()
                except Exception:
                    if not caught:
                        raise

        job = ended(recruiter, count.enqueue())

        # then it has succeeded with its effects, or failed without them
        assert (job.done, store.database["docs"].count_documents({})) == (caught, int(caught))
        if not caught:
            assert "raise an error to roll back" in message(job)

    def test_an_async_session_that_the_job_ends_is_refused(self, recruiter: Recruiter, store: Store) -> None:
        @recruiter.task
        async def count() -> None:
            connected: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(store.target.uri)
            async with connected as client, current_job.atransaction(client) as session:
                await client.get_database(store.target.database).docs.insert_one({"_id": 1}, session=session)
                await session.abort_transaction()

        job = ended(recruiter, count.enqueue())

        assert not job.done
        assert "raise an error to roll back" in message(job)


class TestTooLong:
    @pytest.fixture
    def hasty(self) -> Iterator[Recruiter]:
        """A server that ends transactions after a second."""
        with EmbeddedServer() as server, Client(server.uri) as client:
            client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=1)
            recruiter = Recruiter(f"{server.uri.partition('?')[0].rstrip('/')}/hasty?{server.uri.partition('?')[2]}")
            recruiter.store.prepare()
            yield recruiter
            recruiter.close()

    @pytest.mark.parametrize("writes_more", [False, True])
    def test_the_attempt_fails_and_says_what_the_limit_is(
        self, hasty: Recruiter, runs: list[int], writes_more: bool
    ) -> None:
        @hasty.task(retry=RetryManyTimes(1, 0))
        def count() -> None:
            runs.append(current_job.attempt)
            with current_job.transaction() as session:
                docs = session.client.docs.docs
                docs.insert_one({"_id": 1}, session=session)
                eventually(lambda: _gone(session))
                if writes_more:
                    docs.insert_one({"_id": 2}, session=session)

        job = ended(hasty, count.enqueue())

        assert (job.done, job.attempts, runs) == (False, 2, [1, 2])
        assert "MongoDB ends a transaction after 1s" in message(job)
        assert "Keep the block short" in message(job)


def _gone(session: Any) -> bool:
    """Whether the server has ended the transaction of this session."""
    open_ones = session.client.admin.aggregate(
        [{"$currentOp": {"idleSessions": True}}, {"$match": {"transaction": {"$exists": True}}}]
    )
    return session.session_id["id"] not in [each["lsid"]["id"] for each in open_ones]


class TestUnreachable:
    def test_a_client_that_does_not_find_its_mongodb_fails_the_attempt(
        self, recruiter: Recruiter, runs: list[int]
    ) -> None:
        with Client("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100") as client:

            @recruiter.task(retry=RetryManyTimes(1, 0))
            def count() -> None:
                runs.append(current_job.attempt)
                with current_job.transaction(client):
                    raise AssertionError

            job = ended(recruiter, count.enqueue())

        assert (job.done, job.attempts, runs) == (False, 2, [1, 2])
        assert "does not find its MongoDB" in message(job)
        assert "the same address as the recruiter" in message(job)


class TestConflicts:
    @pytest.fixture(autouse=True)
    def without_patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(execute, "_REPEATED", 0.0)
        monkeypatch.setattr(execute, "_REPEATED_LATER", 0.0)

    @pytest.fixture
    def unlucky(self, recruiter: Recruiter, store: Store, runs: list[int]) -> Any:
        """A task whose transaction meets another one, always."""
        store.database["docs"].insert_one({"_id": 1, "n": 0})

        @recruiter.task
        def count() -> None:
            runs.append(current_job.attempt)
            with current_job.transaction() as session:
                docs = session.client.get_database(store.target.database).docs
                docs.find_one({}, session=session)
                store.database["docs"].update_one({"_id": 1}, {"$inc": {"n": 10}}, upsert=True)
                docs.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True, session=session)

        return count

    def test_it_does_not_go_on_for_ever(self, recruiter: Recruiter, unlucky: Any, runs: list[int]) -> None:
        job = ended(recruiter, unlucky.enqueue())

        assert (job.done, job.attempts, job.conflicts) == (False, 1, 10)
        assert "put off for that 10 times" in message(job)
        assert set(runs) == {1}

    def test_an_at_most_once_job_says_that_it_is_not_run_again(
        self, recruiter: Recruiter, unlucky: Any, runs: list[int]
    ) -> None:
        job = ended(recruiter, unlucky.job().at_most_once().enqueue())

        assert (job.done, runs) == (False, [1])
        assert "met another one" in message(job)
        assert "is not run again" in message(job)


class TestCaughtAroundTheBlock:
    def test_a_job_that_catches_everything_runs_again(
        self, recruiter: Recruiter, store: Store, runs: list[int]
    ) -> None:
        @recruiter.task
        def count() -> None:
            runs.append(current_job.attempt)
            try:
                with current_job.transaction() as session:
                    docs = session.client.get_database(store.target.database).docs
                    docs.find_one({}, session=session)
                    if len(runs) == 1:
                        store.database["docs"].update_one({"_id": 1}, {"$inc": {"n": 10}}, upsert=True)
                    docs.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True, session=session)
            except BaseException:
                pass

        job = ended(recruiter, count.enqueue())

        assert (job.done, job.attempts, runs) == (True, 1, [1, 1])
        assert (store.database["docs"].find_one({}) or {})["n"] == 11

    def test_a_job_that_catches_why_it_could_not_commit_fails(self, recruiter: Recruiter, store: Store) -> None:
        store.database["docs"].insert_one({"_id": 1})

        @recruiter.task
        def count() -> None:
            try:
                with current_job.transaction() as session, suppress(DuplicateKeyError):
                    session.client.get_database(store.target.database).docs.insert_one({"_id": 1}, session=session)
            except BaseException:
                pass

        job = ended(recruiter, count.enqueue())

        assert not job.done
        assert "the error was caught inside the block" in message(job)


def test_a_second_transaction_after_the_commit_is_reported(recruiter: Recruiter, store: Store) -> None:
    """Given a job that begins a second transaction after the first, then its worker is told that it could not."""

    @recruiter.task(name="add")
    def add(a: int, b: int) -> None:
        for _ in range(2):
            with current_job.transaction():
                pass

    job = a_job()
    hold(store, job)
    executor = recruiter._executor_of("w1")

    outcome = executor.run(encode(job_document(job)))

    executor.close()
    assert isinstance(outcome, Settled)
    assert "JobEnded after its transaction" in outcome.event.notes[0]
