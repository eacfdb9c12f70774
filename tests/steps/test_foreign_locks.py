"""Jobs that a user's open transaction has written: everything else goes on without them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from pymongo.client_session import ClientSession
from pymongo.collection import Collection

from recruiter import EveryMinutes, Recruiter, Step
from recruiter.clock import StoppedClock
from recruiter.domain.job import Job, JobId
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import DocumentLocked
from recruiter.processes.worker.fetcher import mark_started
from recruiter.processes.worker.held_job import HeldJob
from recruiter.steps.adopt import adopt
from recruiter.steps.cancel import archive_cancelled
from recruiter.steps.clean import clean, clean_unique_keys, forget_flows
from recruiter.steps.lead import Leadership
from recruiter.steps.repeat import repeat
from recruiter.steps.rescue import Rescue, Retired
from recruiter.steps.settle import settle
from recruiter.store.collections.scheduled import ProgressMark
from recruiter.store.database import Store
from tests.flows import Stage
from tests.samples import NOW, a_job, beat, document, done, hold, insert, on_the_roster, places, running

SOON = 15.0
"""Seconds: a transaction was repeated for thirty, and a plain write waited for sixty."""
DAY = timedelta(days=1)


@pytest.fixture
def foreign(store: Store) -> Iterator[ClientSession]:
    """A session of the user's own, with an open transaction."""
    with store.scheduled.collection.database.client.start_session() as session:
        session.start_transaction()
        yield session


def write(store: Store, job: Job | Step[Any], session: ClientSession) -> None:
    """As `signal(session=…)` and a debounce in a session do."""
    lock(store.scheduled.collection, job.id, session)


def lock(collection: Collection[Any], id: Any, session: ClientSession) -> None:
    theirs = session.client[collection.database.name][collection.name]
    assert theirs.update_one({"_id": id}, {"$set": {"x": 1}}, session=session).matched_count


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


# -- plain writes, which MongoDB lets wait for the transaction ---------------------------------------------------------


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("dependency", ["after", "after_any"])
def test_a_flow_with_a_locked_step_stops_no_other_flow(stage: Stage, foreign: ClientSession, dependency: str) -> None:
    """Given two flows, and a transaction that has written a step of one, when their first steps end, then the steps of
    the other are released, and the locked step when the transaction has ended."""
    second = []
    for _ in range(2):
        flow = stage.recruiter.flow("f")
        first = flow.add("work", "first")
        before: dict[str, Any] = {dependency: [first]}
        second += [flow.add("work", "second", **before)]
        flow.start()
        stage.run(first.id)
    write(stage.store, second[0], foreign)

    with soon():
        reports = stage.look()

    assert stage.ready() == [second[1].id]
    assert [type(error) for _, error in reports.broken] == [DocumentLocked]
    foreign.abort_transaction()
    stage.settle_down()
    assert set(stage.ready()) == {step.id for step in second}


def test_the_other_steps_of_a_flow_with_a_locked_step_are_released(stage: Stage, foreign: ClientSession) -> None:
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    others = [flow.add("work", str(number), after=first) for number in range(7)]
    flow.start()
    stage.run(first.id)
    write(stage.store, others[3], foreign)

    with soon():
        stage.look()

    assert set(stage.ready()) == {step.id for step in others} - {others[3].id}


@pytest.mark.parametrize("change", ["pause", "cancel"])
def test_a_flow_with_a_locked_step_is_paused_and_cancelled(stage: Stage, foreign: ClientSession, change: str) -> None:
    """Given a transaction that has written one of the steps, when the flow is paused or cancelled, then the call
    returns, no other step is ready, and the leader completes it when the transaction has ended."""
    flow = stage.recruiter.flow("f")
    steps = [flow.add("work", str(number)) for number in range(5)]
    handle = flow.start()
    write(stage.store, steps[2], foreign)

    with soon():
        getattr(handle, change)()
        stage.look()

    assert stage.ready() == [steps[2].id]
    foreign.abort_transaction()
    stage.settle_down()
    assert stage.ready() == []


def test_the_other_foreign_documents_are_adopted(store: Store, foreign: ClientSession) -> None:
    ids = [store.scheduled.collection.insert_one({"task": "add", "args": [1, 2]}).inserted_id for _ in range(5)]
    lock(store.scheduled.collection, ids[1], foreign)
    lease = store.leases.acquire(None, "me", {})
    assert lease is not None

    with soon():
        adoption = adopt(store, lease.term, "me", store.clock.now())

    assert adoption.adopted == 4
    assert {id for id in ids if document(store, id).get("lane")} == set(ids) - {ids[1]}


def test_progress_of_the_other_jobs_is_written(store: Store, foreign: ClientSession) -> None:
    jobs = [a_job() for _ in range(5)]
    ids = insert(store, *jobs)
    write(store, jobs[1], foreign)
    marks = [ProgressMark(id, 0, None, "w1", NOW, {}) for id in ids]

    with soon():
        store.scheduled.mark_progress(marks)
        assert {id for id in ids if document(store, id).get("locked_by")} == set(ids) - {ids[1]}
        store.scheduled.clear_progress(marks)

    assert not any(document(store, id).get("locked_by") for id in ids)


def test_the_cleaner_removes_the_other_jobs(store: Store, foreign: ClientSession) -> None:
    """The transaction may have recovered one of them."""
    jobs = [a_job() for _ in range(5)]
    ids = hold(store, *jobs)
    settle(store, "w1", [(job.id, done(job)) for job in jobs], {})
    lock(store.archived.collection, ids[1], foreign)

    with soon():
        clean(store, NOW + 2 * DAY, DAY)

    assert store.archived.which_exist(ids) == {ids[1]}


def test_the_cleaner_forgets_the_other_flows(stage: Stage, foreign: ClientSession) -> None:
    handles = []
    for _ in range(3):
        flow = stage.recruiter.flow("f")
        step = flow.add("work", "a")
        handles.append(flow.start())
        stage.run(step.id)
    stage.settle_down()
    flows = stage.store.flows
    lock(flows.collection, handles[0].id, foreign)

    with soon():
        forget_flows(stage.store, stage.store.clock.now() + 2 * DAY, DAY)

    assert flows.which_exist(handle.id for handle in handles) == {handles[0].id}


def test_the_cleaner_forgets_the_other_unique_keys(recruiter: Recruiter, foreign: ClientSession) -> None:
    store = recruiter.store
    for number in range(3):
        recruiter.job("work", [number]).unique(key=str(number)).enqueue()
    keys = store.unique_keys.collection
    store.scheduled.collection.delete_many({})
    locked = keys.find_one({})
    assert locked is not None
    lock(keys, locked["_id"], foreign)

    with soon():
        clean_unique_keys(store, store.clock.now() + 10_000 * DAY)

    assert [key["_id"] for key in keys.find({})] == [locked["_id"]]


def test_a_dead_worker_with_a_locked_job_is_retired(store: Store, foreign: ClientSession) -> None:
    """Its jobs are free, also the job that the transaction has written."""
    clock = StoppedClock(NOW)
    jobs = [a_job(), a_job()]
    ids = hold(store, *jobs)
    beat(store, "w1", running(*ids))
    write(store, jobs[0], foreign)
    rescue = Rescue(store, clock, 15.0, PolicyRegistry())
    retired: list[Retired] = []

    with soon():
        for _ in range(7):
            retired += rescue.retire_silent(store.roster.read())
            clock.move(timedelta(seconds=3))

    assert [worker.worker for worker in retired] == ["w1"]
    assert store.roster.held() == set()
    assert places(store, ids) == dict.fromkeys(ids, "scheduled")


def test_a_child_that_noted_its_session_late_delays_no_rescue(store: Store, foreign: ClientSession) -> None:
    """Given a dead worker whose child noted its session after the leader read the roster, and has written the job in
    a transaction, when the worker is retired, then the session is ended and the worker death is counted."""
    clock = StoppedClock(NOW)
    job = a_job()
    hold(store, job)
    beat(store, "w1", running(job.id))
    rescue = Rescue(store, clock, 15.0, PolicyRegistry())
    roster = store.roster.read()
    for _ in range(5):
        rescue.retire_silent(roster)
        clock.move(timedelta(seconds=3))
    store.roster.note_sessions("w1", 1, [foreign.session_id["id"].as_uuid()])
    write(store, job, foreign)

    with soon():
        retired = rescue.retire_silent(roster)

    assert [worker.worker for worker in retired] == ["w1"]
    assert document(store, job.id)["worker_deaths"] == 1


def test_the_other_schedulers_make_their_occurrences(recruiter: Recruiter, foreign: ClientSession) -> None:
    """Given two schedulers that replace an occurrence that has not ended, and a transaction that has written one of
    these jobs, when the next occurrences are due, then the other scheduler makes its job."""
    store, clock = recruiter.store, StoppedClock(NOW)
    store.clock = clock
    lead = Leadership(store, clock, 5.0)
    assert lead.attend()
    for urn in ("one", "other"):
        recruiter.job("tick").repeat_with_policy(EveryMinutes(10)).with_urn(urn).replacing().create()
    clock.move(timedelta(minutes=10))
    repeat(store, recruiter.schedules, lead.term, lead.holder, clock.now())
    first = store.scheduled.waiting()
    clock.move(timedelta(minutes=10))
    write(store, next(job for job in first if job.urn == "one"), foreign)

    with soon():
        made = repeat(store, recruiter.schedules, lead.term, lead.holder, clock.now())

    assert (made.made, made.locked) == (1, True)
    assert sorted(str(job.urn) for job in store.scheduled.waiting()) == ["one", "other", "other"]
