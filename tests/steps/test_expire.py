"""Jobs that are useless after a time: never started after it, archived as expired, and explained."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from recruiter import Recruiter, RetryManyTimes, State
from recruiter.domain.schedule.policies import Every
from recruiter.errors import JobFailed
from recruiter.steps.cancel import archive_expired
from recruiter.steps.lead import Leadership
from recruiter.store.database import Store
from recruiter.testing import Sandbox
from tests.samples import on_the_roster

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
def sandbox(target: str, store: Store) -> Iterator[Sandbox]:
    with Recruiter(target) as recruiter:
        sandbox = Sandbox(recruiter, target, now=NOW)
        yield sandbox
        sandbox.close()


@pytest.fixture
def recruiter(sandbox: Sandbox) -> Recruiter:
    return sandbox.recruiter


def expire(recruiter: Recruiter) -> list[object]:
    """What a leader does about once a second."""
    store, clock = recruiter.store, recruiter.clock
    leadership = Leadership(store, clock, 5.0)
    assert leadership.attend()
    ended = archive_expired(store, clock, leadership.term, leadership.holder)
    leadership.resign()
    return list(ended)


class TestWhen:
    def test_each_occurrence_has_its_own(self, recruiter: Recruiter) -> None:
        work = recruiter.task(name="work", expires="1h")(lambda: 1)
        work.job().repeat_with_policy(Every("1 day")).with_urn("daily").create()
        (scheduler,) = recruiter.schedulers()

        assert scheduler.occurrence(NOW + 24 * HOUR, NOW).expires_at == NOW + 25 * HOUR
        recruiter.create_schedulers()
        assert recruiter.find(recruiter.scheduler("daily").run_now().id).expires_at == NOW + HOUR


class TestNeverStarted:
    def test_by_whoever_runs_it(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        """It was given to a worker in time, and waited there for too long."""
        ran: list[int] = []
        task = recruiter.task(name="work", expires="1h")(lambda: ran.append(1))
        job = task.enqueue()
        sandbox.move_clock("1h")

        (report,) = sandbox.flush()

        assert (report.done, ran) == (False, [])
        ended = recruiter.find(job.id)
        assert (ended.state, getattr(ended, "why", None), ended.attempts) == (State.CANCELLED, "expired", 0)
        with pytest.raises(JobFailed, match="expired"):
            job.result(timeout=1)

    def test_where_nobody_runs_it(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        """In a paused group, or without a worker: the leader archives it."""
        late = recruiter.job("unknown").expires_in("1h").in_group("paused").in_background().execute()
        other = recruiter.job("unknown").expires_in("2h").in_background().execute()
        plain = recruiter.job("unknown").in_background().execute()
        assert expire(recruiter) == []
        sandbox.move_clock("1h")

        assert expire(recruiter) == [late.id]

        assert {job.id for job in sandbox.jobs()} == {other.id, plain.id}
        assert "expired" in recruiter.explain(late.id)
        assert "it had not started by 2030-01-01 01:00:00" in recruiter.explain(late.id)
        assert "it expires at 2030-01-01 02:00:00 UTC" in recruiter.explain(other.id)

    def test_one_that_somebody_holds_is_left_to_him(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        job = recruiter.job("unknown").expires_in("1h").in_background().execute()
        on_the_roster(recruiter.store, "w1")
        assert recruiter.store.roster.assign({"w1": [job.id]}, 1)
        sandbox.move_clock("2h")

        assert expire(recruiter) == []

    def test_a_retry_that_comes_too_late(self, recruiter: Recruiter, sandbox: Sandbox) -> None:
        task = recruiter.task(name="work", expires="1h", retry=RetryManyTimes(5, "40m"))(lambda: 1 / 0)
        job = task.enqueue()
        for _ in range(3):
            sandbox.run_due()
            sandbox.move_clock("40m")

        ended = recruiter.find(job.id)
        assert (getattr(ended, "why", None), ended.attempts) == ("expired", 2)


def test_recovered_it_has_its_time_again(recruiter: Recruiter, sandbox: Sandbox) -> None:
    task = recruiter.task(name="work", expires="1h")(lambda: 1)
    job = task.enqueue()
    sandbox.move_clock("3h")
    sandbox.flush()

    again = recruiter.recover(job.id)

    assert recruiter.find(again.id).expires_at == NOW + 4 * HOUR
    assert sandbox.flush()[0].done
