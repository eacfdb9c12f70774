"""`current_job.transaction()`: what a job writes and its end are committed together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import NetworkTimeout

from recruiter import JobFailed, Recruiter, RetryManyTimes, current_job
from recruiter.domain.job import JobId
from recruiter.embedded import EmbeddedServer
from recruiter.errors import InvalidSession, JobEnded
from recruiter.steps.execute import HERE
from recruiter.store.codec import encode, job_document
from recruiter.store.database import Store
from recruiter.store.transactions import Transactions
from tests.samples import a_job, hold

Client = MongoClient[dict[str, Any]]


@pytest.fixture
def own(target: str) -> Iterator[Client]:
    """The application's own client."""
    with Client(target) as client:
        yield client


def counter(store: Store) -> int:
    found = store.database["counters"].find_one({"_id": "c"}) or {}
    return int(found.get("n", 0))


def increment(session: Any, by: int = 1, client: Any = None) -> None:
    database = (client or session.client).get_database(current_job.recruiter.target.database)
    database.counters.update_one({"_id": "c"}, {"$inc": {"n": by}}, upsert=True, session=session)


class TestCommitted:
    def test_jobs_that_it_enqueues_in_the_session_are_there_too(self, recruiter: Recruiter, store: Store) -> None:
        @recruiter.task
        def next_one() -> None: ...

        @recruiter.task
        def first(fails: bool) -> None:
            with current_job.transaction() as session:
                next_one.job().enqueue(session=session)
                if fails:
                    raise ValueError("no")

        first.enqueue(True)
        first.enqueue(False)
        recruiter.run_all(first)

        assert [job.task for job in store.scheduled.waiting()] == ["next_one"]

    def test_code_after_the_block_cannot_change_the_outcome(self, recruiter: Recruiter, store: Store) -> None:
        heard: list[str] = []
        recruiter.listen(lambda event: heard.append(event.name))

        @recruiter.task(retry=RetryManyTimes(3, 0))
        def count() -> None:
            with current_job.transaction() as session:
                increment(session)
            raise ValueError("too late")

        @count.after_success
        def after(_: None) -> None:
            heard.append("after_success")

        job = count.enqueue()
        reports = recruiter.run_all(count)

        assert [report.done for report in reports] == [True]
        assert job.wait(timeout=60).done
        assert counter(store) == 1
        assert "after_success" in heard
        assert "job.failed" not in heard

    def test_a_second_transaction_is_refused(self, recruiter: Recruiter, store: Store) -> None:
        refused: list[str] = []

        @recruiter.task
        def count() -> None:
            for _ in range(2):
                try:
                    with current_job.transaction() as session:
                        increment(session)
                except JobEnded as error:
                    refused.append(str(error))

        count.enqueue()
        recruiter.run(count)

        assert counter(store) == 1
        assert len(refused) == 1
        assert "has ended in its own transaction" in refused[0]


class TestRolledBack:
    def test_an_error_in_the_block_takes_everything_back(self, recruiter: Recruiter, store: Store) -> None:
        @recruiter.task
        def count() -> None:
            with current_job.transaction() as session:
                increment(session)
                raise ValueError("no")

        job = count.enqueue()
        recruiter.run(count)

        assert counter(store) == 0
        with pytest.raises(JobFailed, match="ValueError: no"):
            job.result(timeout=60)

    def test_a_conflict_runs_the_job_again_and_counts_no_attempt(self, recruiter: Recruiter, store: Store) -> None:
        runs: list[int] = []

        @recruiter.task
        def count() -> None:
            runs.append(current_job.attempt)
            with current_job.transaction() as session:
                session.client.get_database(store.target.database).counters.find_one({}, session=session)
                if len(runs) < 3:
                    store.database["counters"].update_one({"_id": "c"}, {"$inc": {"n": 10}}, upsert=True)
                increment(session)

        job = count.enqueue()
        recruiter.run(count)

        assert runs == [1, 1, 1]
        assert counter(store) == 21
        assert job.wait(timeout=60).attempts == 1

    def test_a_lost_answer_to_the_commit_is_found_in_the_archive(
        self, recruiter: Recruiter, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Given a commit that was done and whose answer was lost for good, the job runs again and finds that it has
        ended."""
        runs: list[int] = []

        @recruiter.task
        def count() -> None:
            runs.append(1)
            with current_job.transaction() as session:
                increment(session)
                if len(runs) == 1:
                    commit = ClientSession.commit_transaction

                    def lost(session: ClientSession) -> None:
                        commit(session)
                        monkeypatch.undo()
                        raise NetworkTimeout("no answer", {"errorLabels": ["TransientTransactionError"]})

                    monkeypatch.setattr(ClientSession, "commit_transaction", lost)

        job = count.enqueue()
        recruiter.run(count)

        assert len(runs) == 2
        assert counter(store) == 1
        assert job.wait(timeout=60).done


class TestLost:
    """A worker that has lost the job cannot commit its effects."""

    @pytest.fixture
    def run(self, recruiter: Recruiter, store: Store) -> Any:
        """Runs a task as the worker w1 would, which holds its job."""

        @recruiter.task(name="add")
        def add(a: int, b: int) -> None:
            before(a)
            with current_job.transaction() as session:
                increment(session)
                inside(b)

        steps: dict[str, Any] = {}

        def before(_: int) -> None:
            steps.get("before", lambda: None)()

        def inside(_: int) -> None:
            steps.get("inside", lambda: None)()

        job = a_job()
        hold(store, job)
        executor = recruiter._executor_of("w1")

        def run(**told: Any) -> tuple[JobId, Any]:
            steps.update(told)
            return job.id, executor.run(encode(job_document(job)))

        yield run
        executor.close()

    def test_handed_back_before_the_block(self, run: Any, store: Store) -> None:
        _, outcome = run(before=lambda: store.roster.hand_back("w1", [a.id for a in store.scheduled.waiting()]))

        assert b"Superseded" in outcome.document
        assert counter(store) == 0

    def test_rescheduled_between_two_blocks(self, recruiter: Recruiter, run: Any, store: Store) -> None:
        """Given a run that has its token, when its worker settles the job, then the token is worth nothing."""

        def settled() -> None:
            run_of = current_job._attempt.runner._run_of(current_job._attempt)  # type: ignore[attr-defined]
            run_of.prove()
            store.scheduled.collection.update_one({"_id": run_of.id}, {"$unset": {"token": ""}})

        _, outcome = run(before=settled)

        assert b"Superseded" in outcome.document
        assert counter(store) == 0

    def test_retired_between_its_proof_and_its_transaction(
        self, run: Any, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin_run = Transactions.begin_run

        def begun(transactions: Transactions, worker: str, id: JobId, *rest: Any) -> bool:
            answer = begin_run(transactions, worker, id, *rest)
            store.scheduled.collection.update_one({"_id": id}, {"$unset": {"token": ""}})
            return answer

        monkeypatch.setattr(Transactions, "begin_run", begun)

        _, outcome = run()

        assert b"Superseded" in outcome.document
        assert counter(store) == 0


class TestWays:
    """It works wherever jobs run."""

    def test_a_job_commits_on_an_async_client(self, recruiter: Recruiter, store: Store, target: str) -> None:
        @recruiter.task
        async def count(fails: bool) -> str:
            connected = AsyncMongoClient[dict[str, Any]](target)
            async with connected as client, current_job.atransaction(client) as session:
                counters = client.get_database(store.target.database).counters
                await counters.update_one({"_id": "c"}, {"$inc": {"n": 1}}, upsert=True, session=session)
                current_job.set_result("async")
                if fails:
                    raise ValueError("no")
            return ""

        failed, done = count.enqueue(True), count.enqueue(False)
        recruiter.run_all(count)

        assert done.result(timeout=60) == "async"
        assert not failed.wait(timeout=60).done
        assert counter(store) == 1

    def test_the_wrong_kind_of_client_is_refused(self, recruiter: Recruiter, own: Client) -> None:
        said: list[str] = []

        @recruiter.task
        async def count() -> None:
            for call in (
                lambda: current_job.atransaction(own),  # type: ignore[arg-type]
                lambda: current_job.transaction(asyncio),  # type: ignore[arg-type]
            ):
                try:
                    call()
                except InvalidSession as error:
                    said.append(str(error))

        count.enqueue()
        recruiter.run(count)

        assert "needs an AsyncMongoClient" in said[0]
        assert "needs a MongoClient" in said[1]

    def test_a_client_of_another_deployment_is_refused(self, recruiter: Recruiter, store: Store) -> None:
        with EmbeddedServer() as other, Client(other.uri) as client:

            @recruiter.task
            def count() -> None:
                with current_job.transaction(client) as session:
                    increment(session, client=client)

            job = count.enqueue()
            recruiter.run(count)

            last = job.wait(timeout=60).last_execution
            assert last is not None
            assert "is connected to" in str(last.message)
            assert client.get_database(store.target.database).counters.find_one({}) is None

    def test_an_optimistic_job_commits_its_own_transaction(self, recruiter: Recruiter, store: Store) -> None:
        @recruiter.task
        def count() -> str:
            assert current_job.worker == HERE
            with current_job.transaction() as session:
                increment(session)
                current_job.set_result("here")
            return ""

        assert count.job().here().execute().result(timeout=5) == "here"
        assert counter(store) == 1


def test_a_job_that_is_gone_is_not_made_again(recruiter: Recruiter, store: Store) -> None:
    """Given a job that somebody removed from under its worker, nothing is committed."""

    @recruiter.task
    def count() -> None:
        store.scheduled.collection.delete_one({"_id": current_job.id})
        with current_job.transaction() as session:
            increment(session)

    job = count.enqueue()
    recruiter.run(count)

    assert counter(store) == 0
    assert not job.wait(timeout=60).done
