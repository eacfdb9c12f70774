"""Rescue: who has been silent too long is retired; what it ran crashed, what it merely held is free as it was."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument

from recruiter.clock import StoppedClock
from recruiter.domain.job import Execution, Job
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import MAX_CRASHES, Retry
from recruiter.domain.retry.policies import DoNotDoItAgain, RetryManyTimes
from recruiter.settings import Settings
from recruiter.steps.assign import assign
from recruiter.steps.rescue import Rescue, Retired
from recruiter.store import outcomes
from recruiter.store.codec import encode, job_document
from recruiter.store.database import Store
from recruiter.store.outcomes import Rescheduled
from tests.samples import NOW, a_job, beat, document, insert, on_the_roster, places, running

DEAD_AFTER = 15.0


class Watch:
    """Somebody who looks at the roster every few seconds."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = StoppedClock(NOW)
        self.rescue = Rescue(store, self.clock, DEAD_AFTER, PolicyRegistry())

    def look(self) -> list[Retired]:
        return self.rescue.retire_silent(self.store.roster.read())

    def for_seconds(self, seconds: float) -> list[Retired]:
        """Looks at once, then every three seconds; what was retired on the way."""
        retired = self.look()
        for _ in range(round(seconds / 3)):
            self.clock.move(timedelta(seconds=3))
            retired += self.look()
        return retired


@pytest.fixture
def watch(store: Store) -> Watch:
    return Watch(store)


def crashed(store: Store, watch: Watch, job: Job, **facts: Any) -> None:
    """This job was running on a worker that fell silent."""
    insert(store, job)
    on_the_roster(store, "w1", **facts)
    store.roster.assign({"w1": [job.id]}, 1)
    beat(store, "w1", running(job.id))
    (retired,) = watch.for_seconds(DEAD_AFTER + 3)
    assert retired.crashed == (job.id,)


def test_a_worker_that_beats_stays(store: Store, watch: Watch) -> None:
    on_the_roster(store, "w1")
    for _ in range(20):
        beat(store, "w1", {})
        assert watch.for_seconds(3) == []

    assert [worker.id for worker in store.roster.read()] == ["w1"]


def test_a_silent_one_is_retired_after_the_time_and_not_before(store: Store, watch: Watch) -> None:
    on_the_roster(store, "w1")

    assert watch.for_seconds(DEAD_AFTER - 3) == []
    assert watch.for_seconds(6) == [Retired("w1", crashed=(), released=0)]

    assert store.roster.read() == []
    assert watch.for_seconds(60) == []


def test_a_worker_that_declares_its_time_is_retired_after_that_time(store: Store, watch: Watch) -> None:
    """Given an observer with a shorter time and one with a longer time, the worker's own value counts for both."""
    on_the_roster(store, "patient", considered_dead_after=60.0)
    on_the_roster(store, "hasty", considered_dead_after=6.0)

    assert [each.worker for each in watch.for_seconds(9)] == ["hasty"]
    assert watch.for_seconds(45) == []
    assert [each.worker for each in watch.for_seconds(12)] == ["patient"]


def test_an_observer_without_a_setting_is_generous_with_workers_of_an_earlier_release() -> None:
    assert Settings().undeclared_dead_after == 60.0
    assert Settings(considered_dead_after=timedelta(minutes=10)).undeclared_dead_after == 600.0


def test_only_the_silent_one(store: Store, watch: Watch) -> None:
    on_the_roster(store, "silent")
    on_the_roster(store, "lively")
    retired = []
    for _ in range(8):
        beat(store, "lively", {})
        retired += watch.for_seconds(3)

    assert [each.worker for each in retired] == ["silent"]
    assert [worker.id for worker in store.roster.read()] == ["lively"]


def test_an_outage_retires_nobody(store: Store, watch: Watch) -> None:
    """Given an hour without MongoDB, when the watcher looks again, then workers have time to show life."""
    on_the_roster(store, "w1")
    watch.look()

    watch.clock.move(timedelta(hours=1))

    assert watch.look() == []
    beat(store, "w1", {})
    assert watch.for_seconds(DEAD_AFTER - 3) == []


def test_what_it_ran_crashed_and_what_it_held_is_free(store: Store, watch: Watch) -> None:
    """Given one running and two waiting jobs on one slot, when retired, then one attempt is burnt, and no other."""
    ran, held, other = jobs = [a_job() for _ in range(3)]
    ids = insert(store, *jobs)
    on_the_roster(store, "w1", slots=1)
    store.roster.assign({"w1": ids}, 1)
    beat(store, "w1", running(ran.id))

    (retired,) = watch.for_seconds(DEAD_AFTER + 3)

    assert (retired.crashed, retired.released) == ((ran.id,), 2)
    assert store.roster.held() == set()
    for each in (held, other):
        assert document(store, each.id) == job_document(each)
    again = store.scheduled.get(ran.id)
    assert again is not None
    assert (again.attempts, again.crashes) == (1, 1)
    (execution,) = again.executions
    assert (execution.crashed, execution.worker, execution.started_at) == (True, "w1", NOW)
    assert "w1 fell silent" in (execution.message or "")
    assert again.scheduled_at <= watch.clock.now(), "without a policy it runs again at once"


def test_its_policy_decides_when(store: Store, watch: Watch) -> None:
    policy = PolicyRegistry().dump(RetryManyTimes(3, "10 minutes"))
    job = a_job(retry_policy=policy)

    crashed(store, watch, job)

    again = store.scheduled.get(job.id)
    assert again is not None
    assert again.executions[-1].ended_at is not None
    assert again.scheduled_at - again.executions[-1].ended_at == timedelta(minutes=10)


def test_its_policy_may_say_no(store: Store, watch: Watch) -> None:
    job = a_job(retry_policy=PolicyRegistry().dump(DoNotDoItAgain()))

    crashed(store, watch, job)

    ended = store.archived.get(job.id)
    assert ended is not None
    assert (ended.done, ended.why, ended.crashes) == (False, "not-scheduled-by-retry-policy", 1)


def test_a_policy_nobody_here_knows_is_left_to_the_workers(store: Store, watch: Watch) -> None:
    job = a_job(retry_policy={"class": "OfTheApplication", "parameters": {}})

    crashed(store, watch, job)

    assert places(store, [job.id]) == {job.id: "scheduled"}


def test_a_job_that_keeps_killing_its_worker_is_set_aside(store: Store, watch: Watch) -> None:
    job = a_job()
    insert(store, job)
    for number in range(MAX_CRASHES):
        worker = on_the_roster(store, f"w{number}")
        assert store.roster.assign({worker: [job.id]}, 1)
        beat(store, worker, running(job.id))
        (retired,) = watch.for_seconds(DEAD_AFTER + 3)
        assert retired.crashed == (job.id,)

    ended = store.archived.get(job.id)
    assert ended is not None
    assert (ended.why, ended.crashes, len(ended.executions)) == ("crashed-too-many-times", MAX_CRASHES, MAX_CRASHES)
    assert places(store, [job.id]) == {job.id: "archived"}


def test_an_at_most_once_job_is_lost_rather_than_run_again(store: Store, watch: Watch) -> None:
    """Given a job marked as started that its worker had not yet reported, when retired, then it is archived."""
    job = a_job(at_most_once=True)
    insert(store, job)
    on_the_roster(store, "w1")
    store.roster.assign({"w1": [job.id]}, 1)
    assert store.transactions.mark_started("w1", [job.id], NOW).may_start == {job.id}

    (retired,) = watch.for_seconds(DEAD_AFTER + 3)

    assert retired.crashed == (job.id,)
    ended = store.archived.get(job.id)
    assert ended is not None
    assert (ended.why, ended.last_execution and ended.last_execution.started_at) == ("lost", NOW)


def test_a_cancelled_job_it_ran_stays_cancelled(store: Store, watch: Watch) -> None:
    job = a_job()
    insert(store, job)
    on_the_roster(store, "w1")
    store.roster.assign({"w1": [job.id]}, 1)
    beat(store, "w1", running(job.id))
    store.scheduled.flag_cancelled(job.id, NOW, None, None)

    watch.for_seconds(DEAD_AFTER + 3)

    assert [flagged["_id"] for flagged in store.scheduled.flagged(10)] == [job.id]
    assert store.roster.held() == set()


@pytest.mark.parametrize("field", ["note", "executions"])
def test_a_job_that_cannot_be_read_does_not_keep_its_worker_on_the_roster(
    store: Store, watch: Watch, field: str
) -> None:
    """Given a running document with something unreadable in it, when its worker dies, then others are freed."""
    bad, good = a_job("bad"), a_job("good")
    strange: dict[str, Any] = {"note": "broken!", "executions": "many"}
    raw = encode(job_document(bad) | {field: strange[field]}).replace(b"broken!", b"br\xff\xfeen!")
    store.scheduled.collection.insert_one(RawBSONDocument(raw))
    insert(store, good)
    on_the_roster(store, "w1")
    store.roster.assign({"w1": ["bad", "good"]}, 1)
    beat(store, "w1", running("bad"))

    watch.for_seconds(DEAD_AFTER + 3)

    assert store.roster.read() == []
    assert store.roster.held() == set()


class TestSuspects:
    def test_one_that_kills_its_worker_before_the_next_heartbeat_is_set_aside_when_it_has_died_alone_three_times(
        self, store: Store, watch: Watch
    ) -> None:
        poison, innocent = a_job(), a_job()
        insert(store, poison, innocent)

        # when its worker dies, and then another one, and nobody knows what they ran
        for worker, suspect in (("w0", False), ("w1", True)):
            on_the_roster(store, worker)
            store.roster.assign({worker: [poison.id, innocent.id]}, 1)
            watch.for_seconds(DEAD_AFTER + 3)
            both = [store.scheduled.get(each.id) for each in (poison, innocent)]
            assert [(each.suspect, each.attempts) for each in both if each] == [(suspect, 0)] * 2

        # and the next ones, which have only the poison
        for worker, crashes in (("w2", 1), ("w3", 2), ("w4", 3)):
            on_the_roster(store, worker)
            store.roster.assign({worker: [poison.id]}, 1)
            watch.for_seconds(DEAD_AFTER + 3)
            ended = store.archived.get(poison.id) or store.scheduled.get(poison.id)
            assert ended is not None
            assert ended.crashes == crashes

        # then it is set aside, and the other has lost nothing
        ended = store.archived.get(poison.id)
        assert ended is not None
        assert ended.why == "crashed-too-many-times"
        assert document(store, innocent.id)["attempts"] == 0

    def test_a_buffer_of_a_dead_worker_need_not_run_one_by_one(self, store: Store, watch: Watch) -> None:
        """Given a worker with many quick jobs, when it dies, then another one is given all of them at once."""
        jobs = [a_job() for _ in range(40)]
        insert(store, *jobs)
        on_the_roster(store, "w1", slots=2, prefetch=100)
        assign(store, 1, watch.clock.now())
        assert len(store.roster.held()) == 40
        watch.for_seconds(DEAD_AFTER + 3)
        assert store.roster.held() == set()

        on_the_roster(store, "w2", slots=2, prefetch=100)
        assign(store, 1, watch.clock.now())

        assert store.roster.held() == {job.id for job in jobs}

    def test_one_that_fails_by_itself_is_cleared(self) -> None:
        policies = PolicyRegistry()
        job = a_job(suspect=True, retry_policy=policies.dump(RetryManyTimes(3, 1)))
        assert job.lane == "generic/add///alone"
        execution = Execution(NOW, NOW, "w1", exception="ValueError", message="no good")

        outcome = outcomes.failed(job_document(job), execution, NOW, Retry(NOW))

        assert isinstance(outcome, Rescheduled)
        assert outcome.fields["lane"] == "generic/add"
        assert "suspect" in outcome.unset
