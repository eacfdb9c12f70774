"""What a worker believes to hold, under answers, events and writes that are late, doubled or lost, without MongoDB.

In the spirit of the design's protocol model: a leader gives jobs away, workers are retired at will, and between any two
steps of one any other may act. The roster here is a few lines that do what the roster document does
(tests/property/test_holds_protocol.py has the real one); what is tested is `HeldJobs`. The catalogue of mutants leaves
out each of its rules.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from recruiter.domain.job import JobId
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.held_jobs import HeldJobs, JobOutcome
from recruiter.store.codec import encode, job_document
from recruiter.store.roster_fields import Assignment, Holding
from tests.samples import a_job, done

IDS: list[JobId] = [f"job{number}" for number in range(5)]
JOBS = {id: HeldJob.read(id, encode(job_document(a_job(id)))) for id in IDS}
DONE = done(a_job())
STEPS, SEEDS = 1500, 150


class Violation(AssertionError):
    pass


@dataclass
class Entry:
    """A roster document."""

    assigned: tuple[JobId, ...] = ()
    settled: int = 0
    given: int = 0

    def holding(self) -> Holding:
        """The answer to a question, as the store gives it."""
        return Holding(list(self.assigned), self.settled, self.given)


@dataclass
class World:
    random: random.Random
    roster: dict[str, Entry] = field(default_factory=dict)
    events: list[Assignment] = field(default_factory=list)
    late: list[Callable[[], object]] = field(default_factory=list)
    started: int = 0
    learnt_from_events: int = 0

    def assign(self) -> None:
        held = {id for entry in self.roster.values() for id in entry.assigned}
        free = [id for id in IDS if id not in held]
        if not free or not self.roster:
            return
        worker = self.random.choice(sorted(self.roster))
        entry, jobs = self.roster[worker], free[: self.random.randint(1, 2)]
        self.roster[worker] = replace(entry, assigned=(*entry.assigned, *jobs), given=entry.given + 1)
        self.events.append(Assignment(worker, entry.given + 1, jobs))

    def release(self, worker: str, batch: list[JobOutcome], known: int | None) -> Holding | None:
        """None when the worker is off the roster; with `known`, also when it has released something since."""
        entry, ids = self.roster.get(worker), [id for id, _ in batch]
        if entry is None or (known is not None and entry.settled != known):
            return None
        left = replace(entry, assigned=tuple(id for id in entry.assigned if id not in ids), settled=entry.settled + 1)
        self.roster[worker] = left
        return left.holding()


class Worker:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.registrations = world, name, 0
        self.join()

    def join(self) -> None:
        self.registrations += 1
        self.held = HeldJobs(f"{self.name}{self.registrations}")
        self.answers: list[Holding] = []
        self.running: list[JobId] = []
        self.sent: tuple[list[JobOutcome], Holding | None, bool] | None = None
        self.world.roster[self.held.worker] = Entry()

    def step(self) -> None:
        if self.held.worker not in self.world.roster and self.world.random.random() < 0.1:
            self.join()
        steps = [self.ask, self.hear, self.hear_event, self.hear_event, self.fetch, self.start]
        self.world.random.choice([*steps, self.end, self.end, self.send, self.hear_release])()

    def ask(self) -> None:
        entry = self.world.roster.get(self.held.worker)
        if entry is not None:
            self.answers.append(entry.holding())

    def hear(self) -> None:
        if self.answers:
            self.held.hear(self.answers.pop(self.world.random.randrange(len(self.answers))))

    def hear_event(self) -> None:
        """Any event there ever was: late, or doubled; and some are never heard of."""
        if self.world.events:
            recent = self.world.events[-6:] if self.world.random.random() < 0.8 else self.world.events
            before = len(self.held._states)
            self.held.hear_event(self.world.random.choice(recent))
            self.world.learnt_from_events += len(self.held._states) - before

    def fetch(self) -> None:
        ids = self.held.to_fetch()
        self.held.fetched(ids, [JOBS[id] for id in ids])

    def start(self) -> None:
        entry = self.world.roster.get(self.held.worker)  # gone: retired, and it cannot know
        for job in self.held.take(len(IDS)):
            if entry is not None and job.id not in entry.assigned:
                raise Violation("started a job that it does not hold")
            self.running.append(job.id)
            self.world.started += 1

    def end(self) -> None:
        if self.running and self.world.random.random() < 0.8:
            self.held.ended([(self.running.pop(0), DONE)])
        elif self.world.random.random() < 0.2:
            self.held.hand_back_untaken()

    def send(self) -> None:
        if self.sent is not None or not (outcomes := self.held.to_settle()):
            return
        worker, chance = self.held.worker, self.world.random.random()
        entry, known = self.world.roster.get(worker), None
        if (
            not any(outcome for _, outcome in outcomes) and entry is not None
        ):  # a hand back: one write, which may be late
            known = entry.settled
        if chance < 0.6:
            self.sent = outcomes, self.world.release(worker, outcomes, known), True
        elif chance < 0.8:
            self.world.release(worker, outcomes, known)
            self.sent = outcomes, None, False
        else:
            if known is not None:
                self.world.late.append(lambda: self.world.release(worker, outcomes, known))
            self.sent = outcomes, None, False

    def hear_release(self) -> None:
        if self.sent is None:
            return
        (outcomes, answer, answered), self.sent = self.sent, None
        if answer is not None:
            self.held.settled(outcomes, answer)
        else:
            self.held.not_settled(outcomes)
            if answered:
                self.join()  # it is off the roster


def run(seed: int) -> World:
    world = World(random.Random(seed))
    workers = [Worker(world, name) for name in "ab"]
    for _ in range(STEPS):
        chance = world.random.random()
        if chance < 0.2:
            world.assign()
        elif chance < 0.21:
            world.roster.pop(world.random.choice(workers).held.worker, None)
        elif chance < 0.25 and world.late:
            world.late.pop(world.random.randrange(len(world.late)))()
        else:
            world.random.choice(workers).step()
        held = [id for entry in world.roster.values() for id in entry.assigned]
        assert len(held) == len(set(held)), "the leader of this test gave a job to two workers"
    return world


def test_a_worker_starts_and_settles_only_what_it_holds() -> None:
    worlds = [run(seed) for seed in range(SEEDS)]

    assert sum(world.started for world in worlds) > 10 * SEEDS, "too little was started: these runs say nothing"
    assert sum(world.learnt_from_events for world in worlds) > SEEDS
