"""Rescue: a worker that has been silent too long is retired; its jobs go back to their places."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument

from recruiter.clock import StoppedClock
from recruiter.domain.job import Execution, Job
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import MAX_WORKER_DEATHS, Retry, RetryPolicy
from recruiter.domain.retry.policies import DoNotDoItAgain, RetryManyTimes
from recruiter.steps.assign import assign
from recruiter.steps.rescue import Rescue, Retired
from recruiter.steps.settle import settle
from recruiter.store import outcomes
from recruiter.store.codec import encode, job_document
from recruiter.store.database import Store
from recruiter.store.outcomes import Rescheduled
from recruiter.views.explain import explain
from tests.samples import NOW, a_job, beat, document, done, insert, on_the_roster, places, running

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


def lost_its_worker(store: Store, watch: Watch, job: Job, **facts: Any) -> None:
    """This job was running on a worker that fell silent."""
    insert(store, job)
    on_the_roster(store, "w1", **facts)
    store.roster.assign({"w1": [job.id]}, 1)
    beat(store, "w1", running(job.id))
    (retired,) = watch.for_seconds(DEAD_AFTER + 3)
    assert retired.ran == (job.id,)


def test_a_silent_one_is_retired_after_the_time_and_not_before(store: Store, watch: Watch) -> None:
    on_the_roster(store, "w1")

    assert watch.for_seconds(DEAD_AFTER - 3) == []
    assert watch.for_seconds(6) == [Retired("w1", ran=(), released=0)]

    assert store.roster.read() == []
    assert watch.for_seconds(60) == []


def test_a_worker_that_declares_its_time_is_retired_after_that_time(store: Store, watch: Watch) -> None:
    """Given an observer with a shorter time and one with a longer time, the worker's own value counts for both."""
    on_the_roster(store, "patient", considered_dead_after=60.0)
    on_the_roster(store, "hasty", considered_dead_after=6.0)

    assert [each.worker for each in watch.for_seconds(9)] == ["hasty"]
    assert watch.for_seconds(45) == []
    assert [each.worker for each in watch.for_seconds(12)] == ["patient"]


def test_an_outage_retires_nobody(store: Store, watch: Watch) -> None:
    """Given an hour without MongoDB, when the watcher looks again, then workers have time to show life."""
    on_the_roster(store, "w1")
    watch.look()

    watch.clock.move(timedelta(hours=1))

    assert watch.look() == []
    beat(store, "w1", {})
    assert watch.for_seconds(DEAD_AFTER - 3) == []


def test_what_it_ran_counts_a_worker_death_and_what_it_held_is_free(store: Store, watch: Watch) -> None:
    """Given one running and two waiting jobs on one slot, when retired, then one counts a worker death, but no attempt
    and no crash."""
    ran, held, other = jobs = [a_job() for _ in range(3)]
    ids = insert(store, *jobs)
    on_the_roster(store, "w1", slots=1)
    store.roster.assign({"w1": ids}, 1)
    beat(store, "w1", running(ran.id))

    (retired,) = watch.for_seconds(DEAD_AFTER + 3)

    assert (retired.ran, retired.released) == ((ran.id,), 2)
    assert store.roster.held() == set()
    for each in (held, other):
        assert document(store, each.id) == job_document(each)
    again = store.scheduled.get(ran.id)
    assert again is not None
    assert (again.attempts, again.crashes, again.worker_deaths) == (0, 0, 1)
    (execution,) = again.executions
    assert (execution.crashed, execution.worker, execution.started_at) == (True, "w1", NOW)
    assert "w1 fell silent" in (execution.message or "")
    assert again.scheduled_at == ran.scheduled_at, "it keeps its place"


@pytest.mark.parametrize("policy", [RetryManyTimes(3, "10 minutes"), DoNotDoItAgain()], ids=lambda each: str(each)[:9])
def test_its_retry_policy_is_not_asked(store: Store, watch: Watch, policy: RetryPolicy) -> None:
    """The death of a worker is not a failure of the job, so no attempt and no delay is counted."""
    job = a_job(retry_policy=PolicyRegistry().dump(policy))

    lost_its_worker(store, watch, job)

    again = store.scheduled.get(job.id)
    assert again is not None
    assert (again.attempts, again.scheduled_at) == (0, job.scheduled_at)


def test_a_job_that_keeps_killing_its_worker_is_set_aside(store: Store, watch: Watch) -> None:
    job = a_job()
    insert(store, job)
    for number in range(MAX_WORKER_DEATHS):
        worker = on_the_roster(store, f"w{number}")
        assert store.roster.assign({worker: [job.id]}, 1)
        beat(store, worker, running(job.id))
        (retired,) = watch.for_seconds(DEAD_AFTER + 3)
        assert retired.ran == (job.id,)

    ended = store.archived.get(job.id)
    assert ended is not None
    assert (ended.why, ended.worker_deaths, ended.crashes, ended.attempts) == ("worker-died-too-many-times", 5, 0, 0)
    assert len(ended.executions) == 5
    assert ended.reason == "its whole worker died 5 times; the last time: worker w4 fell silent and was retired"
    assert places(store, [job.id]) == {job.id: "archived"}
    assert "after its whole worker died 5 times while it ran" in explain(store, job.id, NOW)


def test_an_at_most_once_job_is_lost_rather_than_run_again(store: Store, watch: Watch) -> None:
    """Given a job marked as started that its worker had not yet reported, when retired, then it is archived."""
    job = a_job(at_most_once=True)
    insert(store, job)
    on_the_roster(store, "w1")
    store.roster.assign({"w1": [job.id]}, 1)
    assert store.transactions.mark_started("w1", [job.id], NOW).may_start == {job.id}

    (retired,) = watch.for_seconds(DEAD_AFTER + 3)

    assert retired.ran == (job.id,)
    ended = store.archived.get(job.id)
    assert ended is not None
    assert (ended.why, ended.last_execution and ended.last_execution.started_at) == ("lost", NOW)


@pytest.mark.parametrize("option", ["debounced", "at_most_once"])
def test_a_job_without_the_mark_before_its_start_has_not_begun(store: Store, watch: Watch, option: str) -> None:
    """Given a worker that died before it marked a job, when it is retired, then the job is as before: a debounced job
    still takes the arguments of the next call."""
    job = a_job(**{option: True})
    insert(store, job)
    before = document(store, job.id)
    on_the_roster(store, "w1")
    store.roster.assign({"w1": [job.id]}, 1)

    (retired,) = watch.for_seconds(DEAD_AFTER + 3)

    assert (retired.worker, retired.ran) == ("w1", ())
    assert document(store, job.id) == before


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


class TestIsolation:
    def test_a_job_that_kills_its_worker_before_the_next_heartbeat_is_set_aside_and_the_others_run(
        self, store: Store, watch: Watch
    ) -> None:
        """Given two workers with four slots, and a job that kills whatever runs it before a heartbeat can tell, when
        rounds and deaths follow each other, then it alone is set aside, and the others were never held back by it."""
        poison, *innocent = jobs = [a_job(scheduled_at=NOW - timedelta(seconds=9 - n)) for n in range(4)]
        insert(store, *jobs)
        for death in range(MAX_WORKER_DEATHS):
            for name in ("a", "b"):
                on_the_roster(store, f"{name}{death}", slots=4)
            assign(store, 1, watch.clock.now())
            for held in store.roster.holders().values():
                assert sum(document(store, id).get("worker_deaths", 0) >= 2 for id in held) <= 1, "one on each worker"
            (killed,) = (worker for worker, held in store.roster.holders().items() if poison.id in held)
            for worker, held in store.roster.holders().items():
                if worker != killed:  # it ends its jobs and leaves
                    jobs_there = [job for id in held if (job := store.scheduled.get(id))]
                    settle(store, worker, [(job.id, done(job, worker)) for job in jobs_there], {})
                    store.roster.leave(worker)
            watch.for_seconds(DEAD_AFTER + 3)

        ended = store.archived.get(poison.id)
        assert ended is not None
        assert (ended.why, ended.worker_deaths) == ("worker-died-too-many-times", MAX_WORKER_DEATHS)
        for job in innocent:
            end = store.archived.get(job.id) or store.scheduled.get(job.id)
            assert end is not None
            assert (end.attempts, end.worker_deaths) <= (1, 2)

    def test_jobs_of_a_dead_worker_run_side_by_side_again(self, store: Store, watch: Watch) -> None:
        """Given a worker that ran four jobs and had forty more in its buffer, when it dies, then one round gives all of
        them to the next worker, which is not emptied for them."""
        jobs, other = [a_job() for _ in range(44)], a_job(scheduled_at=NOW - timedelta(hours=1))
        insert(store, *jobs)
        on_the_roster(store, "w1", slots=4, prefetch=100)
        assign(store, 1, watch.clock.now())
        beat(store, "w1", running(*(job.id for job in jobs[:4])))
        watch.for_seconds(DEAD_AFTER + 3)
        assert store.roster.held() == set()

        insert(store, other)
        on_the_roster(store, "w2", slots=4, prefetch=100)
        assign(store, 1, watch.clock.now())

        assert store.roster.held() == {other.id, *(job.id for job in jobs)}

    @pytest.mark.parametrize("deaths", [1, 2])
    def test_an_attempt_that_ends_by_itself_sets_the_count_back(self, deaths: int) -> None:
        job = a_job(worker_deaths=deaths, retry_policy=PolicyRegistry().dump(RetryManyTimes(3, 1)))
        assert job.lane == ("generic/add///isolated" if deaths == 2 else "generic/add")
        execution = Execution(NOW, NOW, "w1", exception="ValueError", message="no good")

        failed = outcomes.failed(job_document(job), execution, NOW, Retry(NOW))
        snoozed = outcomes.snoozed(job_document(job), NOW, NOW, "not yet")

        for outcome in (failed, snoozed):
            assert isinstance(outcome, Rescheduled)
            assert outcome.fields["lane"] == "generic/add"
            assert "worker_deaths" in outcome.updates[0].update["$unset"]
