"""The next due jobs of more lanes than one query merges are those of all lanes together, whatever is held."""

from __future__ import annotations

import random
from datetime import timedelta
from uuid import UUID

import pytest
from bson import ObjectId

from recruiter.domain.job import Job, JobId
from recruiter.store.collections import due_jobs
from recruiter.store.database import Store
from tests.depth import examples
from tests.samples import NOW, a_job, insert

LANES, PART = 17, 3


def _jobs(chance: random.Random) -> list[Job]:
    """Most in a few lanes, of few priorities, some at the same time, some later than now; ids of all kinds."""
    jobs = []
    for number in range(chance.choice((5, 60, 200))):
        id: JobId = chance.choice((ObjectId(), ObjectId(), number, f"job {number}", UUID(int=number)))
        lane = int(LANES * chance.random() ** chance.choice((1, 3)))
        at = NOW - timedelta(seconds=chance.randint(-10, 30))
        jobs.append(a_job(id, group=f"g{lane}", priority=chance.choice((0, 0, 0, 5, -3, 2.5)), scheduled_at=at))
    return jobs


def _rank(job: Job) -> tuple[float, float]:
    return -job.priority, job.scheduled_at.timestamp()


@pytest.mark.parametrize("seed", range(examples(40)))
def test_it_is_what_sorting_all_of_them_gives(store: Store, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(due_jobs, "MAX_LANES_PER_QUERY", PART)
    monkeypatch.setattr(due_jobs, "_SPARE_JOBS_PER_QUERY", 1)
    chance = random.Random(seed)
    jobs = {job.id: job for job in _jobs(chance)}
    insert(store, *jobs.values())
    lanes = [f"g{number}/add" for number in range(LANES)]
    chance.shuffle(lanes)
    in_order = sorted((job for job in jobs.values() if job.scheduled_at <= NOW), key=_rank)
    some = chance.sample(list(jobs), len(jobs) // 4)
    for held in (set[JobId](), set(some), {job.id for job in in_order[: len(in_order) // 2]}):
        free = [job for job in in_order if job.id not in held]
        for limit in (1, 7, 40, 500):
            found = store.due_jobs.due(lanes, NOW, limit, held)

            assert [_rank(jobs[id]) for id in found] == [_rank(job) for job in free[:limit]]
            assert len(set(found)) == len(found)
            assert held.isdisjoint(found)
            assert not found.unreadable


def test_jobs_that_cannot_be_read_hide_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a lane that begins with documents whose `_id` is no id, then the jobs behind them are found."""
    monkeypatch.setattr(due_jobs, "MAX_LANES_PER_QUERY", PART)
    early = NOW - timedelta(hours=1)
    insert(store, *(a_job(group=f"g{number}", scheduled_at=early) for number in range(30)))
    for document in list(store.scheduled.collection.find()):
        spoilt = {**document, "_id": {"no": document["_id"]}}
        store.scheduled.collection.insert_one(spoilt, bypass_document_validation=True)
    good = insert(store, *(a_job(group=f"g{number}") for number in range(LANES)))

    found = store.due_jobs.due([f"g{number}/add" for number in range(LANES)], NOW, 100, set())

    assert len(found) == 2 * LANES
    assert set(good) <= set(found)
    assert len(found.unreadable) == LANES
