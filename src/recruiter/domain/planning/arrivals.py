"""Jobs that the leader gives to workers without a round: new ones, straight from the events of their inserts.

A round reads who holds what and which jobs are due. A new job on an idle system need not wait for that: the event of
its insert names it. What makes this safe is one number, the *fence time*: the cluster time up to which a job may have
been given, or have ended. An insert that is later than that is of a job that no worker can hold yet. No set of ids is
needed, so nothing has to be forgotten; an arrival that is not later is left to the next round, which is always there
underneath.

    raise the term ──▶ a round assigns ──▶ the insert of a job ──▶ its event: later than the fence time, so it is given
      fence time        fence time                                      the write moves the fence time on

The fence time is the time of the last answer to a write of this leader: raising the term, assigning, archiving jobs
that no worker holds. Each of these covers all that the leader had read before.

- Not the time of the lease: until the term is raised everywhere, an older leader's assignments still match somewhere.
- Not the time at which a round began: it also gives jobs that were inserted after it began.
- Archiving counts, because an id that is made of its content may be inserted again.
- Only inserts count: a job that was updated may be held.
- Arrivals are given between rounds, by the thread of the leader: a round gives what it has read as free.
- A write of unknown outcome costs the term, as in a round: it may be applied late.

*Where* a job goes may come from a roster that was read long ago: the write itself checks the worker (`roster.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.planning.limits import Meter
from recruiter.domain.planning.workers import RosterWorker, pools


@dataclass(frozen=True, slots=True)
class Arrival:
    """A new job, from the event of its insert."""

    id: JobId
    lane: str
    scheduled_at: datetime
    at: int
    """The cluster time of the insert."""

    def is_new(self, fence_time: int) -> bool:
        """Whether no worker can hold this job yet. Without a fence time nothing is known."""
        return 0 < fence_time < self.at


@dataclass(frozen=True, slots=True)
class Offer:
    """Jobs for one worker, which takes them only if it has enough free slots."""

    jobs: tuple[JobId, ...]
    slots: int
    """The slots of the worker."""
    quiet_after: float
    """Seconds: it must have shown life within them."""


class Vacancies:
    """The workers that had room in a round which left no due job that they could have taken.

    They are remembered until the next round. Jobs that a worker received meanwhile are counted, jobs that it has
    ended are not: the write checks whether a slot is free.
    """

    def __init__(self, roster: Sequence[RosterWorker]) -> None:
        self._workers = [worker for pool in pools(roster) for worker in pool.workers]
        self._given: Counter[str] = Counter()

    def offers(self, jobs: Sequence[Arrival]) -> Mapping[str, Offer] | None:
        """Chooses for each job the serving worker with most room. None if no worker serves one of the jobs: then a
        round must assign them."""
        offered: dict[str, list[JobId]] = {}
        workers = {worker.id: worker for worker in self._workers}
        for job in jobs:
            serving = [worker for worker in self._workers if worker.serves(job.lane)]
            if not serving:
                return None
            chosen = min(serving, key=lambda worker: worker.holds + self._given[worker.id] - worker.slots)
            self._given[chosen.id] += 1
            offered.setdefault(chosen.id, []).append(job.id)
        return {
            worker: Offer(tuple(ids), workers[worker].slots, workers[worker].quiet_after)
            for worker, ids in offered.items()
        }


def is_free(lane: str, meter: Meter) -> bool:
    """Whether jobs of this lane may run on every worker that serves them: nothing has to be counted."""
    return not meter.needs_planning(Lane.parse(lane))
