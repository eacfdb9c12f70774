"""How many jobs a worker ends a second, and so how many it may hold beyond what its children run."""

from __future__ import annotations

HORIZON = 0.3
"""What is prefetched should be done within about so many seconds."""
MOST_PREFETCHED = 3000
REFILLED_AT = 2 / 3
"""A worker takes more jobs as soon as its buffer is no fuller than this. The rest must last until they have come: a
round of the leader, a write, a fetch."""
_SHORTEST_SPAN, _LONG_SPAN = 0.02, 1.0
_MEMORY = 0.5
"""Seconds for which a rate is remembered that was higher than now."""


def seconds_until_room(holds: int, slots: int, prefetch: int) -> float:
    """When a worker that holds so many jobs will take more. It ends as many as it prefetches in about `HORIZON`."""
    beyond = holds - slots - prefetch * REFILLED_AT
    return beyond / prefetch * HORIZON if prefetch and beyond > 0 else 0.0


def seconds_until_done(holds: int, prefetch: int) -> float:
    """When a worker will have ended what it holds; 0 when that cannot be known."""
    return holds / prefetch * HORIZON if prefetch else 0.0


class Throughput:
    """Follows the rate, not the length of jobs: those that take a second or more are never prefetched, quick ones by
    the hundred. It grows from nothing in a few rounds, and falls slowly as long as jobs end at all: batches come
    unevenly, and a worker that is given little after each small one would run dry."""

    def __init__(self, most: int = MOST_PREFETCHED) -> None:
        self.prefetch = 0
        self._most = most
        self._rate = 0.0
        self._ended = 0
        self._since = 0.0

    def count(self, ended: int, now: float) -> None:
        """So many jobs have been settled by now (seconds that never jump)."""
        self._ended += ended
        elapsed = now - self._since
        if elapsed < _SHORTEST_SPAN:
            return
        rate = self._ended / elapsed
        weight = 1.0 if elapsed > _LONG_SPAN else 0.5 if rate > self._rate else elapsed / (elapsed + _MEMORY)
        self._rate += weight * (rate - self._rate)
        self._ended, self._since = 0, now
        self.prefetch = min(self._most, int(self._rate * HORIZON))
