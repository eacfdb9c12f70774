"""The rate at which a worker ends jobs, and the number of jobs that it may hold in addition to the running ones."""

from __future__ import annotations

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
_MIN_SPAN_SECONDS, _LONG_SPAN_SECONDS = 0.1, 1.0
_RATE_MEMORY_SECONDS = 0.5
"""Seconds for which a rate is remembered that was higher than now."""


def seconds_until_room(holds: int, slots: int, prefetch: int) -> float:
    """Seconds until a worker with this load takes more jobs; 0 if that is unknown. It ends as many jobs as it
    prefetches within `PREFETCH_SECONDS`; at the cap it may be several times as quick."""
    if not prefetch:
        return 0.0
    beyond = max(0.0, holds - slots - prefetch * REFILLED_AT)
    horizon = PREFETCH_SECONDS if prefetch < MAX_PREFETCHED_JOBS else PREFETCH_SECONDS / 6
    return max(SETTLED_AFTER_SECONDS, beyond / prefetch * horizon)


class Throughput:
    """Follows the rate, not the length of jobs: those that take a second or more are never prefetched, quick ones by
    the hundred. It rises with the first batches, and falls slowly as long as jobs end at all: batches come unevenly,
    and a worker that is given little after each small one would run dry."""

    def __init__(self, most: int = MAX_PREFETCHED_JOBS) -> None:
        self.prefetch = 0
        self._most = most
        self._rate = 0.0
        self._ended = 0
        self._since: float | None = None
        """When the current span began; None in a pause."""

    def count(self, ended: int, now: float) -> None:
        """Counts settled jobs; `now` is the monotonic clock in seconds."""
        if self._since is None:
            self._since = now if ended else None  # the pause before the first jobs says nothing about their rate
            return
        self._ended += ended
        elapsed = now - self._since
        if elapsed < (_MIN_SPAN_SECONDS if self._ended else _LONG_SPAN_SECONDS):
            return
        rate = self._ended / elapsed
        counts_fully = rate > self._rate or elapsed >= _LONG_SPAN_SECONDS
        self._rate += (rate - self._rate) * (1.0 if counts_fully else elapsed / (elapsed + _RATE_MEMORY_SECONDS))
        self._ended, self._since = 0, now if rate else None
        self.prefetch = min(self._most, int(self._rate * PREFETCH_SECONDS))
