"""Why the jobs of a lane wait, computed by the planner itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.planning.assign import Registration
from recruiter.domain.planning.hosts import Place
from recruiter.domain.planning.limits import Limit, Reason, Start
from recruiter.domain.planning.pack import AssignedJob, Candidate, pack
from recruiter.domain.planning.reasons import Unserved


@dataclass(frozen=True)
class Circumstances:
    """What the planner looks at, except the jobs."""

    roster: Sequence[Registration]
    held: Collection[JobId]
    """Every job that a worker holds."""
    limits: Sequence[Limit]
    starts: Mapping[str, Sequence[Start]]
    now: datetime

    def why_waiting(self, lane: Lane, id: JobId = "") -> Reason | None:
        """Why a due job of this lane cannot start now; None when nothing keeps it."""
        return self.unserved(lane) or self._busy(lane, id)

    def unserved(self, lane: Lane) -> Unserved | None:
        """Why no worker takes jobs of this lane; None when one does."""
        if not self.roster:
            return Unserved(
                "no worker is on the roster", "start one with `recruiter start worker --bootstrap YOUR_APP`"
            )
        if not any(lane.task in worker.tasks for worker in self.roster):
            return Unserved(f"no worker knows the task {lane.task!r}", "start one whose --bootstrap defines it")
        serving = [worker for worker in self.roster if worker.serves(str(lane))]
        if not serving:
            what = f"no worker that knows it works on group {lane.group!r}"
            return Unserved(what, f"start one with --work-on {lane.group}")
        if not any(worker.ready and not worker.draining for worker in serving):
            return Unserved("the workers that serve it are leaving or drained", "")
        return None

    def _busy(self, lane: Lane, id: JobId) -> Reason | None:
        holders = [
            AssignedJob(job, worker.id, worker.host, Lane.parse(text))
            for worker in self.roster
            for job, text in worker.metered
            if job in self.held
        ]
        taking = [worker for worker in self.roster if worker.ready and not worker.draining]
        places = [Place(w.id, w.host, w.groups, w.tasks, w.slots, w.holds) for w in taking]
        capacities = {worker.host: worker.resources for worker in self.roster}
        candidates = [Candidate(id, lane, 0.0, self.now)]
        packing = pack(candidates, places, capacities, holders, self.limits, now=self.now, starts=self.starts)
        return packing.waiting.get(lane)
