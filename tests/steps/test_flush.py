"""Flush: every waiting job here and now, in the order of their time; only for those who are alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from recruiter import JobReport, Recruiter, RetryManyTimes
from recruiter.errors import NotAlone, RecruiterError, Superseded
from recruiter.store.database import Store
from tests.inbox import by_hand
from tests.samples import beat, document, marked_as_started, on_the_roster, places, running


@pytest.fixture
def note(recruiter: Recruiter) -> Any:
    @recruiter.task
    def note(name: str) -> str:
        return name

    return note


def test_a_job_to_be_tried_again_is_run_once_and_stays(recruiter: Recruiter, store: Store, note: Any) -> None:
    @recruiter.task(retry=RetryManyTimes(3, 0))
    def fail() -> None:
        raise ValueError("no good")

    handle = fail.enqueue()
    note.enqueue("a")

    first = recruiter.flush_jobs_synchronously()
    waiting = document(store, handle.id)
    second = recruiter.flush_jobs_synchronously()

    assert [(report.task, report.done) for report in first] == [("fail", False), ("note", True)]
    assert first[0] == JobReport(
        handle.id, "fail", done=False, error="ValueError: no good", next_at=waiting["scheduled_at"]
    )
    assert waiting["attempts"] == 1
    assert [report.id for report in second] == [handle.id]


def test_documents_of_other_programs_are_adopted_and_unknown_tasks_left(
    recruiter: Recruiter, store: Store, note: Any
) -> None:
    by_hand(
        store,
        {"_id": 1, "task": "note", "args": {"name": "by hand"}},
        {"_id": 2, "task": "nobody_knows"},
        {"_id": 3, "task": 7},
    )

    reports = {report.id: report for report in recruiter.flush_jobs_synchronously()}

    assert reports[1].result == "by hand"
    assert reports[2].error == "UnknownTask: no task 'nobody_knows' is registered here"
    assert (reports[3].why, reports[3].done) == ("malformed", False)
    assert places(store, [1, 2, 3]) == {1: "archived", 2: "scheduled", 3: "archived"}
    assert document(store, 2)["attempts"] == 0


def test_an_at_most_once_job_is_marked_before_it_starts_and_never_started_twice(
    recruiter: Recruiter, store: Store
) -> None:
    marks: list[Any] = []

    @recruiter.task(at_most_once=True)
    def once() -> None:
        marks.extend(job.get("started_by") for job in store.scheduled.collection.find({"task": "once"}))

    fresh = once.enqueue()
    (first,) = recruiter.flush_jobs_synchronously()
    started_before = once.enqueue()
    marked_as_started(store, "somebody", started_before.id)
    (second,) = recruiter.flush_jobs_synchronously()

    assert (first.id, first.done) == (fresh.id, True)
    assert len(marks) == 1
    assert marks[0] is not None
    assert (second.id, second.why) == (started_before.id, "lost")


def test_jobs_that_enqueue_each_other_without_end_are_stopped(recruiter: Recruiter, store: Store) -> None:
    @recruiter.task
    def again() -> None:
        again.job().schedule_in("1 day").execute()

    again.enqueue()

    with pytest.raises(RecruiterError, match="without end"):
        recruiter.flush_jobs_synchronously(most=5)

    assert store.archived.collection.count_documents({}) == 5
    assert store.roster.entries() == []


@contextmanager
def going_on(step: Callable[[], Any]) -> Iterator[None]:
    """Somebody who shows life while the block runs."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(0.02):
            step()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_it_refuses_beside_a_recruiter(recruiter: Recruiter, store: Store, note: Any) -> None:
    handle = note.enqueue("a")
    store.leases.acquire(None, "somebody", {"host": "there", "pid": 42})

    with (
        going_on(lambda: store.leases.renew(1, "somebody")),
        pytest.raises(NotAlone, match=r"a recruiter is running on there, process 42, .* stop it, or use a separate"),
    ):
        recruiter.flush_jobs_synchronously()

    assert document(store, handle.id)["attempts"] == 0
    assert store.leases.renew(1, "somebody")


def test_it_refuses_beside_a_worker(recruiter: Recruiter, store: Store, note: Any) -> None:
    handle = note.enqueue("a")
    on_the_roster(store, "w1", term=0)

    with going_on(lambda: beat(store, "w1", {})), pytest.raises(NotAlone, match="worker w1 is running"):
        recruiter.flush_jobs_synchronously()

    assert document(store, handle.id)["attempts"] == 0
    assert [entry.id for entry in store.roster.entries()] == ["w1"]


def test_a_flush_first_rescues_the_jobs_of_dead_workers(
    recruiter: Recruiter, store: Store, note: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the lease of a leader that was killed, and a worker that was killed with a job running
    monkeypatch.setenv("RECRUITER_LEASE_TIME", "1s")
    monkeypatch.setenv("RECRUITER_HEARTBEAT", "200ms")
    monkeypatch.setenv("RECRUITER_CONSIDERED_DEAD_AFTER", "1s")
    handle = note.enqueue("a")
    store.leases.acquire(None, "somebody", {"host": "there", "pid": 42})
    on_the_roster(store, "w1", term=1, considered_dead_after=1.0)
    store.roster.assign({"w1": [handle.id]}, term=1)
    beat(store, "w1", running(handle.id))

    # then the flush waits until both are certain to be dead, and runs the job as its second attempt
    (report,) = recruiter.flush_jobs_synchronously()

    assert report.done
    ended = store.archived.get(handle.id)
    assert ended is not None
    assert [execution.crashed for execution in ended.executions] == [True, False]


def test_it_stops_when_somebody_takes_the_lead(recruiter: Recruiter, store: Store, note: Any) -> None:
    @recruiter.task
    def take_over() -> None:
        lease = store.leases.read()
        assert lease is not None
        taken = store.leases.acquire(lease, "somebody", {})
        assert taken is not None
        store.roster.raise_term(taken.term)

    first = take_over.enqueue()
    second = note.enqueue("a")

    with pytest.raises(Superseded):
        recruiter.flush_jobs_synchronously()

    assert places(store, [first.id, second.id]) == {first.id: "archived", second.id: "scheduled"}
    assert store.roster.entries() == []
