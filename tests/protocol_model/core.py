"""What all designs share: a database in which anything may come late, and how a leader leads.

Actors are generators; every yield is a point where any other actor may run. Leaders depose each other at will and
workers are retired at will: timing is never trusted. Documents are never changed in place, only replaced.
"""

import itertools
import random
from collections import Counter


class Violation(Exception):
    pass


class World:
    def __init__(self, seed, mutant):
        self.rng, self.mutant = random.Random(seed), mutant
        self.scheduled, self.archived, self.roster = {}, {}, {}
        self.lease = {"term": 0, "holder": None}
        self.late, self.ids, self.score = [], itertools.count(1), Counter()

    def chance(self, probability):
        return self.rng.random() < probability

    def unreliable(self, write, fates=(70, 10, 15, 5)):
        """Returns the write's answer, or None when the outcome is unknown to the caller."""
        fate = self.rng.choices(["answered", "unanswered", "late", "lost"], fates)[0]
        if fate == "answered":
            return write()
        if fate == "unanswered":
            write()
        elif fate == "late":
            self.late.append(write)
        return None

    def check(self):
        held = [job for doc in self.roster.values() for job in doc["assigned"] if job in self.scheduled]
        if len(held) != len(set(held)):
            raise Violation("one job held by two workers")
        if self.scheduled.keys() & self.archived.keys():
            raise Violation("a job is in both collections")


class Transaction:
    """Sees the world as it was when it began; commits unless something that it writes has changed since."""

    def __init__(self, world, *collections):
        self.world, self.writes = world, {}
        self.before = {name: dict(getattr(world, name)) for name in collections}

    def get(self, name, id):
        return self.writes.get((name, id), self.before[name].get(id))

    def put(self, name, id, document):
        """None deletes."""
        self.writes[name, id] = document

    def commit(self):
        if any(getattr(self.world, name).get(id) is not self.before[name].get(id) for name, id in self.writes):
            return False
        for (name, id), document in self.writes.items():
            getattr(self.world, name)[id] = document
            if document is None:
                del getattr(self.world, name)[id]
        return True


# -- leading ---------------------------------------------------------------------------------------------------------


def acquire(world, name):
    """Tries until it has the lease; returns its term and the attempt that got it."""
    while True:
        yield
        attempt = name if world.mutant == "holder_is_only_a_name" else (name, next(world.ids))
        world.unreliable(_acquire(world, attempt))
        yield
        if world.lease["holder"] == attempt:  # otherwise not mine, or still an older lease of mine: no new term
            return world.lease["term"], attempt


def _acquire(world, attempt):
    def write():
        world.lease = {"term": world.lease["term"] + 1, "holder": attempt}
        return True

    return write


def late_writes(world, haste=0.3):
    while True:
        yield
        if world.late and world.chance(haste):
            world.late.pop(world.rng.randrange(len(world.late)))()


def run(world, actors, steps):
    for _ in range(steps):
        next(world.rng.choice(actors))
        world.check()
