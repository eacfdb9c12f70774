"""Workers as the planner sees them, and how jobs that nothing limits are distributed to them.

Workers that serve the same groups and the same tasks form one *pool*: one query finds jobs for all of them. The jobs
are distributed in turn, free slots first, so that no job waits behind a busy slot while another slot is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.names import group_and_task
from recruiter.domain.observation import UNDECLARED_DEAD_AFTER_SECONDS
from recruiter.domain.planning.needs import NOTHING, Needs
from recruiter.domain.planning.prefetch import REFILLED_AT


@dataclass(frozen=True, slots=True)
class RosterWorker:
    """A worker, as far as the roster describes it."""

    id: str
    groups: frozenset[str] | None
    tasks: frozenset[str]
    slots: int
    prefetch: int
    holds: int
    """The number of jobs that are assigned to it."""
    beats: int
    ready: bool = True
    draining: bool = False
    session: Any = None
    """The MongoDB session of its transactions; only the store can read it."""
    child_sessions: tuple[Any, ...] = ()
    """The sessions of its children whose jobs use transactions."""
    host: str = ""
    resources: Needs = NOTHING
    """The resources of its host, as it reports them."""
    limited: tuple[tuple[JobId, str], ...] = ()
    """Assigned jobs that count against limits or resources, with their lanes; some have ended."""
    seen_at: datetime | None = None
    """Its last heartbeat, or when it joined."""
    dead_after: float | None = None
    """Seconds of silence after which it counts as dead, as it declares; None for a worker of an earlier release."""

    @property
    def quiet_after(self) -> float:
        """Seconds of silence after which it receives no jobs."""
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
        """The number of jobs that it takes now. A nearly full buffer takes none: small batches cost as much as
        large."""
        room = self.slots + self.prefetch - self.holds
        return room if self.free_slots or room > self.prefetch * (1 - REFILLED_AT) else 0

    @property
    def spare(self) -> int:
        """The number of jobs that its buffer still takes."""
        return max(0, self.prefetch - max(0, self.holds - self.slots))

    def serves(self, lane: Lane | str) -> bool:
        group, task = (lane.group, lane.task) if isinstance(lane, Lane) else group_and_task(lane)
        if not group:
            return False  # cancelled jobs; a task may have the name of their lane
        return task in self.tasks and (self.groups is None or group in self.groups)


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """Workers that serve the same lanes and have room."""

    workers: tuple[RosterWorker, ...]

    @property
    def kind(self) -> tuple[frozenset[str] | None, frozenset[str]]:
        """The groups and the tasks that all of them serve."""
        return self.workers[0].groups, self.workers[0].tasks

    @property
    def room(self) -> int:
        return sum(worker.room for worker in self.workers)

    def lanes(self, lanes: Iterable[str]) -> list[str]:
        return [lane for lane in lanes if self.workers[0].serves(lane)]

    def distribute(self, jobs: Sequence[JobId]) -> dict[str, list[JobId]]:
        """Jobs by worker id, in order: first to every free slot in turn, then to the buffers in turn."""
        assignments: dict[str, list[JobId]] = {}
        for job, worker in zip(jobs, self._places(), strict=False):
            assignments.setdefault(worker, []).append(job)
        return assignments

    def _places(self) -> Iterator[str]:
        """The worker of each place for a job, in the order in which places are filled."""
        slots = {worker.id: worker.free_slots for worker in self.workers}
        buffers = {worker.id: worker.room - worker.free_slots for worker in self.workers}
        for places in (slots, buffers):
            left = {worker: count for worker, count in places.items() if count > 0}
            while left:
                for worker in list(left):
                    yield worker
                    left[worker] -= 1
                    if not left[worker]:
                        del left[worker]


def pools(workers: Iterable[RosterWorker]) -> list[WorkerPool]:
    """Groups the workers with room by the groups and tasks that they serve. The most specialised pool comes first, so
    that workers which serve more do not take the only jobs that it can run."""
    by_kind: dict[tuple[frozenset[str] | None, frozenset[str]], list[RosterWorker]] = {}
    for worker in workers:
        if worker.ready and not worker.draining and worker.room > 0:
            by_kind.setdefault((worker.groups, worker.tasks), []).append(worker)

    def breadth(pool: WorkerPool) -> tuple[bool, int, int]:
        groups, tasks = pool.kind
        return groups is None, len(groups or ()), len(tasks)

    return sorted((WorkerPool(tuple(alike)) for alike in by_kind.values()), key=breadth)
