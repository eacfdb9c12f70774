"""Limits, pauses and resources: what a round of the leader gives to whom, and what it holds back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.clock import StoppedClock
from recruiter.domain.job import JobId
from recruiter.errors import WorkerNotFound
from recruiter.steps.assign import Round, assign, recount
from recruiter.steps.lead import Leadership
from recruiter.store.database import Store
from recruiter.views.explain import explain
from tests.samples import NOW, a_job, insert, on_the_roster, running

DUE = NOW - timedelta(minutes=1)


class Fleet:
    """A leader, and workers that take what they are given and do nothing."""

    def __init__(self, store: Store, recruiter: Recruiter) -> None:
        self.store = store
        self.recruiter = recruiter
        self.controls = recruiter.controls
        self.clock = StoppedClock(NOW)
        recruiter.store.clock = self.clock
        self.lead = Leadership(store, self.clock, 5.0)
        assert self.lead.attend()

    def worker(self, name: str = "w1", **facts: Any) -> str:
        facts = {"prefetch": 0, "resources": "mem=8000,proc=8", "host": name, **facts}
        return on_the_roster(self.store, name, term=0, **facts)

    def jobs(self, count: int = 1, **options: Any) -> list[JobId]:
        return insert(self.store, *(a_job(created_at=DUE, scheduled_at=DUE, **options) for _ in range(count)))

    def round(self) -> Round:
        return assign(self.store, self.lead.term, self.clock.now(), self.store.limits.read())

    def held(self, worker: str | None = None) -> list[JobId]:
        holders = self.store.roster.holders()
        return holders[worker] if worker else [job for jobs in holders.values() for job in jobs]

    def finish(self, *jobs: JobId) -> None:
        for worker, held in self.store.roster.holders().items():
            mine = [job for job in jobs if job in held]
            if mine:
                self.store.roster.hand_back(worker, mine)
        self.store.scheduled.collection.delete_many({"_id": {"$in": list(jobs)}})

    def why(self, id: JobId) -> str:
        return explain(self.store, id, self.clock.now())


@pytest.fixture
def fleet(store: Store, target: str) -> Iterator[Fleet]:
    with Recruiter(target) as recruiter:
        assert recruiter.store
        yield Fleet(store, recruiter)


class TestLimits:
    def test_a_limit_that_is_set_while_more_run_lets_them_end(self, fleet: Fleet) -> None:
        fleet.worker(slots=4)
        jobs = fleet.jobs(6)
        fleet.round()
        assert len(fleet.held()) == 4
        fleet.controls.set_limit("task:add", 1)
        recount(fleet.store, fleet.lead.term, fleet.store.limits.read(), NOW)

        running = fleet.held()
        fleet.finish(*running[:3])
        fleet.round()
        assert fleet.held() == running[3:]
        fleet.finish(running[3])
        fleet.round()
        assert len(fleet.held()) == 1
        assert len(jobs) == 6

    def test_a_rate_over_the_change_of_a_leader(self, fleet: Fleet) -> None:
        fleet.worker(slots=100)
        fleet.controls.set_limit("task:add", count=3, per="1 minute")
        fleet.jobs(10)
        fleet.round()
        fleet.lead.resign()
        assert fleet.lead.attend()
        fleet.round()
        assert len(fleet.held()) == 3
        fleet.clock.move(timedelta(seconds=59))
        fleet.round()
        assert len(fleet.held()) == 3
        fleet.clock.move(timedelta(seconds=2))
        fleet.round()
        assert len(fleet.held()) == 6

    def test_a_document_that_somebody_wrote_by_hand_stops_nobody(self, fleet: Fleet) -> None:
        fleet.store.limits.collection.insert_many(
            [{"_id": "task:add", "at_once": None}, {"_id": "nonsense"}, {"_id": "starts:x", "log": [1, "a"]}]
        )
        fleet.worker()
        fleet.jobs(1)
        assert fleet.round().assigned == 1


class TestPauses:
    def test_a_worker_can_be_drained(self, fleet: Fleet) -> None:
        fleet.worker()
        fleet.controls.drain_worker("w1", by="ada", reason="maintenance")
        (job,) = fleet.jobs(1)
        fleet.round()
        assert fleet.held() == []
        assert "drained" in fleet.why(job)
        fleet.controls.resume_worker("w1")
        fleet.round()
        assert fleet.held() == [job]
        with pytest.raises(WorkerNotFound):
            fleet.controls.drain_worker("w9")


class TestBuffers:
    """What needs nothing is prefetched; a buffer that is always full must not keep the others from their turn."""

    SLOTS, PREFETCH = 2, 6

    @pytest.fixture(autouse=True)
    def worker(self, fleet: Fleet) -> None:
        fleet.worker(slots=self.SLOTS, prefetch=self.PREFETCH, tasks=["add", "other"])
        fleet.controls.set_limit("task:other", 1)

    def test_the_order_holds_on_every_kind_of_worker(self, fleet: Fleet) -> None:
        """Given older jobs that only others can take, then here those come first that are next here."""
        fleet.worker("w2", slots=1, tasks=["here", "limited"])
        fleet.controls.set_limit("task:limited", 1)
        fleet.jobs(50)
        times = [DUE + timedelta(seconds=number) for number in range(3)]
        here, special, later = insert(
            fleet.store,
            a_job(task="here", created_at=times[0], scheduled_at=times[0]),
            a_job(task="limited", created_at=times[1], scheduled_at=times[1]),
            a_job(task="here", created_at=times[2], scheduled_at=times[2]),
        )

        for expected in (here, special, later):
            fleet.round()
            assert fleet.held("w2") == [expected]
            fleet.finish(expected)


class TestExplain:
    def test_two_jobs_whose_workers_died_repeatedly_never_share_a_worker(self, fleet: Fleet) -> None:
        fleet.worker(slots=3)
        (first,) = fleet.jobs(1, worker_deaths=2)
        fleet.round()
        (job, other) = (*fleet.jobs(1), *fleet.jobs(1, worker_deaths=2))
        fleet.round()
        assert fleet.held() == [first, job]
        assert fleet.why(other).startswith(
            "its worker died repeatedly, and the one worker that serves it holds another"
        )

    def test_explain_tells_a_starting_job_from_a_running_one(self, fleet: Fleet) -> None:
        fleet.worker(slots=2)
        jobs = fleet.jobs(2)
        fleet.round()
        assert [fleet.why(job) for job in jobs] == ["starting on w1", "starting on w1"]
        fleet.store.roster.beat("w1", running(jobs[0]), within=20)
        assert fleet.why(jobs[0]).startswith("running on w1 for 0s")

    def test_explain_counts_only_due_jobs_that_come_first(self, fleet: Fleet) -> None:
        """Given a job, one that is more urgent and has come later, and one that a worker holds, then only the urgent
        one comes before it."""
        worker = fleet.worker(slots=9)
        (held,) = fleet.jobs(1)
        (job,) = fleet.jobs(1)
        insert(fleet.store, a_job(created_at=DUE, scheduled_at=DUE + timedelta(milliseconds=1), priority=5))
        assert fleet.store.roster.assign({worker: [held]}, 1)

        assert fleet.why(job) == "due, and nothing blocks it; 1 due job of its lane comes first"

    def test_when_the_next_may_start(self, fleet: Fleet) -> None:
        fleet.worker(slots=2)
        fleet.controls.set_limit("task:add", count=1, per="1m")
        jobs = fleet.jobs(2)
        fleet.clock.move(timedelta(milliseconds=980))
        fleet.round()
        (waiting,) = set(jobs) - set(fleet.held())
        assert fleet.why(waiting) == "task add may start 1 per 1m; the next one at 2030-01-01 12:01:01 UTC"
