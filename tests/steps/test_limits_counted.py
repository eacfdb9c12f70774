"""What counts against a limit counts once, for as long as it is held, and in the window of its own limit."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

import pytest

from recruiter.domain.job import Job, JobId
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.needs import Needs
from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.errors import StoreUnreachable
from recruiter.events import Events
from recruiter.processes.loop import Stop
from recruiter.processes.recruiter import RecruiterProcess
from recruiter.settings import Settings
from recruiter.steps.assign import assign
from recruiter.steps.settle import settle
from recruiter.store import outcomes
from recruiter.store.codec import job_document
from recruiter.store.database import Store
from tests.samples import NOW, a_job, beat, done, insert, on_the_roster, running

GIB = 1024**3


def given(store: Store, worker: str) -> list[JobId]:
    holding = store.roster.holding(worker)
    assert holding is not None
    return list(holding.assigned)


def assign_at(store: Store, now: datetime) -> int:
    return assign(store, 1, now, store.limits.read()).assigned


def snooze(store: Store, worker: str, job: Job, times: int) -> None:
    """The worker runs the job again and again; each time it asks to be run later."""
    for number in range(times):
        assert assign_at(store, NOW) == 1
        stored = {**job_document(job), "snoozes": number}
        settle(store, worker, [(job.id, outcomes.snoozed(stored, NOW, NOW, "later"))], {})


def test_a_job_that_comes_again_to_its_worker_counts_once(store: Store) -> None:
    """Given 4 of 10 GiB in use by a job that was given to its worker several times, then 1 GiB is free."""
    on_the_roster(store, "w1", resources=f"mem={10 * GIB}", slots=4)
    large, small = a_job(needs=Needs.of(mem=4 * GIB)), a_job(needs=Needs.of(mem=GIB))
    insert(store, large)
    snooze(store, "w1", large, times=3)
    assert assign_at(store, NOW) == 1
    assert given(store, "w1") == [large.id]

    insert(store, small)

    assert assign_at(store, NOW) == 1
    assert given(store, "w1") == [large.id, small.id]


def test_a_job_that_is_noted_twice_counts_once(store: Store) -> None:
    """Given 4 of 10 GiB in use by a job whose note was written twice, then 6 GiB are free."""
    on_the_roster(store, "w1", resources=f"mem={10 * GIB}", slots=4)
    first, second = a_job(needs=Needs.of(mem=4 * GIB)), a_job(needs=Needs.of(mem=6 * GIB))
    insert(store, first)
    assert assign_at(store, NOW) == 1
    twice = {"$concatArrays": ["$metered", "$metered"]}
    store.roster.collection.update_one({}, [{"$set": {"metered": twice}}])

    insert(store, second)

    assert assign_at(store, NOW) == 1
    assert given(store, "w1") == [first.id, second.id]


def test_a_job_that_was_released_is_noted_nowhere(store: Store) -> None:
    on_the_roster(store, "w1", resources="proc=4")
    first, second = jobs = [a_job(needs=Needs.of(proc=1)) for _ in range(2)]
    insert(store, *jobs)
    assert assign_at(store, NOW) == 2
    beat(store, "w1", running(first.id, second.id))

    settle(store, "w1", [(first.id, done(first))], {})
    store.transactions.hand_back("w1", [second.id])

    (entry,) = store.roster.collection.find({})
    assert (entry["assigned"], entry["metered"], entry["running"]) == ([], [], [])


def test_a_rate_is_counted_in_its_own_window(store: Store) -> None:
    """Given 2 an hour of `mail:digest` and 10 a second of `mail`, then the digests of an hour are 2."""
    on_the_roster(store, "w1", tasks=["mail", "mail:digest"], slots=100)
    store.limits.set(Limit.of("task:mail", count=10, seconds=1), None, NOW)
    store.limits.set(Limit.of("task:mail:digest", count=2, seconds=3600), None, NOW)
    started = []

    for number in range(20):
        insert(store, a_job(task="mail:digest"))
        started.append(assign_at(store, NOW + timedelta(seconds=5 * number)))

    assert started == [1, 1, *[0] * 18]


def test_a_new_leader_assigns_no_job_before_it_has_read_the_limits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given two jobs and a limit of one, when MongoDB does not answer a new leader that asks for the limits, then the
    leader asks again before it assigns jobs."""
    # given
    store.limits.set(Limit("task:add", 1), None, store.clock.now())
    on_the_roster(store, "w1", slots=2)
    ago = store.clock.now() - timedelta(seconds=1)
    insert(store, a_job(scheduled_at=ago), a_job(scheduled_at=ago))
    policies, schedules = PolicyRegistry(), SchedulePolicyRegistry()
    leader = RecruiterProcess(store, Events(), Stop(), Settings(), policies=policies, schedules=schedules, listen=False)
    asked: list[str] = []

    def unanswered() -> None:
        asked.append("limits")
        raise StoreUnreachable("no answer")

    # when
    with monkeypatch.context() as patch:
        patch.setattr(store.limits, "read", unanswered)
        with suppress(StoreUnreachable):
            leader._step()
    assert asked
    for _ in range(5):
        leader.wake()
        leader._step()
    leader._close()

    # then
    assert len(given(store, "w1")) == 1
