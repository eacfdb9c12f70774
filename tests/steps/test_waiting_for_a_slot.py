"""A job with a limit, of which one may run, among ordinary ones that are prefetched: no worker runs dry for it."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice

import pytest

from recruiter.domain.job import Job, JobId
from recruiter.domain.planning.limits import Limit
from recruiter.steps.assign import assign
from recruiter.steps.settle import settle
from recruiter.store.database import Store
from tests.samples import NOW, a_job, done, insert, on_the_roster

WORKERS, SLOTS, PREFETCH = ("w1", "w2"), 2, 30
A_ROUND = 10
"""Jobs that a worker ends between two rounds of the leader."""
ROUNDS = 12


class Fleet:
    """Workers that end as many jobs as they can between two rounds."""

    def __init__(self, store: Store, *jobs: Job) -> None:
        self._store = store
        self._jobs = {job.id: job for job in jobs}
        insert(store, *jobs)
        for worker in WORKERS:
            on_the_roster(store, worker, tasks=["t", "v"], slots=SLOTS, prefetch=PREFETCH)
        self.idle = 0
        """Turns in which a worker could have ended another job, and held none."""
        self.ended: list[str] = []

    def held(self, worker: str) -> list[JobId]:
        holding = self._store.roster.holding(worker)
        assert holding is not None
        return list(holding.assigned)

    def work(self) -> None:
        for _ in range(ROUNDS):
            assign(self._store, 1, NOW, self._store.limits.read())
            for worker in WORKERS:
                turn = [self._jobs[id] for id in islice(self.held(worker), A_ROUND)]
                self.idle += A_ROUND - len(turn)
                self.ended += [job.task for job in turn]
                settle(self._store, worker, [(job.id, done(job)) for job in turn], {})


def at(place: int, task: str) -> Job:
    moment = NOW - timedelta(hours=1) + timedelta(seconds=place)
    return a_job(task=task, created_at=moment, scheduled_at=moment)


@pytest.mark.parametrize("every", [1000, 50, 10], ids=lambda every: f"one of {every}")
def test_it_takes_no_work_from_the_others(store: Store, every: int) -> None:
    """Given ordinary jobs, some of them with a limit among them, then no worker runs dry."""
    store.limits.set(Limit("task:v", 1), None, NOW)
    fleet = Fleet(store, *(at(place, "v" if place % every == 0 else "t") for place in range(400)))

    fleet.work()

    assert fleet.idle == 0
    assert fleet.ended.count("v") >= min(4, 400 // every)


def test_even_if_all_of_them_come_first(store: Store) -> None:
    store.limits.set(Limit("task:v", 1), None, NOW)
    fleet = Fleet(store, *(at(place, "v") for place in range(50)), *(at(place, "t") for place in range(50, 400)))

    fleet.work()

    assert fleet.idle == 0
