"""`once`, `sleep`, `wait_for` and signals, where they meet timeouts, retries, recovery, expiry and concurrency."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.collection import Collection

from recruiter import InvalidJob, JobTooLarge, Recruiter, RetryManyTimes, SignalTimeout, State, current_job
from recruiter.testing import Sandbox

T0 = datetime(2030, 1, 1, tzinfo=UTC)
MEGABYTE = 1024 * 1024


def test_steps_that_run_concurrently_may_be_the_first_of_a_job(recruiter: Recruiter) -> None:
    calls: list[str] = []

    async def charge(name: str) -> str:
        calls.append(name)
        return name

    @recruiter.task(retry=RetryManyTimes(3, 0))
    async def order(number: int) -> list[str]:
        steps = (current_job.aonce(f"{number}.{step}", charge, f"{number}.{step}") for step in range(4))
        return list(await asyncio.gather(*steps))

    jobs = [order.enqueue(number) for number in range(30)]
    recruiter.run_all(order)

    assert [job.wait(timeout=60).attempts for job in jobs] == [1] * 30
    assert len(calls) == len(set(calls)) == 120


class TestSignals:
    def test_a_signal_after_a_timeout_is_received(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        reminders: list[int] = []

        @recruiter.task
        def order() -> str:
            for day in range(5):
                try:
                    return f"day {day}: {current_job.wait_for('approved', timeout='1 day')}"
                except SignalTimeout:
                    current_job.once(f"remind {day}", reminders.append, day)
            return "nobody approved"

        job = order.enqueue()
        sandbox.run_due()
        for _ in range(2):
            sandbox.move_clock("1 day")
            sandbox.run_due()
        recruiter.signal(job.id, "approved", "yes")
        sandbox.run_due()

        assert job.result(timeout=60) == "day 2: yes"
        assert reminders == [0, 1]

    def test_untaken_signals_survive_a_recovery_and_taken_ones_are_not_needed_twice(
        self, recruiter: Recruiter, sandbox: Sandbox
    ) -> None:
        works: list[bool] = []

        @recruiter.task
        def order() -> list[Any]:
            first = current_job.wait_for("line")
            if not works:
                raise ConnectionError("the mail server is away")
            return [first, current_job.wait_for("line"), current_job.wait_for("line")]

        job = order.enqueue()
        for line in ("first", "second"):
            recruiter.signal(job.id, "line", line)
        sandbox.run_due()
        works.append(True)

        again = recruiter.recover(job.id)
        sandbox.run_due()
        recruiter.signal(again.id, "line", "third")
        sandbox.run_due()

        assert again.result(timeout=60) == ["first", "second", "third"]

    def test_a_recovered_job_waits_again_for_the_signal_that_never_came(
        self, recruiter: Recruiter, sandbox: Sandbox
    ) -> None:
        @recruiter.task
        def order() -> list[Any]:
            try:
                current_job.wait_for("line", timeout="1 hour")
            except SignalTimeout:
                current_job.once("remind", int)
            return [current_job.wait_for("line"), current_job.wait_for("line", timeout="1 hour")]

        # given a job whose first wait timed out, whose second took a signal, and that failed in its third
        job = order.enqueue()
        sandbox.run_due()
        sandbox.move_clock("1 hour")
        sandbox.run_due()
        recruiter.signal(job.id, "line", "first")
        sandbox.run_due()
        sandbox.move_clock("1 hour")
        sandbox.run_due()
        assert recruiter.find(job.id).state is State.FAILED

        # when it is recovered, it waits for the second signal only
        again = recruiter.recover(job.id)
        sandbox.run_due()
        recruiter.signal(again.id, "line", "second")
        sandbox.run_due()

        assert again.result(timeout=60) == ["first", "second"]

    def test_a_further_signal_does_not_end_the_wait_of_a_retry(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        attempts: list[datetime] = []

        @recruiter.task(retry=RetryManyTimes(5, "1 hour"))
        def order() -> Any:
            attempts.append(recruiter.clock.now())
            if 1 < len(attempts) < 4:
                raise ConnectionError("the database is away")
            return current_job.wait_for("approved", timeout="7 days")

        # given a job that a signal has brought back, and that fails before it takes the signal
        job = order.enqueue()
        sandbox.run_due()
        recruiter.signal(job.id, "approved", 1)
        sandbox.run_due()
        assert len(attempts) == 2

        # when further signals come
        for number in (2, 3):
            recruiter.signal(job.id, "approved", number)
            sandbox.run_due()

        # then the retry still waits for its hour
        assert len(attempts) == 2
        for _ in range(2):
            sandbox.move_clock("1 hour")
            sandbox.run_due()
        assert job.result(timeout=60) == 1

    def test_the_timeout_of_a_wait_goes_on_while_a_retry_waits(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        runs: list[int] = []

        @recruiter.task(retry=RetryManyTimes(5, "1 hour"))
        def order() -> str:
            runs.append(1)
            if len(runs) == 2:
                raise ConnectionError("the database is away")
            try:
                current_job.wait_for("approved", timeout="1 day")
            except SignalTimeout:
                return "nobody approved"
            return "approved"

        job = order.enqueue()
        sandbox.run_due()
        sandbox.move_clock("1 day")
        sandbox.run_due()
        sandbox.move_clock("1 hour")
        sandbox.run_due()

        assert job.result(timeout=60) == "nobody approved"

    def test_they_cannot_fill_the_document_of_a_job(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        @recruiter.task
        def order() -> int:
            return len(current_job.wait_for("page"))

        job = order.enqueue()
        for _ in range(7):
            recruiter.signal(job.id, "page", "x" * (MEGABYTE // 2))
        with pytest.raises(JobTooLarge, match="all its signals together"):
            recruiter.signal(job.id, "page", "x" * (MEGABYTE // 2))
        sandbox.run_due()

        assert job.result(timeout=60) == MEGABYTE // 2

    def test_a_job_keeps_at_most_1000_signals(
        self, recruiter: Recruiter, scheduled: Collection[dict[str, Any]]
    ) -> None:
        job = recruiter.job("unknown").enqueue()
        recruiter.signal(job.id, "x")
        ((signal,),) = (found["signals"] for found in scheduled.find({"_id": job.id}))
        scheduled.update_one({"_id": job.id}, {"$push": {"signals": {"$each": [signal] * 998}}})

        recruiter.signal(job.id, "x")
        with pytest.raises(InvalidJob, match="1,000 signals"):
            recruiter.signal(job.id, "x")


class TestExpiry:
    @pytest.mark.parametrize("how", ["sleeps", "waits"])
    def test_it_does_not_end_a_job_that_has_begun_and_pauses_itself(
        self, recruiter: Recruiter, sandbox: Sandbox, how: str
    ) -> None:
        @recruiter.task(expires="10 minutes")
        def order() -> str:
            if how == "sleeps":
                current_job.sleep("1 hour")
            else:
                current_job.wait_for("approved")
            return "done"

        job = order.enqueue()
        sandbox.run_due()
        sandbox.move_clock("1 hour")
        if how == "waits":
            recruiter.signal(job.id, "approved")
        sandbox.run_due()

        assert job.result(timeout=60) == "done"

    def test_a_retry_after_a_sleep_may_still_come_too_late(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        @recruiter.task(expires="10 minutes", retry=RetryManyTimes(5, "1 hour"))
        def order() -> None:
            current_job.sleep("1 hour")
            raise ConnectionError("the database is away")

        job = order.enqueue()
        for _ in range(3):
            sandbox.run_due()
            sandbox.move_clock("1 hour")

        ended = recruiter.find(job.id)
        assert (ended.why, ended.attempts) == ("expired", 1)


def test_checkpoints_count_once_after_a_retry(recruiter: Recruiter) -> None:
    """Given a job that keeps 8.5 MB, fails, and keeps another 5 MB in its second run: 13.5 MB fit."""
    errors: list[Exception] = []

    @recruiter.task(retry=RetryManyTimes(1, 0))
    def order() -> int:
        current_job.once("first", lambda: b"x" * int(8.5 * MEGABYTE))
        if current_job.attempt == 1:
            raise ConnectionError("again")
        try:
            return len(current_job.once("second", lambda: b"x" * 5 * MEGABYTE))
        except Exception as error:
            errors.append(error)
            raise

    job = order.enqueue()
    recruiter.run_all(order)

    assert errors == []
    assert job.result(timeout=60) == 5 * MEGABYTE


class TestGroups:
    """A pause leaves the job through whatever the job has put around it."""

    @pytest.mark.parametrize("how", ["sleep", "wait"])
    def test_a_pause_inside_a_task_group(self, recruiter: Recruiter, sandbox: Sandbox, how: str) -> None:
        @recruiter.task
        async def order() -> str:
            async def pause() -> Any:
                if how == "sleep":
                    return await current_job.asleep("1 minute")
                return await current_job.await_for("approved", timeout="1 minute")

            async with asyncio.TaskGroup() as group:
                group.create_task(pause())
                group.create_task(asyncio.sleep(0.01))
            return "done"

        job = order.enqueue()
        (report,) = sandbox.run_due()
        assert (report.error, report.next_at) == (None, T0 + timedelta(minutes=1))
        if how == "wait":
            recruiter.signal(job.id, "approved")
        sandbox.move_clock("1 minute")
        sandbox.run_due()

        assert job.result(timeout=60) == "done"
        assert job.wait(timeout=60).attempts == 1

    def test_a_failure_beside_a_pause_is_a_failure(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        @recruiter.task
        async def order() -> None:
            async def fail() -> None:
                raise ValueError("no good")

            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                group.create_task(current_job.asleep("1 minute"))

        order.enqueue()
        (report,) = sandbox.run_due()

        assert "ExceptionGroup" in str(report.error)

    def test_a_pause_that_the_job_has_caught_is_still_one(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        runs: list[str] = []

        @recruiter.task
        def order() -> str:
            runs.append("begins")
            try:
                current_job.sleep("1 minute")
            except BaseException:
                runs.append("caught")
            current_job.once("charge", runs.append, "charged")
            return "done"

        job = order.enqueue()
        (report,) = sandbox.run_due()
        assert (report.done, report.next_at) == (False, T0 + timedelta(minutes=1))
        sandbox.move_clock("1 minute")
        sandbox.run_due()

        assert job.result(timeout=60) == "done"
        assert runs == ["begins", "caught", "begins", "charged"]
