"""The actors of test_arrivals_protocol.py on the real store, and what must be true after each of their steps.

Every `yield` is a point where any other actor may run. Workers are retired at will (timing is never trusted), and
writes may be lost, applied although reported failed, or applied late.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from recruiter.clock import StoppedClock
from recruiter.domain.job import JobId
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import JobNotFound, Superseded
from recruiter.steps.assign import assign
from recruiter.steps.cancel import archive_cancelled, cancel
from recruiter.steps.rescue import Rescue
from recruiter.steps.settle import settle
from recruiter.store.codec import decode, job_from
from recruiter.store.database import Store
from recruiter.store.outcomes import Outcome
from tests.samples import NOW, a_job, beat, done, facts_of_a_worker, insert, running, to_retry

T = TypeVar("T")

JOBS = 8
LATER = NOW + timedelta(days=1)


class World:
    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.clock = StoppedClock(NOW)
        self.numbers = itertools.count()
        self.late: list[Callable[[], object]] = []
        self.jobs = set(insert(store, *(a_job(number) for number in range(JOBS))))
        self.attempts: dict[JobId, int] = dict.fromkeys(self.jobs, 0)

    def check(self) -> None:
        """Each job is in exactly one place, no two workers hold it, and what was tried is not forgotten."""
        waiting = {d["_id"]: d["attempts"] for d in self.store.scheduled.collection.find({}, {"attempts": 1})}
        ended = [d["_id"] for d in self.store.archived.collection.find({}, {"_id": 1})]
        assert sorted([*waiting, *ended], key=str) == sorted(self.jobs, key=str), "a job is lost, or in two places"
        lists = [d["assigned"] for d in self.store.roster.collection.find({}, {"assigned": 1})]
        held = [job for assigned in lists for job in assigned if job in waiting]
        assert len(held) == len(set(held)), f"a job is held twice: {lists}"
        assert all(attempts >= self.attempts[job] for job, attempts in waiting.items()), "an attempt was forgotten"
        self.attempts.update(waiting)

    def unreliable(self, write: Callable[[], T], late: bool = True) -> T | None:
        """The write's answer, or None when its outcome is unknown to the caller."""
        fate = self.random.random()
        if fate < 0.6:
            return write()
        if fate < 0.82:
            with suppress(Superseded):
                write()
        elif fate < 0.92 and late:
            self.late.append(write)
        return None


def worker(world: World) -> Iterator[None]:
    store = world.store
    while True:
        me = f"w{next(world.numbers)}"
        yield
        store.roster.join(me, facts_of_a_worker())
        yield
        term = store.leases.term()
        yield
        if not store.roster.become_ready(me, term):
            continue
        with suppress(Superseded):
            while True:
                yield
                holding = store.roster.holding(me)
                if holding is None:
                    break
                mine = store.scheduled.fetch(holding.assigned)
                yield
                beat(store, me, running(*(id for id, _ in mine)))
                outcomes = [(id, _outcome(world, raw, me)) for id, raw in mine]
                while outcomes:
                    for _ in range(world.random.randint(1, 6)):
                        yield
                    registered = store.roster.holding(me) is not None
                    if world.unreliable(lambda o=outcomes, me=me: settle(store, me, o, {}), late=False):  # type: ignore[misc]
                        assert registered, "a retired worker settled"
                        break


def _outcome(world: World, raw: bytes, worker: str) -> Outcome | None:
    job = job_from(decode(raw))
    fate = world.random.random()
    if fate < 0.2:
        return None
    return to_retry(job) if fate < 0.75 else done(job, worker)


def retirer(world: World) -> Iterator[None]:
    """Retires whoever it likes; only a heartbeat that moved meanwhile protects."""
    rescue = Rescue(world.store, world.clock, 0.0, PolicyRegistry())
    while True:
        yield
        roster = world.store.roster.read()
        yield
        if roster and world.random.random() < 0.2:
            rescue.retire_silent([world.random.choice(roster)])


def canceller(world: World) -> Iterator[None]:
    while True:
        yield
        if world.random.random() < 0.05:
            with suppress(JobNotFound):
                cancel(world.store, world.clock, world.random.choice(sorted(world.jobs, key=str)))


def late_writes(world: World) -> Iterator[None]:
    while True:
        yield
        if world.late and world.random.random() < 0.3:
            world.late.pop(world.random.randrange(len(world.late)))()


def drain(world: World, jobs: int = JOBS) -> None:
    """One leader and one worker, and nothing goes wrong any more."""
    store = world.store
    for entry in store.roster.read():
        store.roster.leave(entry.id)
    lease = store.leases.acquire(store.leases.read(), "last", {})
    assert lease is not None
    store.roster.join("last", facts_of_a_worker(slots=jobs))
    assert store.roster.become_ready("last", store.leases.term())
    archive_cancelled(store, world.clock, lease.term, "last")
    for _ in range(jobs + 1):  # isolated jobs never share a worker
        assign(store, lease.term, LATER)
        holding = store.roster.holding("last")
        assert holding is not None
        mine = store.scheduled.fetch(holding.assigned)
        if mine:
            settle(store, "last", [(id, done(job_from(decode(raw)))) for id, raw in mine], {})
