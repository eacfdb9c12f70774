"""Callers that enqueue together: what happens to one of them is none of the others' business."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.errors import JobTimedOut, StoreError
from recruiter.steps.enqueue import Enqueuer
from recruiter.store.database import Store
from tests.conftest import eventually
from tests.prepared import connected
from tests.samples import a_job
from tests.threads import JobThread

__all__ = ["connected"]


class Held:
    """A write that is held up until it may go on."""

    def __init__(self, insert: Callable[..., dict[int, str]]) -> None:
        self._insert = insert
        self.writing = threading.Semaphore(0)
        self.may_go = threading.Semaphore(0)

    def __call__(self, *args: Any) -> dict[int, str]:
        self.writing.release()
        assert self.may_go.acquire(timeout=20)
        return self._insert(*args)


@pytest.fixture
def held(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(store.scheduled.insert)
    monkeypatch.setattr(store.scheduled, "insert", held)
    yield held
    for _ in range(10):
        held.may_go.release()


def test_the_timeout_of_one_job_is_not_raised_in_the_calls_of_others(store: Store, held: Held) -> None:
    """Given three jobs that enqueue together, when the time of the one that came first is over while the others wait
    for the same write, then only that one hears of it, and the jobs of the others are stored."""
    enqueuer = Enqueuer(store)
    first = JobThread(lambda: enqueuer.one(a_job("first")))
    assert held.writing.acquire(timeout=20)
    late = JobThread(lambda: enqueuer.one(a_job("late")))
    others = [JobThread(partial(enqueuer.one, a_job(id))) for id in ("a", "b")]

    held.may_go.release()
    assert held.writing.acquire(timeout=20)
    late.interruptible.interrupt(JobTimedOut("the time of this one is over"))
    for _ in range(3):
        held.may_go.release()
    for job in (first, late, *others):
        job.join(20)

    assert isinstance(late.raised, JobTimedOut)
    assert [job.raised for job in (first, *others)] == [None, None, None]
    assert store.scheduled.which_exist(["first", "a", "b"]) == {"first", "a", "b"}


# Python may throw the interruption into a thread that its target has just started, and that one says so and dies.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whoever_is_interrupted_at_any_point_leaves_the_others_able_to_enqueue(store: Store) -> None:
    """Given jobs whose time is over at any instruction of their enqueue, then a later call still returns."""
    for number in range(150):
        enqueuer = Enqueuer(store)
        job = JobThread(partial(_enqueue_some, enqueuer, number))
        threading.Event().wait(number / 100_000)
        job.interruptible.interrupt(JobTimedOut("over"))
        later = JobThread(partial(enqueuer.one, a_job(f"later {number}")))
        job.join(20)
        later.join(20)
        enqueuer.close()

        assert not job.is_alive()
        assert not later.is_alive()
        assert later.raised is None
    assert store.scheduled.exists("later 149")


def test_the_writing_thread_ends_with_the_connection(recruiter: Recruiter) -> None:
    task = recruiter.task(_note)
    task.enqueue("x")
    writing = recruiter._enqueuer._thread
    eventually(lambda: writing.alive)

    recruiter.close()

    eventually(lambda: not writing.alive)
    assert recruiter.find(task.enqueue("y").id).args == {"text": "y"}


def test_a_call_that_comes_after_closing_does_not_hang(target: str, store: Store) -> None:
    assert store.database.name in target
    enqueuer = Enqueuer(store)
    enqueuer.one(a_job("a"))
    enqueuer.close()
    store.close()

    late = JobThread(lambda: enqueuer.one(a_job("b")))
    late.join(10)

    assert isinstance(late.raised, StoreError)


def _enqueue_some(enqueuer: Enqueuer, number: int) -> None:
    for each in range(3):
        enqueuer.one(a_job(f"{number}-{each}"))


def _note(text: str) -> str:
    return text
