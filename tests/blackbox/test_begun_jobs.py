"""Jobs that have begun: a debounce, a throttle, a unique key and a changed scheduler leave them alone."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from recruiter import Every, InvalidJob, Recruiter, RetryLater, RetryManyTimes, Workable, current_job
from recruiter.testing import Sandbox
from tests.conftest import eventually

T0 = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class TestDebounce:
    def test_a_job_that_sleeps_is_neither_postponed_nor_replaced(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        done: list[str] = []

        @recruiter.task
        def order(number: int) -> None:
            current_job.once("charge", done.append, f"charge {number}")
            current_job.sleep("1 minute")
            done.append(f"send {number}")

        # given a debounced job that has charged the card, and sleeps
        first = order.job(1).debounce("10s").enqueue()
        sandbox.move_clock("10s")
        sandbox.run_due()

        # when its key is used again
        second = order.job(2).debounce("10s").enqueue()

        # then that is another job, and the first goes on where it was
        assert (second.created, second.id == first.id) == (True, False)
        for _ in range(3):
            sandbox.move_clock("1 minute")
            sandbox.run_due()
        assert sorted(done) == ["charge 1", "charge 2", "send 1", "send 2"]

    @pytest.mark.parametrize("kind", ["debounce", "throttle"])
    def test_a_job_that_waits_for_a_signal_still_gets_it(
        self, recruiter: Recruiter, sandbox: Sandbox, kind: str
    ) -> None:
        @recruiter.task
        def approve(number: int) -> str:
            return f"{number}: {current_job.wait_for('approved')}"

        def make(number: int) -> Any:
            job = approve.job(number)
            return (job.debounce("10s") if kind == "debounce" else job.throttle("10s")).enqueue()

        first = make(1)
        sandbox.move_clock("10s")
        sandbox.run_due()
        second = make(2)
        recruiter.signal(first.id, "approved", "yes")
        sandbox.run_due()

        assert first.result(timeout=1) == "1: yes"
        assert second.id != first.id

    def test_a_job_that_asked_to_be_run_later_is_left_alone(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        @recruiter.task
        def fetch() -> None:
            raise RetryLater("1 minute")

        first = fetch.job().debounce("10s").enqueue()
        sandbox.move_clock("10s")
        sandbox.run_due()

        assert fetch.job().debounce("10s").enqueue().id != first.id

    def test_a_signal_to_a_job_that_has_not_begun_survives_the_next_call(
        self, recruiter: Recruiter, sandbox: Sandbox
    ) -> None:
        @recruiter.task
        def approve(number: int) -> str:
            return f"{number}: {current_job.wait_for('approved')}"

        first = approve.job(1).debounce("10s").enqueue()
        recruiter.signal(first.id, "approved", "early")
        approve.job(2).debounce("10s").enqueue()
        sandbox.move_clock("10s")
        sandbox.run_due()

        assert first.result(timeout=1) == "2: early"


class TestThrottle:
    def test_the_period_counts_from_the_start_of_the_last_job(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        started: list[datetime] = []

        @recruiter.task
        def index() -> None:
            started.append(current_job.started_at)

        # given a job that starts 3.7 seconds after it was due: there was no slot for it
        index.job().throttle("4s").enqueue()
        sandbox.move_clock("3700ms")
        sandbox.run_due()

        # when another one is made a moment later
        sandbox.move_clock("300ms")
        index.job().throttle("4s").enqueue()
        for _ in range(20):
            sandbox.run_due()
            sandbox.move_clock("500ms")

        # then a whole period lies between the two
        assert len(started) == 2
        assert started[1] - started[0] >= 4 * SECOND

    def test_a_job_that_was_cancelled_before_it_began_takes_no_period(
        self, recruiter: Recruiter, sandbox: Sandbox
    ) -> None:
        ran: list[int] = []

        @recruiter.task
        def index(number: int) -> None:
            ran.append(number)

        first = index.job(1).throttle("1h").enqueue()
        recruiter.cancel(first.id)
        index.job(2).throttle("1h").enqueue()
        sandbox.run_due()

        assert ran == [2]


class TestUntilStarted:
    def test_a_job_that_has_started_and_sleeps_counts_as_started(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        @recruiter.task
        def index() -> None:
            current_job.sleep("1 minute")

        index.job().unique(until="started").enqueue()
        sandbox.run_due()

        assert index.job().unique(until="started").enqueue().created

    def test_a_change_in_the_callers_transaction_is_seen(self, recruiter: Recruiter, target: str) -> None:
        """Given a waiting job, and a transaction that changes data and asks for that job: the job starts after the
        commit, or the transaction conflicts with its start and is repeated."""
        seen: list[int] = []

        @recruiter.task
        def index() -> None:
            with MongoClient[dict[str, Any]](target) as reader:
                found = reader.get_default_database()["shop"].find_one() or {"stock": 0}
                seen.append(found["stock"])

        stop = threading.Event()
        watcher = threading.Thread(target=recruiter.watch, args=(index,), kwargs={"stop": stop})
        index.job().unique(until="started").enqueue()
        with MongoClient[dict[str, Any]](target) as client, client.start_session() as session:
            shop = client.get_default_database()["shop"]
            shop.drop()
            shop.insert_one({"_id": 1, "stock": 0})

            def change(session: Any) -> None:
                shop.update_one({"_id": 1}, {"$set": {"stock": 7}}, session=session)
                index.job().unique(until="started").enqueue(session=session)
                if not watcher.is_alive():
                    watcher.start()
                    with pytest.raises(pytest.fail.Exception):  # it does not start before the commit
                        eventually(lambda: seen, within=1)

            try:
                session.with_transaction(change)
                eventually(lambda: seen)
                assert seen == [7]
            finally:
                stop.set()
                watcher.join(timeout=30)


class TestUnique:
    def test_a_job_that_was_cancelled_while_it_runs_counts_until_it_has_stopped(self, recruiter: Recruiter) -> None:
        begun, may_end = threading.Event(), threading.Event()

        @recruiter.task
        def import_orders() -> None:
            begun.set()
            while not may_end.wait(0.01):
                pass

        stop = threading.Event()
        watcher = threading.Thread(target=recruiter.watch, args=(import_orders,), kwargs={"stop": stop})
        watcher.start()
        try:
            first = import_orders.job().unique().enqueue()
            assert begun.wait(30)
            recruiter.cancel(first.id)

            second = import_orders.job().unique().enqueue()

            assert (second.created, second.id) == (False, first.id)
            may_end.set()
            eventually(lambda: recruiter.find(first.id).ended)
            assert import_orders.job().unique().enqueue().created
        finally:
            may_end.set()
            stop.set()
            watcher.join(timeout=30)

    def test_for_a_time_does_not_count_a_job_that_was_cancelled_before_it_began(
        self, recruiter: Recruiter, sandbox: Sandbox
    ) -> None:
        @recruiter.task
        def mail() -> None: ...

        first = mail.job().unique(until="1 hour").enqueue()
        recruiter.cancel(first.id)
        second = mail.job().unique(until="1 hour").enqueue()
        sandbox.run_due()
        third = mail.job().unique(until="1 hour").enqueue()

        assert (second.created, third.created, third.id) == (True, False, second.id)

    def test_for_a_time_counts_a_job_that_failed(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        @recruiter.task
        def mail() -> None:
            raise ValueError("no")

        first = mail.job().unique(until="1 hour").enqueue()
        sandbox.run_due()

        assert mail.job().unique(until="1 hour").enqueue().id == first.id


class Thumbnail(Workable, name="begun.Thumbnail", unique=True):
    def execute(self) -> None: ...


class TestNotCompared:
    """Where jobs are not compared with others, a unique one is refused: it must not be made twice silently."""

    def test_create_refuses_a_unique_job(self, recruiter: Recruiter) -> None:
        @recruiter.task(unique=True)
        def mail(to: str) -> str:
            return to

        with pytest.raises(InvalidJob, match="not compared"):
            mail.job("ada").create()
        with pytest.raises(InvalidJob, match="not compared"):
            recruiter.create("mail", {"to": "ada"})
        assert mail.job("ada").unique_if(False).create().created

    def test_a_job_that_runs_here_cannot_be_unique(self, recruiter: Recruiter) -> None:
        @recruiter.task
        def mail(to: str) -> str:
            return to

        with pytest.raises(InvalidJob, match="not compared"):
            mail.job("ada").unique().here().execute()
        with pytest.raises(InvalidJob, match="not compared"):
            Thumbnail().as_job_of(recruiter).execute()
        assert Thumbnail().as_job_of(recruiter).in_background().execute().created


class TestSchedulers:
    def test_a_changed_scheduler_leaves_an_occurrence_that_has_begun(
        self, recruiter: Recruiter, sandbox: Sandbox
    ) -> None:
        ran: list[str] = []

        @recruiter.task(retry=RetryManyTimes(3, "1s"))
        def report(kind: str) -> None:
            current_job.sleep("1 minute")
            ran.append(kind)

        def schedule(kind: str) -> None:
            report.job(kind).repeat_with_policy(Every("1 hour")).with_urn("report").create()

        # given an occurrence that has begun and sleeps
        schedule("old")
        recruiter.create_schedulers()
        recruiter.scheduler("report").run_now()
        sandbox.run_due()

        # when its scheduler is changed
        schedule("new")
        recruiter.create_schedulers()
        sandbox.move_clock("1 minute")
        sandbox.run_due()

        assert ran == ["old"]


class TestWrittenOnce:
    def test_the_first_start_is_written_once_and_outlives_retries_and_sleeps(
        self, recruiter: Recruiter, sandbox: Sandbox
    ) -> None:
        @recruiter.task(retry=RetryManyTimes(5, "10s"))
        def work() -> None:
            if current_job.attempt == 1:
                raise ValueError("again")
            current_job.sleep("1 minute")
            raise RetryLater("1 minute")

        job = work.enqueue()
        assert recruiter.find(job.id).begun_at is None
        sandbox.run_due()
        first = recruiter.find(job.id).begun_at
        for _ in range(3):
            sandbox.move_clock("1 minute")
            sandbox.run_due()

        assert first == T0
        assert recruiter.find(job.id).begun_at == T0
