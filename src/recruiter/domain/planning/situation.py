"""The situation in which jobs wait: the workers, the jobs they hold, and the rules.

The leader plans with it, and explain, the doctor, the console, metrics and `recruiter limit resources` report from it.
So a report cannot contradict the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from types import MappingProxyType

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.planning.hosts import Reservation, largest_of
from recruiter.domain.planning.limits import Meter, Reason
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.pack import AssignedJob, Candidate, Packing, never_fit, pack
from recruiter.domain.planning.reasons import NeverFits, Unserved
from recruiter.domain.planning.rules import Rules
from recruiter.domain.planning.workers import RosterWorker


@dataclass(frozen=True)
class Situation:
    """The workers, the jobs that they hold, and the rules at one time. The leader plans with them."""

    roster: Sequence[RosterWorker]
    held: Collection[JobId]
    """Every job that a worker holds."""
    rules: Rules
    now: datetime

    @cached_property
    def workers(self) -> list[RosterWorker]:
        """The workers that take jobs, now or when they have room."""
        return [worker for worker in self.roster if worker.ready and not worker.draining]

    @cached_property
    def capacities(self) -> dict[str, Needs]:
        """The capacity of each host: for each resource, the largest amount that any of its workers reports. A process
        that joins briefly and reports less must not reduce the capacity for the other workers."""
        reports: dict[str, list[dict[str, int]]] = {}
        for worker in self.roster:
            reports.setdefault(worker.host, []).append(dict(worker.resources.thousandths))
        return {host: Needs(tuple(sorted(largest_of(amounts).items()))) for host, amounts in reports.items()}

    @cached_property
    def holders(self) -> list[AssignedJob]:
        """The held jobs that count against limits or resources. The roster may still name some that have ended."""
        return [
            AssignedJob(job, worker.id, worker.host, Lane.parse(lane))
            for worker in self.roster
            for job, lane in worker.limited
            if job in self.held
        ]

    def meter(self) -> Meter:
        """The limits, with nothing counted yet."""
        return Meter(self.rules.limits, self.rules.starts, self.now)

    def plan(
        self, candidates: Iterable[Candidate], reserved: Mapping[JobId, Reservation] = MappingProxyType({})
    ) -> Packing:
        """The plan for these candidates, which must be in order. `reserved` is a hint: the reservations of the last
        plan."""
        limits, starts = self.rules.limits, self.rules.starts
        workers, capacities, holders = self.workers, self.capacities, self.holders
        return pack(candidates, workers, capacities, holders, limits, now=self.now, starts=starts, reserved=reserved)

    def why_waiting(self, lane: Lane, id: JobId = "") -> Reason | None:
        """Why the leader would not give a due job of this lane to a worker now if it came first; None if it would.
        Pauses are left out."""
        unserved = self.unserved(lane)
        if unserved is not None:
            return unserved
        has_room = any(worker.room > 0 and worker.serves(lane) for worker in self.workers)
        if has_room and not self.meter().needs_planning(lane):
            return None
        return self.plan([Candidate(id, lane, 0.0, self.now)]).waiting.get(lane)

    def unserved(self, lane: Lane) -> Unserved | None:
        """Why no worker takes jobs of this lane; None when one does."""
        if not self.roster:
            return Unserved(
                "no worker is on the roster", "start a worker with `recruiter start worker --bootstrap YOUR_APP`"
            )
        if not any(lane.task in worker.tasks for worker in self.roster):
            return Unserved(f"no worker knows the task {lane.task!r}", "start one whose --bootstrap defines it")
        serving = [worker for worker in self.roster if worker.serves(lane)]
        if not serving:
            what = f"no worker that knows it works on group {lane.group!r}"
            return Unserved(what, f"start a worker with --work-on {lane.group}")
        if not any(worker.ready and not worker.draining for worker in serving):
            return Unserved("the workers that serve it are leaving or drained", "")
        return None

    def never_fitting(self, lanes: Iterable[str]) -> dict[Lane, NeverFits]:
        """The lanes that a worker serves and that need more than the total resources, free or in use."""
        kinds = {Lane.parse(lane)._replace(key=None, isolated=False) for lane in lanes}
        needing = (lane for lane in kinds if lane.needs)
        return never_fit(needing, self.roster, self.capacities, self.rules.limits)
