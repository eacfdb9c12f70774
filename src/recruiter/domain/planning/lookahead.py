"""Lookahead: due jobs that a round of the leader has found beyond the room there was, for its next rounds.

To ask a thousand lanes for their next jobs takes MongoDB as long as to run hundreds of jobs, whether one of them is
wanted or a thousand. And where quick jobs are given by the hundred, each look walks past the thousands that workers
hold. So where there are many lanes or much room, a round asks for more than it can give, and the next rounds give the
rest without asking. They give it in the order in which it was found: a job that comes meanwhile waits until the next
look, as it would wait behind jobs that a worker has prefetched.

Such a round is a round that has stood still between reading and writing, which is always possible and must do no harm.
A job that was free stays free as long as this leader leads and does not give it, and this leader takes it off the list
when it gives it. So the list holds for one *basis*, and is forgotten when any part of it changes:

- the term: another leader may have given jobs in between; after a write of unknown outcome, so may this one;
- the time of the last write of this leader (the floor, see arrivals.py): it may have given jobs from events, or have
  archived jobs that nobody held;
- the rules: a group may be paused, a lane may have a limit now;
- what the workers with room serve: others may not run these jobs. Two kinds of workers could be given the same job
  from two lists, so there is never more than one.

A job that was cancelled or postponed in between goes back: its worker decides by the document that it fetches. One
that is gone is given to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from recruiter.domain.job import JobId

LASTS = timedelta(seconds=0.5)
"""How long a list is used, from the moment at which the round began that has made it."""
_ROOMS_AHEAD, _MOST = 5, 5000


class Lookahead:
    """The thread of the leader owns it."""

    def __init__(self, many_lanes: int = 100, much_room: int = 100, lasts: timedelta = LASTS) -> None:
        self._many_lanes, self._much_room = many_lanes, much_room
        """With more lanes, or as much room, it is worth to look ahead."""
        self._lasts = lasts
        self._jobs: list[JobId] = []
        self._basis: object = None
        self._found_at: datetime | None = None

    def wanted(self, lanes: int, room: int) -> int:
        """How many jobs to ask for where so many lanes are asked and there is so much room."""
        if lanes <= self._many_lanes and room < self._much_room:
            return room
        return max(room, min(_ROOMS_AHEAD * room, _MOST))

    def keep(self, jobs: Sequence[JobId], basis: object, found_at: datetime) -> None:
        """What a round has found and not given; without a basis it is forgotten."""
        self.forget()
        if basis is not None:
            self._jobs, self._basis, self._found_at = list(jobs), basis, found_at

    def take(self, count: int, basis: object, now: datetime) -> list[JobId]:
        """The next jobs, exactly so many; or none, and then it has forgotten the others."""
        holds = (
            self._found_at is not None
            and basis is not None
            and basis == self._basis
            and self._found_at <= now < self._found_at + self._lasts
        )
        if not holds or len(self._jobs) < count:
            self.forget()
            return []
        taken, self._jobs = self._jobs[:count], self._jobs[count:]
        return taken

    def __len__(self) -> int:
        return len(self._jobs)

    def rebase(self, basis: object) -> None:
        """What was taken has been given: that is the last write now. Without a basis the rest will not be used."""
        self._basis = basis

    def forget(self) -> None:
        self._jobs, self._basis, self._found_at = [], None, None
