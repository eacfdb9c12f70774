"""Hosts and workers while pack.py makes a plan, with their free and reserved amounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from recruiter.domain.job import JobId
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.workers import RosterWorker


class Reservation(NamedTuple):
    """The place where room is kept for a waiting job."""

    worker: str
    host: str


Amounts = tuple[tuple[str, int], ...]
"""Names of resources, and how much of each in thousandths."""


@dataclass(slots=True, eq=False)
class Host:
    """A host while the plan is made."""

    name: str
    capacity: dict[str, int]
    free: dict[str, int]
    usable: dict[str, int]
    """Free and not reserved."""
    largest: Mapping[str, int]
    """The largest amount of each resource that any host has."""
    keeper: JobId | None = None

    @property
    def usable_share(self) -> float:
        """All usable resources together, each as a share of the largest amount that a host has of it."""
        return sum(self.usable[name] / self.largest[name] for name in self.capacity)

    def holds(self, amounts: Amounts) -> bool:
        """Whether it could take this if it were empty."""
        return within(amounts, self.capacity)

    def lacks(self, amounts: Amounts) -> float:
        """The amounts that would have to be freed, as shares of the needed amounts."""
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

    worker: RosterWorker
    host: Host
    number: int
    free: int
    holds: int
    isolated: bool = False
    """It holds an isolated job, and takes no other."""
    kept: int = 0
    keeper: JobId | None = None
    queued: bool = False
    """A job that can be prefetched waits for a slot of it."""
    drained: bool = False
    spare: int = 0
    """The number of jobs that its buffer still takes."""

    @property
    def share(self) -> float:
        """Free slots that are not kept, as a share of all slots."""
        return max(0, self.free - self.kept) / self.worker.slots if self.worker.slots > 0 else 0.0

    @property
    def open(self) -> bool:
        """Whether a job may wait in its buffer."""
        return self.spare > 0 and not (self.queued or self.kept or self.drained)

    # Sort keys: the smallest is the worker with the shortest wait. A job stays where it has waited before.

    def wait_for_room(self, needed: Amounts, before: Reservation) -> tuple[bool, float, str, float, int]:
        to_free = self.host.lacks(needed) + (not self.share)
        return self.host.name != before.host, to_free, self.host.name, -self.share, self.number

    def wait_for_slot(self, before: Reservation) -> tuple[bool, int, int]:
        return self.worker.id != before.worker, self.holds - self.worker.slots + self.kept, self.number


def within(amounts: Amounts, room: Mapping[str, int]) -> bool:
    for name, amount in amounts:  # noqa: SIM110 - the innermost loop; a generator would take twice the time
        if amount > room.get(name, 0):
            return False
    return True


def hosts_of(names: Iterable[str], capacities: Mapping[str, Needs]) -> dict[str, Host]:
    amounts = {name: dict(capacities.get(name, Needs()).thousandths) for name in names}
    largest = largest_of(amounts.values())
    return {name: Host(name, has, dict(has), dict(has), largest) for name, has in amounts.items()}


def largest_of(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    largest: dict[str, int] = {}
    for amounts_of_one in amounts:
        for name, amount in amounts_of_one.items():
            if amount > largest.get(name, 0):
                largest[name] = amount
    return largest
