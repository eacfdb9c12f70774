"""The states of a job in a worker and each transition, also of jobs that overrun, without MongoDB and processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from recruiter.clock import SystemClock
from recruiter.domain.job import JobId
from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.events import Event, Events
from recruiter.processes.child import pipe
from recruiter.processes.worker import dispatcher, overruns
from recruiter.processes.worker.child_handle import ChildHandle
from recruiter.processes.worker.dispatcher import Dispatcher
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.held_jobs import HeldJobs
from recruiter.processes.worker.overruns import ByForce, Cancelled, HeldUp
from recruiter.settings import Settings
from recruiter.store.codec import Document, decode, encode
from recruiter.store.outcomes import Outcome, Rescheduled, ToArchive
from recruiter.store.roster_fields import Holding
from tests.fake_child import FakeChild, held, held_many


class Worker:
    """A dispatcher with fake children."""

    def __init__(self, children: int = 1, places: int = 1, memory_limit: int | None = None) -> None:
        self.children: list[FakeChild] = []
        self.events: list[Event] = []
        self.held_jobs = HeldJobs("w1")
        self.given: list[JobId] = []
        self._places = places
        events = Events()
        events.listen(self.events.append)
        self.dispatcher = Dispatcher(
            self._spawn,
            SystemClock(),
            events,
            PolicyRegistry(),
            Settings(processes=children, memory_limit=memory_limit),
        )
        self.dispatcher.open(self.held_jobs)

    def _spawn(self, worker: str, now: float) -> ChildHandle:
        assert worker == "w1"
        child = FakeChild(self._places, now)
        self.children.append(child)
        child.hello("add")
        return child.handle

    def arrive(self, *jobs: HeldJob) -> None:
        """The leader gives these to the worker, and they are fetched."""
        self.fetched(*jobs)
        self.turn()

    def fetched(self, *jobs: HeldJob) -> None:
        ids = [job.id for job in jobs]
        self.given += ids
        self.held_jobs.hear(Holding(list(self.given), 0, len(self.given)))
        self.held_jobs.fetched(self.held_jobs.to_fetch(), jobs)
        self.held_jobs.marked(self.held_jobs.to_mark(10))

    def turn(self) -> None:
        """Twice: what has been heard in one turn is acted on in the next."""
        for _ in range(2):
            self.dispatcher.wake()
            self.dispatcher.turn()

    def outcomes(self) -> dict[object, Outcome | None]:
        return dict(self.held_jobs.to_settle())

    def running(self) -> list[HeldJob]:
        return [job for job, _ in self.dispatcher.running()]

    def names(self) -> list[str]:
        return [event.name for event in self.events]


Make = Callable[..., Worker]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Worker] = []

    def make(children: int = 1, places: int = 1, memory_limit: int | None = None) -> Worker:
        made.append(Worker(children, places, memory_limit))
        made[-1].turn()
        return made[-1]

    yield make
    for worker in made:
        for child in worker.children:
            child.die(0)
        worker.dispatcher.close()


def archived(outcome: Outcome | None) -> Document:
    assert isinstance(outcome, ToArchive)
    return decode(outcome.document)


def rescheduled(outcome: Outcome | None) -> Rescheduled:
    assert isinstance(outcome, Rescheduled)
    return outcome


def test_a_child_that_never_says_hello_is_replaced(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "_HELLO_WITHIN_SECONDS", 0.01)
    worker = make()
    mute = FakeChild(1, time.monotonic())
    monkeypatch.setattr(worker.dispatcher._pool, "_spawn", lambda *_: mute.handle)
    worker.children[0].die(0)

    eventually_turn(worker, lambda: mute.kills > 0)


class TestTheUsualWay:
    def test_fetched_queued_sent_started_ended(self, make: Make) -> None:
        worker = make()
        (child,) = worker.children
        job = held()

        worker.arrive(job)
        assert worker.running() == [], "sent, and not started"
        (number,) = child.start()
        assert worker.running() == [job]
        child.answer(number)
        worker.turn()

        assert worker.running() == []
        assert list(worker.outcomes()) == [job.id]

    def test_what_a_slow_child_has_not_started_is_taken_back_and_given_to_another(self, make: Make) -> None:
        worker = make(children=2)
        slow, quick = worker.children
        jobs = held_many(3)
        worker.fetched(*jobs)
        worker.held_jobs.take(3)
        slow.handle.send(jobs, worker.dispatcher._time())  # as if it had been quick before
        (first, _), *_ = slow.jobs()
        assert slow.claims.claim(first)

        eventually_turn(worker, lambda: quick.handle.load > 0)

        assert [job for _, job in quick.jobs()] == jobs[1:2]
        assert slow.handle.load == 1

    def test_an_urgent_job_overtakes_those_in_the_pipe(self, make: Make) -> None:
        """Given a child that runs one of three ordinary jobs, when an urgent job arrives, then it is the next."""
        worker = make()
        (child,) = worker.children
        first, *next_jobs = held_many(3)
        urgent = held(priority=5)
        worker.arrive(first)
        (number,) = child.start()
        worker.fetched(*next_jobs)
        worker.held_jobs.take(2)
        child.handle.send(next_jobs, worker.dispatcher._time())  # as if it had been quick before

        worker.arrive(urgent)
        child.answer(number)
        worker.turn()

        child.start()
        assert worker.running()[0] == urgent


class TestMustNotStart:
    def test_one_that_was_cancelled_before_it_was_fetched_is_handed_back(self, make: Make) -> None:
        worker = make()
        (child,) = worker.children
        flag = {"at": datetime.now(UTC), "by": "me", "reason": None}
        cancelled, other = with_cancel(held(), flag), held()

        worker.arrive(cancelled, other)

        assert [job for _, job in child.jobs()] == [other]
        assert worker.outcomes() == {cancelled.id: None}

    def test_what_is_cancelled_between_two_states_is_handed_back(self, make: Make) -> None:
        worker = make()
        (child,) = worker.children
        sent, queued = held(), held()
        worker.arrive(sent)
        worker.fetched(queued)

        worker.dispatcher.cancel({sent.id: {"by": "me"}, queued.id: {"by": "me"}})
        worker.turn()

        assert worker.outcomes() == {sent.id: None, queued.id: None}
        assert child.start() == []

    def test_what_is_recalled_is_handed_back_also_if_the_child_is_just_claiming_something(self, make: Make) -> None:
        worker = make(places=2)
        (child,) = worker.children
        jobs = held_many(2)
        worker.arrive(*jobs)
        child.claims._lock.acquire()
        worker.dispatcher.recall([job.id for job in jobs])
        worker.turn()
        assert worker.outcomes() == {}

        child.claims._lock.release()
        worker.turn()

        assert worker.outcomes() == {job.id: None for job in jobs}
        assert child.start() == []


class TestDeath:
    @pytest.mark.parametrize("code", [-9, -40, 1])
    def test_the_job_that_ran_is_to_blame_and_its_attempt_has_a_beginning(self, make: Make, code: int) -> None:
        """Also when it was killed by a signal that has no name."""
        worker = make()
        (child,) = worker.children
        job = held(scheduled_at=datetime.now(UTC))
        worker.arrive(job)
        before = datetime.now(UTC)
        child.start()

        child.die(code)
        worker.turn()

        fields = rescheduled(worker.outcomes()[job.id]).fields
        execution = fields["last_execution"]
        assert fields["crashes"] == 1
        assert abs(execution["started_at"] - before) < timedelta(seconds=5)
        assert execution["started_at"] <= execution["ended_at"]
        assert "loop.failed" not in worker.names()

    def test_what_it_had_not_started_goes_to_its_successor(self, make: Make) -> None:
        worker = make()
        (child,) = worker.children
        job = held()
        worker.arrive(job)

        child.die(-9)
        eventually_turn(worker, lambda: len(worker.children) > 1 and worker.children[1].handle.load > 0)

        assert [sent for _, sent in worker.children[1].jobs()] == [job]
        assert worker.outcomes() == {}

    def test_a_lost_at_most_once_job_has_a_beginning_too(self, make: Make) -> None:
        worker = make()
        (child,) = worker.children
        job = held(at_most_once=True)
        worker.arrive(job)
        child.start()

        interrupted = worker.dispatcher.end_children()
        assert [run.job for run in interrupted] == [job]
        worker.dispatcher.interrupt(interrupted, "the worker was asked to stop")

        lost = archived(worker.outcomes()[job.id])
        assert (lost["why"], lost["last_execution"]["started_at"] is not None) == ("lost", True)


class TestRecycling:
    def recycling(self, make: Make, places: int, *jobs: HeldJob) -> Worker:
        """A worker whose child has grown too large, with one job that runs."""
        worker = make(places=places, memory_limit=1)
        (child,) = worker.children
        worker.arrive(jobs[0])
        (self.number,) = child.start()
        worker.arrive(*jobs[1:])
        setattr(child.handle, "memory", lambda: 2)  # noqa: B010
        worker.dispatcher._memory_checked_at = 0.0
        worker.turn()
        assert child.handle.recycling
        return worker

    def test_its_other_places_are_free_at_once(self, make: Make) -> None:
        worker = self.recycling(make, 4, held())
        rest = held_many(5)

        worker.arrive(*rest)

        assert len(worker.children) == 2
        assert [job for _, job in worker.children[1].jobs()] == rest[:3], "four places, and one is taken"

    def test_stopping_meanwhile_hands_back_what_has_not_started(self, make: Make) -> None:
        """Given a frame that was half sent when the child was recycled."""
        large = held_many(3, args={"text": "x" * 200_000})
        worker = self.recycling(make, 4, held(), *large)

        assert worker.dispatcher.pause() == len(large)

        assert worker.outcomes() == {job.id: None for job in large}
        worker.children[0].answer(self.number)
        worker.turn()
        assert len(worker.outcomes()) == 1


def is_handed_back(outcome: Outcome | None) -> bool:
    """A started job that waits again as it was, and has begun; whatever its run left on it goes."""
    return (
        isinstance(outcome, Rescheduled)
        and outcome.fields.keys() == {"begun_at"}
        and "token" in outcome.updates[0].update["$unset"]
    )


class TestOverruns:
    def child(self, make: Make, count: int) -> tuple[FakeChild, list[int], list[HeldJob]]:
        worker = make(places=count)
        (child,) = worker.children
        jobs = held_many(count)
        worker.arrive(*jobs)
        self.worker = worker
        return child, child.start(), jobs

    def overdue(self, child: FakeChild, number: int, told: bool) -> None:
        child.claims._deadlines[number % 4096] = time.monotonic() - 10
        if told:
            child.claims.tell(number)

    def test_a_job_that_ignores_its_interruption_is_to_blame(self, make: Make) -> None:
        child, (late, _), jobs = self.child(make, 2)
        self.overdue(child, late, told=True)

        self.worker.dispatcher._end_overruns(time.monotonic())

        outcomes = self.worker.outcomes()
        assert "JobTimedOut" in archived(outcomes[jobs[0].id])["last_execution"]["class"]
        assert is_handed_back(outcomes[jobs[1].id])

    def test_who_holds_the_loop_is_to_blame_and_not_the_starved(self, make: Make) -> None:
        child, (holder, starved, _), jobs = self.child(make, 3)
        child.claims.tick()
        child.claims.enter_loop(holder)
        child.claims._loop_since.value -= 5
        self.overdue(child, starved, told=False)

        self.worker.dispatcher._end_overruns(time.monotonic())

        outcomes = self.worker.outcomes()
        ended = archived(outcomes[jobs[0].id])
        assert "JobBlockedOthers" in ended["last_execution"]["class"]
        assert ended["attempts"] == 1, "it is counted"
        assert all(is_handed_back(outcomes[job.id]) for job in jobs[1:]), "no attempt counted"

    def test_who_holds_the_interpreter_is_to_blame(self, make: Make) -> None:
        child, numbers, _ = self.child(make, 3)
        for number, thread in zip(numbers, (11, 12, 13), strict=True):
            child.claims.runs_in(number, thread)
        self.overdue(child, numbers[0], told=False)

        def state(_process: int, thread: int) -> str:
            return "R" if thread == 12 else "S"

        found = overruns.past_their_time(child.handle, time.monotonic(), state)

        assert list(found) == [numbers[1]]

    def test_if_nobody_can_say_it_counts_for_each_like_a_worker_death(self, make: Make) -> None:
        child, numbers, jobs = self.child(make, 3)
        self.overdue(child, numbers[0], told=False)

        self.worker.dispatcher._end_overruns(time.monotonic())

        outcomes = self.worker.outcomes()
        assert all(rescheduled(outcomes[job.id]).fields["worker_deaths"] == 1 for job in jobs)


def with_cancel(job: HeldJob, flag: Document) -> HeldJob:
    return HeldJob.read(job.id, encode({**decode(job.raw), "cancel": flag, "lane": CANCELLED_LANE}))


def eventually_turn(worker: Worker, fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < deadline
        worker.turn()


@pytest.fixture
def child() -> Iterator[FakeChild]:
    child = FakeChild(places=1)
    yield child
    child.die(0)
    child.handle.close()


def runs(child: FakeChild, **options: Any) -> int:
    """Starts a job in the child; returns its number."""
    child.handle.send([held(**options)], pipe.Time(0.0, time.monotonic()))
    (number,) = child.start()
    return number


def uses(child: FakeChild, memory: int) -> None:
    setattr(child.handle, "memory_of_all", lambda: memory)  # noqa: B010 – there is no process to be measured


class TestMemory:
    def test_a_job_that_uses_more_than_all_may_is_found(self, child: FakeChild) -> None:
        number = runs(child)
        uses(child, 1001)

        found = overruns.too_large(child.handle, hard_limit=1000)

        assert list(found) == [number]
        reason = found[number]
        assert isinstance(reason, ByForce)
        assert "1,001 bytes" in str(reason.error)

    def test_the_memory_of_one_job_does_not_fail_the_others_of_its_child(self, child: FakeChild) -> None:
        """Nobody knows which of them used it: no attempt is counted, and each counts a worker death."""
        numbers = [runs(child), runs(child)]
        uses(child, 1001)

        found = overruns.too_large(child.handle, hard_limit=1000)

        assert list(found) == numbers
        assert all(isinstance(reason, HeldUp) for reason in found.values())

    def test_a_child_that_runs_nothing_is_not_to_blame(self, child: FakeChild) -> None:
        uses(child, 5000)

        assert overruns.too_large(child.handle, hard_limit=1000) == {}

    def test_what_it_may_use_it_may_use(self, child: FakeChild) -> None:
        runs(child)
        uses(child, 1000)

        assert overruns.too_large(child.handle, hard_limit=1000) == {}


class TestCancelled:
    def test_a_job_that_goes_on_is_found_when_it_has_had_its_time(self, child: FakeChild) -> None:
        number = runs(child)
        now = time.monotonic()
        (run,) = child.handle.running()
        assert child.handle.cancel(run.job.id, {"by": "ada"}, now)

        assert overruns.past_their_time(child.handle, now + 0.4) == {}
        assert overruns.past_their_time(child.handle, now + 0.6) == {number: Cancelled({"by": "ada"})}
