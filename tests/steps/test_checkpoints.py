"""`once`, `sleep` and `wait_for`: what a job has done survives its runs, and it waits without a slot."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

from recruiter import Recruiter, RetryManyTimes, current_job
from recruiter.errors import InvalidArguments, InvalidName, UnsupportedValue
from recruiter.store.codec import encode, job_document
from recruiter.store.database import Store
from recruiter.store.outcomes import ToArchive
from recruiter.testing import Sandbox
from tests.samples import a_job, hold

T0 = datetime(2030, 1, 1, tzinfo=UTC)


class TestOnce:
    def test_a_result_that_cannot_be_stored_is_a_typed_error_and_not_a_second_call(self, recruiter: Recruiter) -> None:
        calls: list[int] = []
        errors: list[str] = []

        def unstorable() -> object:
            calls.append(1)
            return object()

        @recruiter.task(retry=RetryManyTimes(2, 0))
        def order() -> None:
            try:
                current_job.once("thing", unstorable)
            except UnsupportedValue as error:
                errors.append(str(error))
                raise

        order.enqueue()
        recruiter.run_all(order)

        assert len(calls) == 1
        assert len(errors) == 3
        assert "'thing' of job" in errors[0]
        assert "is done, but its result could not be kept" in errors[0]

    def test_a_worker_that_lost_the_job_does_nothing_more(self, recruiter: Recruiter, store: Store) -> None:
        calls: list[int] = []

        @recruiter.task(name="add")
        def add(a: int, b: int) -> None:
            store.roster.leave("w1")
            current_job.once("charge", calls.append, 1)

        job = a_job()
        hold(store, job)
        outcome = recruiter._executor_of("w1").run(encode(job_document(job)))

        assert isinstance(outcome, ToArchive)
        assert b"Superseded" in outcome.document
        assert calls == []

    @pytest.mark.parametrize("name", ["", 5, "x" * 201])
    def test_the_name_of_a_checkpoint_is_checked(self, recruiter: Recruiter, name: Any) -> None:
        errors: list[Exception] = []

        @recruiter.task
        def order() -> None:
            try:
                current_job.once(name, int)
            except InvalidName as error:
                errors.append(error)

        order.enqueue()
        recruiter.run(order)

        assert len(errors) == 1

    @pytest.mark.parametrize("call", ["sleep", "wait_for", "asleep", "await_for", "once"])
    def test_none_of_them_inside_the_jobs_own_transaction(self, recruiter: Recruiter, target: str, call: str) -> None:
        """Also in a run that has it behind itself: it must not depend on that."""

        def pause() -> Any:
            if call == "once":
                return current_job.once("step", int)
            return getattr(current_job, call)("1s" if "sleep" in call else "paid")

        @recruiter.task
        def order(before: bool) -> None:
            if before:
                current_job.once("step", int)
            with current_job.transaction():
                pause()

        @recruiter.task
        async def aorder(before: bool) -> None:
            connected: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(target)
            async with connected as client, current_job.atransaction(client):
                await pause()

        task = aorder if call in ("asleep", "await_for") else order
        job = task.enqueue(call == "once")
        recruiter.run_all(task)

        ended = job.wait(timeout=60)
        assert not ended.done
        assert ended.last_execution is not None
        assert "before the block" in str(ended.last_execution.message)

    def test_a_plain_function_in_an_async_job(self, recruiter: Recruiter) -> None:
        """It is called in a thread, once."""
        calls: list[tuple[int, Any]] = []

        def charge(order: int) -> str:
            calls.append((threading.get_ident(), current_job.id))
            return f"receipt {order}"

        loops: list[int] = []

        @recruiter.task(retry=RetryManyTimes(2, 0))
        async def order() -> str:
            loops.append(threading.get_ident())
            receipt = await current_job.aonce("charge", charge, 7)
            if current_job.attempt < 3:
                raise ValueError("again")
            return receipt

        job = order.enqueue()
        recruiter.run_all(order)

        assert job.result(timeout=60) == "receipt 7"
        assert [id for _, id in calls] == [job.id]
        assert calls[0][0] not in loops

    def test_a_coroutine_function_in_once_is_refused_before_it_is_called(self, recruiter: Recruiter) -> None:
        calls: list[int] = []
        errors: list[str] = []

        async def charge(order: int) -> int:
            calls.append(order)
            return order

        @recruiter.task
        def order() -> None:
            for function in (charge, lambda number: charge(number)):
                try:
                    current_job.once("charge", function, 7)  # type: ignore[unused-coroutine]
                except InvalidArguments as error:
                    errors.append(str(error))

        job = order.enqueue()
        recruiter.run(order)

        assert calls == []
        assert [error for error in errors if "await current_job.aonce" in error] == errors
        assert len(errors) == 2
        assert job.wait(timeout=60).checkpoints == ()

    def test_a_step_that_raises_keeps_no_checkpoint(self, recruiter: Recruiter) -> None:
        calls: list[int] = []

        def flaky() -> str:
            calls.append(1)
            if len(calls) < 3:
                raise ConnectionError("no")
            return "at last"

        @recruiter.task(retry=RetryManyTimes(5, 0))
        def order() -> str:
            return current_job.once("flaky", flaky)

        job = order.enqueue()
        recruiter.run_all(order)

        assert job.result(timeout=5) == "at last"
        assert len(calls) == 3


class TestSleep:
    def test_an_at_most_once_job_cannot(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        @recruiter.task(at_most_once=True)
        def order() -> None:
            current_job.sleep("3 days")

        order.enqueue()
        (report,) = sandbox.run_due()

        assert "cannot be run again later" in str(report.error)

    def test_async_and_here(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        @recruiter.task
        async def order() -> str:
            await current_job.asleep("1 minute")
            return "done"

        job = order.job().here().execute()
        sandbox.move_clock("1 minute")
        sandbox.run_due()

        assert job.result(timeout=60) == "done"


class TestWaitFor:
    @pytest.fixture
    def order(self, recruiter: Recruiter) -> Any:
        @recruiter.task
        def order() -> Any:
            return current_job.wait_for("approved", timeout="7 days")

        return order

    def test_a_signal_may_come_while_it_runs_before_it_waits(
        self, recruiter: Recruiter, sandbox: Sandbox, store: Store
    ) -> None:
        """It looks again before it waits, and the settlement looks once more."""

        @recruiter.task
        def order(when: str) -> Any:
            if when == "before the look":
                recruiter.signal(current_job.id, "approved", "in time")
            elif current_job.job.snoozes == 0:
                checkpoints = current_job._checkpoints()
                looked = checkpoints.first_signal

                def too_late(numbers: Any) -> Any:
                    found = looked(numbers)
                    recruiter.signal(current_job.id, "approved", "in time")
                    return found

                checkpoints.first_signal = too_late  # type: ignore[method-assign]
            return current_job.wait_for("approved")

        for when in ("before the look", "after the look"):
            job = order.enqueue(when)
            sandbox.run_due()
            if when == "after the look":
                # it has decided to wait, and is due at once all the same
                document = store.scheduled.document(job.id)
                assert document is not None
                assert document["scheduled_at"] <= T0
                sandbox.run_due()
            assert job.result(timeout=60) == "in time"

    def test_in_the_callers_transaction(self, recruiter: Recruiter, sandbox: Sandbox, order: Any, target: str) -> None:
        job = order.enqueue()
        sandbox.run_due()
        with MongoClient[dict[str, Any]](target) as client, client.start_session() as session:
            session.start_transaction()
            recruiter.signal(job.id, "approved", "rolled back", session=session)
            session.abort_transaction()
            assert sandbox.run_due() == []
            with session.start_transaction():
                recruiter.signal(job.id, "approved", "committed", session=session)
        sandbox.run_due()

        assert job.result(timeout=60) == "committed"

    def test_async(self, recruiter: Recruiter, sandbox: Sandbox, target: str) -> None:
        @recruiter.task
        async def order() -> list[Any]:
            return [await current_job.await_for("a"), await current_job.await_for("b")]

        job = order.enqueue()
        sandbox.run_due()

        async def tell() -> None:
            await recruiter.asignal(job.id, "a", 1)
            connected = AsyncMongoClient[dict[str, Any]](target)
            async with connected as client, client.start_session() as session, await session.start_transaction():
                await recruiter.asignal(job.id, "b", 2, session=session)

        asyncio.run(tell())
        sandbox.run_due()

        assert job.result(timeout=60) == [1, 2]
