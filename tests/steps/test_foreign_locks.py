"""Jobs that a user's open transaction has written: everything else goes on without them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pymongo.client_session import ClientSession

from recruiter.clock import StoppedClock
from recruiter.domain.job import Job, JobId
from recruiter.errors import DocumentLocked
from recruiter.processes.worker.fetcher import mark_started
from recruiter.processes.worker.held_job import HeldJob
from recruiter.steps.cancel import archive_cancelled
from recruiter.steps.settle import settle
from recruiter.store.database import Store
from tests.samples import NOW, a_job, done, insert, on_the_roster, places

SOON = 6.0
"""Seconds: a transaction was repeated for thirty."""


@pytest.fixture
def foreign(store: Store) -> Iterator[ClientSession]:
    """A session of the user's own, with an open transaction."""
    with store.scheduled.collection.database.client.start_session() as session, session.start_transaction():
        yield session


def write(store: Store, job: Job, session: ClientSession) -> None:
    """As `signal(session=…)` and a debounce in a session do."""
    assert store.scheduled.collection.update_one({"_id": job.id}, {"$set": {"x": 1}}, session=session).matched_count


@pytest.mark.parametrize("locked", [0, 4, 8])
def test_the_other_jobs_of_a_worker_are_settled(store: Store, foreign: ClientSession, locked: int) -> None:
    jobs = [a_job() for _ in range(9)]
    ids = insert(store, *jobs)
    on_the_roster(store, "w1")
    store.roster.assign({"w1": ids}, 1)
    write(store, jobs[locked], foreign)
    outcomes, left = [(job.id, done(job)) for job in jobs], list[JobId]()
    began = time.monotonic()

    holding = settle(store, "w1", outcomes, {}, on_locked=left.append)

    assert time.monotonic() - began < SOON
    assert left == [ids[locked]]
    assert holding.assigned == [ids[locked]]
    assert places(store, ids) == {id: "scheduled" if id in left else "archived" for id in ids}
    with pytest.raises(DocumentLocked):
        settle(store, "w1", [outcomes[locked]], {})
    foreign.abort_transaction()
    settle(store, "w1", outcomes, {})
    assert places(store, ids) == dict.fromkeys(ids, "archived")


def test_the_other_cancelled_jobs_are_archived(store: Store, foreign: ClientSession) -> None:
    jobs = [a_job() for _ in range(5)]
    ids = insert(store, *jobs)
    for job in jobs:
        store.scheduled.flag_cancelled(job.id, NOW, None, None)
    lease = store.leases.acquire(None, "me", {})
    assert lease is not None
    write(store, jobs[2], foreign)
    began = time.monotonic()

    ended = archive_cancelled(store, StoppedClock(NOW), lease.term, "me")

    assert time.monotonic() - began < SOON
    assert set(ended) == {id for id in ids if id != ids[2]}
    assert places(store, ids) == {id: "scheduled" if id == ids[2] else "archived" for id in ids}


def test_the_other_debounced_and_at_most_once_jobs_start(store: Store, foreign: ClientSession) -> None:
    jobs = [a_job(debounced=True), a_job(at_most_once=True), a_job(debounced=True)]
    ids = insert(store, *jobs)
    on_the_roster(store, "w1")
    store.roster.assign({"w1": ids}, 1)
    write(store, jobs[0], foreign)
    began = time.monotonic()

    fetched = [HeldJob.read(id, raw) for id, raw in store.scheduled.fetch(ids)]
    marked = mark_started(store, "w1", fetched, NOW)

    assert time.monotonic() - began < SOON
    assert marked.may_start == set(ids[1:])
