"""Hosts and workers while pack.py makes a plan: what is free on each, and what is reserved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.planning.needs import Needs


@dataclass(frozen=True, slots=True)
class Place:
    """A worker that takes jobs now or later: also one that is full, but not one that leaves."""

    worker: str
    host: str
    groups: frozenset[str] | None
    tasks: frozenset[str]
    slots: int
    holds: int
    """How many jobs are assigned to it, whatever their lanes, with those in its buffer."""
    prefetch: int = 0
    """How many its buffer takes."""

    @property
    def free_slots(self) -> int:
        return max(0, self.slots - self.holds)

    @property
    def spare(self) -> int:
        """How many more its buffer takes."""
        return max(0, self.prefetch - max(0, self.holds - self.slots))

    def serves(self, lane: Lane) -> bool:
        if not lane.group:
            return False  # cancelled jobs; somebody's task may have the name of their lane
        return lane.task in self.tasks and (self.groups is None or lane.group in self.groups)


class Spot(NamedTuple):
    """Where a job will run that waits for room."""

    worker: str
    host: str


Amounts = tuple[tuple[str, int], ...]
"""Names of resources, and how much of each in thousandths."""


@dataclass(slots=True, eq=False)
class Host:
    name: str
    capacity: dict[str, int]
    free: dict[str, int]
    usable: dict[str, int]
    """What is free and not reserved."""
    keeper: JobId | None = None
    hole: float = 0.0
    """How much is usable: all resources together, each as a share of what the host has that has most."""

    def holds(self, amounts: Amounts) -> bool:
        """Whether it could take this if it were empty."""
        return within(amounts, self.capacity)

    def lacks(self, amounts: Amounts) -> float:
        """How much would have to be freed, as shares of what is needed."""
        return sum(max(0, amount - self.free.get(name, 0)) / amount for name, amount in amounts)

    def spend(self, amounts: Amounts) -> None:
        for name, amount in amounts:
            self.free[name] = self.free.get(name, 0) - amount
        self.keep(amounts)

    def keep(self, amounts: Amounts) -> None:
        for name, amount in amounts:
            self.usable[name] = self.usable.get(name, 0) - amount


@dataclass(slots=True, eq=False)
class WorkerRoom:
    """A worker while the plan is made."""

    place: Place
    host: Host
    number: int
    free: int
    holds: int
    isolated: bool = False
    """It holds an isolated job, and takes no other."""
    kept: int = 0
    keeper: JobId | None = None
    queued: bool = False
    """A job that can be prefetched waits for one of its slots."""
    drained: bool = False
    spare: int = 0
    """How many more its buffer takes."""
    share: float = 0.0
    """How much of it can be given: free slots that are not kept, of all slots."""

    @property
    def open(self) -> bool:
        """Whether a job may wait in its buffer."""
        return self.spare > 0 and not (self.queued or self.kept or self.drained)

    def measure(self) -> None:
        self.share = max(0, self.free - self.kept) / self.place.slots if self.place.slots > 0 else 0.0

    # How long a job would have to wait here, to be compared: least of all where it has waited before.

    def wait_for_room(self, needed: Amounts, before: Spot) -> tuple[bool, float, str, float, int]:
        to_free = self.host.lacks(needed) + (not self.share)
        return self.host.name != before.host, to_free, self.host.name, -self.share, self.number

    def wait_for_slot(self, before: Spot) -> tuple[bool, int, int]:
        return self.place.worker != before.worker, self.holds - self.place.slots + self.kept, self.number


@dataclass(slots=True, eq=False)
class Serving:
    """The workers that serve a task of a group."""

    rooms: list[WorkerRoom]
    open: dict[str, list[WorkerRoom]]
    """By host, where something may still be given."""
    hosts: list[Host]
    reservable: list[Host]

    @classmethod
    def by(cls, rooms: list[WorkerRoom]) -> Serving:
        by_host: dict[str, list[WorkerRoom]] = {}
        for room in rooms:
            by_host.setdefault(room.host.name, []).append(room)
        hosts = [rooms[0].host for rooms in by_host.values()]
        return cls(rooms, by_host, hosts, hosts)


_share = attrgetter("share")
_spare = attrgetter("spare")


def within(amounts: Amounts, room: Mapping[str, int]) -> bool:
    for name, amount in amounts:  # noqa: SIM110 - the innermost loop; a generator would take twice the time
        if amount > room.get(name, 0):
            return False
    return True


def hosts_of(names: Iterable[str], capacities: Mapping[str, Needs]) -> dict[str, Host]:
    hosts = {}
    for name in names:
        capacity = dict(capacities.get(name, Needs()).thousandths)
        hosts[name] = Host(name, capacity, dict(capacity), dict(capacity))
    return hosts


def largest_of(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Of each resource, as much as there is where there is most."""
    largest: dict[str, int] = {}
    for each in amounts:
        for name, amount in each.items():
            if amount > largest.get(name, 0):
                largest[name] = amount
    return largest


def freest(rooms: Iterable[WorkerRoom]) -> WorkerRoom | None:
    """The one with the largest share of its slots to give."""
    room = max(rooms, key=_share, default=None)
    return room if room is not None and room.share > 0 else None


def roomiest(rooms: Iterable[WorkerRoom]) -> WorkerRoom | None:
    """The one whose buffer takes most, where nothing comes first: neither a job that is prefetched as ever, nor one for
    which a slot is kept."""
    return max((room for room in rooms if room.open), key=_spare, default=None)
