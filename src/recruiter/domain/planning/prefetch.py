"""The pace at which a worker ends jobs, and the number of jobs that it may hold in addition to the running ones."""

from __future__ import annotations

import math

PREFETCH_SECONDS = 0.6
"""The time that prefetched jobs should last. Jobs count until they are settled, and outcomes gather for up to 0.2 s:
with 0.4 s, children had no next job a tenth of the time."""
MAX_PREFETCHED_JOBS = 2000
"""A worker reads its whole list with every answer of the roster, so the list must stay short. With 1,000, a worker with
100 slots ran dry between two rounds."""
REFILLED_AT = 0.8
"""A worker takes more jobs as soon as its buffer is no fuller than this. The rest must last until they have come: a
round of the leader, a write, a fetch."""
SETTLED_AFTER_SECONDS = 0.05
"""The load of a worker falls with each settlement, not with each job. Its buffer lasts longer than this."""
_PACE_MEMORY_SECONDS = 0.25
"""Seconds of work after which the pace of the jobs before counts only a third."""


def seconds_until_room(holds: int, slots: int, prefetch: int) -> float:
    """Seconds until a worker with this load takes more jobs; 0 if that is unknown. It ends as many jobs as it
    prefetches within `PREFETCH_SECONDS`; at the cap it may be several times as quick."""
    if not prefetch:
        return 0.0
    beyond = max(0.0, holds - slots - prefetch * REFILLED_AT)
    horizon = PREFETCH_SECONDS if prefetch < MAX_PREFETCHED_JOBS else PREFETCH_SECONDS / 6
    return max(SETTLED_AFTER_SECONDS, beyond / prefetch * horizon)


class JobPace:
    """The time that a job takes where jobs run, on average over the last moments with work. It follows from the time
    between answers: two jobs side by side that take 20 ms each count as 10 ms a job. Time without jobs does not count,
    so that a burst of jobs finds the pace of the last ones."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Nothing is known: the next jobs show it."""
        self._jobs = self._seconds = 0.0

    def count(self, jobs: int, seconds: float) -> None:
        """These jobs ended within these seconds."""
        remembered = math.exp(-seconds / _PACE_MEMORY_SECONDS)
        self._jobs = self._jobs * remembered + jobs
        self._seconds = self._seconds * remembered + max(seconds, 1e-6)

    @property
    def seconds_a_job(self) -> float:
        """Infinite while nothing is known."""
        return self._seconds / self._jobs if self._jobs else math.inf

    @property
    def prefetch(self) -> int:
        """The number of jobs that would last for `PREFETCH_SECONDS`."""
        return int(PREFETCH_SECONDS / self.seconds_a_job)
