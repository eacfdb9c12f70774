"""Who holds a job, on the real store and with the real bookkeeping of a worker: nobody starts what it does not hold.

Like protocol_world.py: every `yield` is a point where any other actor may run. Answers of the roster overtake each
other; events are late, doubled or lost; hand backs and marks may be lost, applied although nobody answered, or arrive
late; workers are retired at will.
What each rule is for, one by one, is in tests/store/test_holds.py and tests/unit/test_held_jobs.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from recruiter.clock import StoppedClock
from recruiter.domain.job import JobId
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import Superseded
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.held_jobs import HeldJobs, JobOutcome
from recruiter.steps.cancel import cancel
from recruiter.steps.rescue import Rescue
from recruiter.store import outcomes
from recruiter.store.codec import decode, job_from
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch
from recruiter.store.roster_fields import Assignment, Holding
from tests.depth import examples
from tests.samples import NOW, a_job, beat, done, facts_of_a_worker, insert, running, to_retry

JOBS, STEPS = 8, 400


class Violation(AssertionError):
    pass


class World:
    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.random = store, random.Random(seed)
        self.clock = StoppedClock(NOW)
        self.late: list[Callable[[], object]] = []
        self.events: list[Assignment] = []
        self.once_started: set[JobId] = set()
        self.started = 0
        self.workers = 0
        # at most once: the first half
        self.ids = insert(store, *(a_job(number, at_most_once=number < JOBS // 2) for number in range(JOBS)))

    def unreliable(self, write: Callable[[], Any]) -> Any:
        """The answer, or None when nobody knows what became of the write."""
        fate = self.random.random()
        if fate < 0.6:
            return write()
        if fate < 0.75:
            with suppress(Superseded):
                write()
        elif fate < 0.95:
            self.late.append(write)
        return None


class Worker:
    """One registration after another."""

    def __init__(self, world: World) -> None:
        self.world, self.store = world, world.store

    def live(self) -> Iterator[None]:
        world, store = self.world, self.store
        while True:
            world.workers += 1
            self.held, self.answers, self.started = (
                HeldJobs(f"w{world.workers}"),
                list[Holding | None](),
                dict[Any, Any](),
            )
            store.roster.join(self.held.worker, facts_of_a_worker(slots=2))
            assert store.roster.become_ready(self.held.worker, 1)
            with suppress(Superseded):
                while True:
                    yield
                    steps = [self.ask, self.hear, self.hear_event, self.fetch, self.mark, self.start, self.end]
                    world.random.choice([*steps, self.send])()

    def ask(self) -> None:
        self.answers.append(self.store.roster.holding(self.held.worker))

    def hear_event(self) -> None:
        """Any that there was: events are late, doubled and lost."""
        if self.world.events:
            self.held.hear_event(self.world.random.choice(self.world.events[-10:]))

    def hear(self) -> None:
        if not self.answers:
            return
        answer = self.answers.pop(self.world.random.randrange(len(self.answers)))
        if answer is None:
            raise Superseded(self.held.worker)
        self.held.hear(answer)

    def fetch(self) -> None:
        ids = self.held.to_fetch()
        self.held.fetched(ids, [HeldJob.read(*job) for job in self.store.scheduled.fetch(ids)])

    def mark(self) -> None:
        jobs = self.held.to_mark(2)
        if not jobs:
            return
        ids, me = [job.id for job in jobs], self.held.worker
        answer = self.world.unreliable(lambda: self.store.transactions.mark_started(me, ids, NOW))
        if answer is None:
            self.held.not_marked(jobs)
            return
        self.held.marked(job for job in jobs if job.id in answer.may_start)
        self.held.ended((job.id, self.refused(job, answer)) for job in jobs if job.id not in answer.may_start)

    def refused(self, job: HeldJob, answer: Any) -> outcomes.Outcome | None:
        if job.id not in answer.started_before:
            return None
        facts: dict[str, Any] = {"worker": self.held.worker, "started_at": None, "at": NOW, "message": "started before"}
        return outcomes.crashed(decode(job.raw), PolicyRegistry(), **facts)

    def start(self) -> None:
        entry = self.store.roster.collection.find_one({"_id": self.held.worker})
        for job in self.held.take(JOBS):
            if entry is not None and job.id not in entry["assigned"]:
                raise Violation("started a job that it does not hold")
            if job.id in self.world.once_started:
                raise Violation("an at-most-once job was started twice")
            if job.is_cancelled:
                raise Violation("a job was started that had been cancelled before it was fetched")
            if entry is not None and job.at_most_once:
                self.world.once_started.add(job.id)
            self.started[job.id] = job
            self.world.started += 1
        if entry is not None:
            beat(self.store, self.held.worker, running(*self.started))

    def end(self) -> None:
        """A job ends, well or to be tried again; or one that has not been started goes back."""
        chance = self.world.random
        if self.started and chance.random() < 0.7:
            id = chance.choice(sorted(self.started))
            job = self.started.pop(id)
            again = chance.random() < 0.7 and not job.at_most_once
            record = job_from(decode(job.raw))
            self.held.ended([(id, to_retry(record) if again else done(record, self.held.worker))])
        elif chance.random() < 0.15:
            self.held.hand_back_untaken()

    def send(self) -> None:
        outcomes = self.held.to_settle()
        if not outcomes:
            return
        answer = self.release(self.held, outcomes)
        if answer is None:
            self.held.not_settled(outcomes)
        else:
            self.held.settled(outcomes, answer)

    def release(self, held: HeldJobs, outcomes: list[JobOutcome]) -> Any:
        me, ids, batch = held.worker, [id for id, _ in outcomes], OutcomeBatch.of(outcomes)
        if batch.archive or batch.reschedule:  # a transaction, which does not arrive late: it would conflict
            fate = self.world.random.random()
            answer = self.store.transactions.settle(me, batch, {}) if fate < 0.9 else None
            return answer if fate < 0.7 else None
        entry = self.store.roster.collection.find_one({"_id": me}, {"settled": 1})
        if entry is None:
            raise Superseded(me)
        released = self.world.unreliable(lambda: self.store.roster.release(me, ids, None, {}, entry["settled"]))
        return released.holding if released is not None else None


def leader(world: World) -> Iterator[None]:
    store = world.store
    while True:
        yield
        roster = store.roster.read()
        free = [id for id in world.ids if id not in store.roster.held() and store.scheduled.exists(id)]
        if roster and free:
            worker, job = world.random.choice(roster).id, world.random.choice(free)
            if store.roster.assign({worker: [job]}, 1):
                entry = store.roster.collection.find_one({"_id": worker}, {"given": 1})
                assert entry is not None
                world.events.append(Assignment(worker, entry["given"], [job]))


def others(world: World) -> Iterator[None]:
    """Somebody cancels, workers are retired, and late writes arrive."""
    rescue = Rescue(world.store, world.clock, 0.0, PolicyRegistry())
    while True:
        yield
        chance = world.random.random()
        roster = world.store.roster.read()
        if roster and chance < 0.03:
            rescue.retire_silent([world.random.choice(roster)])
        elif chance < 0.04:
            with suppress(Exception):
                cancel(world.store, world.clock, world.random.choice(world.ids))
        elif world.late and chance < 0.6:
            with suppress(Superseded):
                world.late.pop(world.random.randrange(len(world.late)))()


def check(world: World) -> None:
    lists = [entry["assigned"] for entry in world.store.roster.collection.find({}, {"assigned": 1})]
    held = [id for assigned in lists for id in assigned]
    if len(held) != len(set(held)):
        raise Violation(f"a job is held twice: {lists}")
    waiting = world.store.scheduled.which_exist(world.ids)
    ended = world.store.archived.which_exist(world.ids)
    if waiting & ended or waiting | ended != set(world.ids):
        raise Violation("a job is lost, or in two places")


@pytest.mark.parametrize("seed", range(examples(4)))
def test_nobody_starts_what_it_does_not_hold(store: Store, seed: int) -> None:
    world = World(store, seed)
    workers = [Worker(world).live() for _ in range(2)]
    actors = [leader(world), *workers, *workers, *workers, others(world)]

    for _ in range(STEPS):
        next(world.random.choice(actors))
        check(world)

    assert world.started > 5, "too little was started: this run says nothing"
