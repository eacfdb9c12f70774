"""Lookahead: due jobs that a round of the leader has found beyond the room there was, for its next rounds.

To ask a thousand lanes for their next jobs takes MongoDB as long as to run hundreds of jobs, whether one job is
wanted or a thousand. So where there are many lanes, a round asks for more jobs than it can give, and the next rounds
give the others without asking. They give them in the order in which they were found: a job that arrives meanwhile waits
as it would wait behind jobs that a worker has prefetched.

Such a round is a round that has stood still between reading and writing, which is always possible and must do no harm.
A job that was free stays free as long as this leader leads and does not give it, and this leader takes it off the list
when it gives it. So the list depends on a *snapshot* of these facts, and is forgotten when a fact changes:

- the term: another leader may have given jobs in between; after a write of unknown outcome, so may this one;
- the time of the last write of this leader (the fence time, see arrivals.py): it may have given jobs from events, or
  have archived jobs that no worker held;
- the rules: a group may be paused, a lane may have a limit now;
- the lanes that the workers with room serve. Two kinds of workers could be given the same job from two lists, so there
  is never more than one.

A job that was cancelled or postponed in between goes back: its worker decides by the document that it fetches. A job
that no longer exists is given to no worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from recruiter.domain.job import JobId

MAX_AGE = timedelta(seconds=0.5)
"""The age up to which a list is used, from the beginning of the round that has made it."""
MANY_LANES = 100
_ROUNDS_AHEAD = 5


class Lookahead:
    """The due jobs that a round has found beyond its room. Only the thread of the leader uses them."""

    def __init__(self, many_lanes: int = MANY_LANES, max_age: timedelta = MAX_AGE) -> None:
        self._many_lanes = many_lanes
        self._max_age = max_age
        self._jobs: list[JobId] = []
        self._snapshot: object = None
        self._found_at: datetime | None = None

    def wanted(self, lanes: int, room: int) -> int:
        """The number of jobs to ask for, with this number of lanes and this much room."""
        return room if lanes <= self._many_lanes else _ROUNDS_AHEAD * room

    def keep(self, jobs: Sequence[JobId], snapshot: object, found_at: datetime) -> None:
        """The jobs that a round has found and not given; without a snapshot they are forgotten."""
        self._jobs, self._snapshot, self._found_at = list(jobs), snapshot, found_at

    def take(self, count: int, snapshot: object, now: datetime) -> list[JobId]:
        """Takes exactly `count` jobs off the list. If it has fewer, is too old, or is of another snapshot: none, and
        the list is forgotten."""
        is_valid = (
            self._found_at is not None
            and snapshot is not None
            and snapshot == self._snapshot
            and self._found_at <= now < self._found_at + self._max_age
        )
        if not is_valid or len(self._jobs) < count:
            self._jobs, self._snapshot = [], None
            return []
        taken, self._jobs = self._jobs[:count], self._jobs[count:]
        return taken

    def continue_from(self, snapshot: object) -> None:
        """The jobs that were taken have been given: that is the last write now. Without a snapshot the others will not
        be used."""
        self._snapshot = snapshot
