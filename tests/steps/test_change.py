"""Changing waiting jobs: another time, another priority, and who may be in the way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from recruiter import InvalidJob, JobNotWaiting, Recruiter
from recruiter.domain.job import JobId
from recruiter.processes.worker.held_job import HeldJob
from recruiter.store.database import Store
from tests.samples import document, give


@pytest.fixture
def id(recruiter: Recruiter) -> JobId:
    """A job that is due tomorrow."""
    return recruiter.job("add").schedule_in("1 day").enqueue().id


@pytest.fixture
def due(recruiter: Recruiter) -> JobId:
    return recruiter.job("add").enqueue().id


def changes_of(recruiter: Recruiter, id: JobId) -> list[Callable[[], None]]:
    return [
        lambda: recruiter.reschedule(id, in_="1h"),
        lambda: recruiter.run_now(id),
        lambda: recruiter.reprioritise(id, 3),
    ]


def test_a_job_that_a_worker_holds_is_refused(recruiter: Recruiter, store: Store, due: JobId) -> None:
    """Given a job that a worker holds, when it is changed in any way, then that is refused and nothing is written."""
    give(store, due)
    before = document(store, due)

    for change in changes_of(recruiter, due):
        with pytest.raises(JobNotWaiting, match="worker w1 holds job"):
            change()

    assert document(store, due) == before
    assert recruiter.jobs.reschedule(task="add", in_="1h") == 0


def assigned_meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Acts after the change was written, before its caller looks at the roster again."""
    held, calls = store.roster.held, list[None]()

    def look() -> set[JobId]:
        calls.append(None)
        if len(calls) == 2:
            act()
        return held()

    monkeypatch.setattr(store.roster, "held", look)


def test_a_change_is_undone_when_a_worker_takes_the_job_in_this_moment(
    recruiter: Recruiter, due: JobId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given that the leader had found the job before its time was changed, when it assigns the job before the call has
    returned, then the worker may have read the old time: the call is refused and the old time is restored."""
    store = recruiter.store
    after_a_retry = {"expires_in": 3600.0, "expires_at": recruiter.clock.now().replace(microsecond=0)}
    store.scheduled.collection.update_one({"_id": due}, {"$set": after_a_retry})
    before = document(store, due)
    assigned_meanwhile(store, monkeypatch, lambda: give(store, due))

    with pytest.raises(JobNotWaiting, match="worker w1 holds"):
        recruiter.reschedule(due, in_="1 hour")

    after = document(store, due)
    assert {**after, "postponed": None} == {**before, "postponed": None}
    assert not after["postponed"]


def test_a_change_is_refused_when_the_job_ran_in_this_moment(
    recruiter: Recruiter, due: JobId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a job that a worker took, ran and put back for a retry while the call was on its way, then the call is not
    acknowledged, and the time of the retry stays."""
    store = recruiter.store
    retry = recruiter.clock.now().replace(microsecond=0) + timedelta(seconds=30)
    settled = {"$set": {"attempts": 1, "scheduled_at": retry}}
    assigned_meanwhile(store, monkeypatch, lambda: store.scheduled.collection.update_one({"_id": due}, settled))

    with pytest.raises(JobNotWaiting, match="just"):
        recruiter.reschedule(due, in_="1 hour")

    assert recruiter.find(due).scheduled_at == retry


def test_a_worker_hands_back_a_job_that_was_put_off_after_the_leader_found_it(
    recruiter: Recruiter, store: Store, due: JobId
) -> None:
    recruiter.reschedule(due, in_="1 hour")
    ((_, raw),) = store.scheduled.fetch([due])

    now = recruiter.clock.now()
    assert HeldJob.read(due, raw).is_postponed(now)
    assert not HeldJob.read(due, raw).is_postponed(now + timedelta(hours=2))


def test_a_job_of_another_program_that_is_not_adopted_is_refused(recruiter: Recruiter, store: Store) -> None:
    store.scheduled.collection.insert_one({"_id": "mine", "task": "add", "args": {}})

    with pytest.raises(JobNotWaiting, match="not adopted yet"):
        recruiter.reschedule("mine", in_="1h")


def test_a_blocked_step_is_refused(recruiter: Recruiter) -> None:
    flow = recruiter.flow("two")
    first = flow.add(recruiter.job("add"))
    second = flow.add(recruiter.job("add"), after=first)
    flow.start()

    for change in changes_of(recruiter, second.id):
        with pytest.raises(JobNotWaiting, match="waits for other steps of its flow"):
            change()
    recruiter.reschedule(first.id, in_="1h")


def test_jobs_are_changed_by_a_filter_each_once(recruiter: Recruiter) -> None:
    """Given more jobs than fit on a page, when they are moved behind each other, then each is changed once."""
    recruiter.job("other").schedule_in("1 day").enqueue()
    for number in range(600):
        recruiter.job("add", [number]).tagged_as("mine").schedule_in(f"{number} minutes").enqueue()

    assert recruiter.jobs.reprioritise(tag="mine", priority=-5) == 600
    assert recruiter.jobs.reschedule(tag="mine", in_="2 days", by="ada") == 600
    assert recruiter.jobs.run_now(tag="mine") == 600
    assert recruiter.jobs.run_now(tag="mine") == 0

    assert all(len(job.history) == 3 for job in recruiter.jobs.iterate(tag="mine"))
    assert recruiter.jobs.count(task="other", state="postponed").number == 1


def test_the_history_is_bounded(recruiter: Recruiter, id: JobId) -> None:
    for number in range(1, 60):
        recruiter.reprioritise(id, number)

    history = recruiter.find(id).history
    assert len(history) == 50
    assert history[-1].new == 59


def test_a_job_gets_another_priority(recruiter: Recruiter, id: JobId) -> None:
    recruiter.reprioritise(id, 7.5, by="ada")
    recruiter.reprioritise(id, 7.5, by="bob")

    job = recruiter.find(id)
    assert job.priority == 7.5
    assert [(entry.what, entry.by, entry.old, entry.new) for entry in job.history] == [("reprioritised", "ada", 0, 7.5)]


def test_run_now_leaves_a_due_job_as_it_is(recruiter: Recruiter, due: JobId) -> None:
    before = recruiter.find(due)

    recruiter.run_now(due)

    assert recruiter.find(due) == before


def test_a_relative_expiry_moves_with_the_job_and_a_fixed_one_refuses(recruiter: Recruiter) -> None:
    relative = recruiter.job("add").expires_in("10 minutes").enqueue().id
    fixed = recruiter.job("add").expires_at(recruiter.clock.now() + timedelta(minutes=10)).enqueue().id

    recruiter.reschedule(relative, in_="1 hour")
    job = recruiter.find(relative)
    assert job.expires_at == job.scheduled_at + timedelta(minutes=10)

    with pytest.raises(InvalidJob, match="expires at"):
        recruiter.reschedule(fixed, in_="1 hour")
    recruiter.reschedule(fixed, in_="5 minutes")
    assert recruiter.jobs.reschedule(task="add", in_="1 hour") == 1
