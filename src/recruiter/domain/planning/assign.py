"""Which worker gets which job: the leader's plan, as pure functions.

A round reads the roster, reads due jobs that no worker holds, and deals them. Workers that serve the same groups and
the same tasks are alike and form one *opening*: one query finds jobs for all of them, and they are dealt like cards,
free slots first, so that nothing waits behind a busy slot while another one is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from recruiter.domain.job import JobId
from recruiter.domain.names import group_and_task
from recruiter.domain.observation import UNDECLARED_DEAD_AFTER_SECONDS
from recruiter.domain.planning.needs import NOTHING, Needs
from recruiter.domain.planning.prefetch import REFILLED_AT


@dataclass(frozen=True, slots=True)
class Registration:
    """A worker as the roster shows it: what it serves, how much it takes, what it holds."""

    id: str
    groups: frozenset[str] | None
    tasks: frozenset[str]
    slots: int
    prefetch: int
    holds: int
    """How many jobs are assigned to it."""
    beats: int
    ready: bool = True
    draining: bool = False
    session: Any = None
    """Where its transactions run; only the store knows what it is."""
    child_sessions: tuple[Any, ...] = ()
    """Likewise those of its children whose jobs have transactions of their own."""
    host: str = ""
    resources: Needs = NOTHING
    """What its host has."""
    metered: tuple[tuple[JobId, str], ...] = ()
    """Jobs that were given to it and that count against limits or resources, with their lanes; some have ended."""
    seen_at: datetime | None = None
    """Its last heartbeat, or when it joined."""
    dead_after: float | None = None
    """Seconds of silence after which it counts as dead, as it declares; None for a worker of an earlier release."""

    @property
    def quiet_after(self) -> float:
        """Seconds of silence after which it is given no more jobs."""
        return (UNDECLARED_DEAD_AFTER_SECONDS if self.dead_after is None else self.dead_after) / 2

    @property
    def sessions(self) -> list[Any]:
        """All sessions in which it may hold a lock."""
        return [session for session in (self.session, *self.child_sessions) if session is not None]

    @property
    def free_slots(self) -> int:
        return max(0, self.slots - self.holds)

    @property
    def room(self) -> int:
        """How many more jobs it takes now. A nearly full buffer takes none: small batches cost as much as large."""
        room = self.slots + self.prefetch - self.holds
        return room if self.free_slots or room > self.prefetch * (1 - REFILLED_AT) else 0

    def serves(self, lane: str) -> bool:
        group, task = group_and_task(lane)
        if not group:
            return False  # cancelled jobs; somebody's task may have the name of their lane
        return task in self.tasks and (self.groups is None or group in self.groups)


@dataclass(frozen=True, slots=True)
class Opening:
    """Workers that are alike to the planner, and have room."""

    workers: tuple[Registration, ...]

    @property
    def kind(self) -> tuple[frozenset[str] | None, frozenset[str]]:
        """What makes them alike: the groups and the tasks that they serve."""
        return self.workers[0].groups, self.workers[0].tasks

    @property
    def room(self) -> int:
        return sum(worker.room for worker in self.workers)

    def lanes(self, lanes: Iterable[str]) -> list[str]:
        return [lane for lane in lanes if self.workers[0].serves(lane)]

    def deal(self, jobs: Sequence[JobId]) -> dict[str, list[JobId]]:
        """Jobs by worker id, in order: first to every free slot in turn, then to the buffers in turn."""
        hands: dict[str, list[JobId]] = {}
        slots = self._free_slots()
        for job in jobs:
            worker = next(slots, None)
            if worker is None:
                break
            hands.setdefault(worker, []).append(job)
        return hands

    def _free_slots(self) -> Iterator[str]:
        free = {worker.id: worker.free_slots for worker in self.workers}
        spare = {worker.id: worker.room - worker.free_slots for worker in self.workers}
        for slots in (free, spare):
            open_slots = {worker: count for worker, count in slots.items() if count > 0}
            while open_slots:
                for worker in list(open_slots):
                    yield worker
                    open_slots[worker] -= 1
                    if not open_slots[worker]:
                        del open_slots[worker]


def openings(workers: Iterable[Registration]) -> list[Opening]:
    """Workers with room, grouped by what they serve; the choosiest first, so that others do not take their jobs."""
    alike: dict[tuple[frozenset[str] | None, frozenset[str]], list[Registration]] = {}
    for worker in workers:
        if worker.ready and not worker.draining and worker.room > 0:
            alike.setdefault((worker.groups, worker.tasks), []).append(worker)
    return [
        Opening(tuple(group))
        for (groups, tasks), group in sorted(
            alike.items(), key=lambda item: (item[0][0] is None, len(item[0][0] or ()), len(item[0][1]))
        )
    ]
