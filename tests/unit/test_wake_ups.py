"""Each transition of a job wakes the thread that does the next one, and the core wires each wake-up to its thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from recruiter.domain.job import JobId
from recruiter.events import Event, Events
from recruiter.processes.worker.core import WorkerCore
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.held_jobs import HeldJobs, WakeUps
from recruiter.settings import Settings
from recruiter.store.codec import encode, job_document
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.store.roster_fields import Holding
from tests.samples import a_job, done


def a_held_job(id: JobId, **changes: Any) -> HeldJob:
    return HeldJob.read(id, encode(job_document(a_job(id, **changes))))


class Threads:
    def __init__(self) -> None:
        self.woken: list[str] = []
        names = ("fetcher", "runner", "settler", "progress_writer")
        wake_ups = WakeUps(**{name: self._wake(name) for name in names})
        self.held_jobs = HeldJobs("w1", wake_ups)

    def _wake(self, name: str) -> Callable[[], None]:
        return lambda: self.woken.append(name)

    def woken_by(self, transition: Callable[[], object]) -> list[str]:
        self.woken.clear()
        transition()
        return list(self.woken)


@pytest.fixture
def threads() -> Threads:
    return Threads()


def test_an_assignment_wakes_the_fetcher_and_an_answer_without_news_nobody(threads: Threads) -> None:
    held = threads.held_jobs

    assert threads.woken_by(lambda: held.hear(Holding(["a"], 0, 1))) == ["fetcher"]
    held.fetched(held.to_fetch(), [a_held_job("a")])
    assert threads.woken_by(lambda: held.hear(Holding(["a"], 0, 1))) == []


def test_a_fetched_job_wakes_the_runner_and_one_that_is_gone_the_settler_too(threads: Threads) -> None:
    held = threads.held_jobs
    held.hear(Holding(["a"], 0, 1))
    assert threads.woken_by(lambda: held.fetched(held.to_fetch(), [a_held_job("a")])) == ["runner"]

    held.hear(Holding(["a", "gone"], 0, 2))
    assert threads.woken_by(lambda: held.fetched(held.to_fetch(), [])) == ["runner", "settler"]


def test_an_outcome_wakes_the_settler_and_no_outcome_nobody(threads: Threads) -> None:
    held = threads.held_jobs
    held.hear(Holding(["a"], 0, 1))

    assert threads.woken_by(lambda: held.ended([])) == []
    assert threads.woken_by(lambda: held.hand_back(["a"])) == ["settler"]


class FakeRunner:
    tasks: frozenset[str] | None = None
    limits = ()
    has_free_slot = False
    prefetch = 0

    def __init__(self) -> None:
        self.opened: list[HeldJobs] = []
        self.woken = threading.Event()

    def wake(self) -> None:
        self.woken.set()

    def open(self, held_jobs: HeldJobs) -> None:
        self.opened.append(held_jobs)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def core(runner: FakeRunner, told: list[Event]) -> WorkerCore:
    """It is not started, so it never asks for a server."""
    events = Events()
    events.listen(told.append)
    store = Store(Target.parse("mongodb://localhost:1/none"))
    return WorkerCore(store, events, cast(Any, runner), Settings())


def test_the_core_wakes_the_thread_of_each_part(core: WorkerCore, runner: FakeRunner) -> None:
    wake_ups = core.held_jobs.wake_ups
    loops = {name: getattr(core, f"_{name}")._loop for name in ("fetcher", "settler", "progress_writer")}

    for name, loop in loops.items():
        assert not loop._woken.is_set()
        getattr(wake_ups, name)()
        assert loop._woken.is_set(), name
    wake_ups.runner()
    assert runner.woken.is_set()


def test_a_lost_registration_wakes_the_runner_and_a_former_one_does_not(core: WorkerCore, runner: FakeRunner) -> None:
    former = core.held_jobs
    core.registration.begin()

    core.registration.lose(former)
    assert (core.registration.lost, runner.woken.is_set()) == (False, False)
    core.registration.lose(core.held_jobs)
    assert (core.registration.lost, runner.woken.is_set()) == (True, True)


def test_it_begins_again_under_a_new_id_and_its_wake_ups_stay(
    core: WorkerCore, runner: FakeRunner, told: list[Event]
) -> None:
    former = core.held_jobs
    former.hear(Holding(["a", "b"], 0, 1))
    former.ended([("a", done(a_job())), ("b", None)])
    core.registration.lose(former)

    assert core.drop_results() == ["a"]
    core.begin_again(running=1, waiting=2)

    assert core.held_jobs.worker != former.worker
    assert runner.opened == [core.held_jobs]
    assert core.held_jobs.wake_ups is former.wake_ups
    assert not core.registration.lost
    assert core._heartbeat._loop._woken.is_set()
    assert [(event.name, event.fields["worker"]) for event in told] == [
        ("job.superseded", former.worker),
        ("worker.lost", former.worker),
    ]


def test_a_settled_batch_wakes_the_fetcher(core: WorkerCore) -> None:
    core._settled()

    assert core._fetcher._loop._woken.is_set()
