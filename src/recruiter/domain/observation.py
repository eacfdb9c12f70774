"""Measures the silence of a process by its heartbeat counter, on the observer's own clock.

No clocks are compared between hosts: a heartbeat only raises a counter, and the observer measures with its own
monotonic clock how long it has stood still. Time during which the observer could not check (MongoDB away, the observer
itself frozen) does not count: between two checks at most `longest_gap` is counted. So when MongoDB comes back after an
hour, no process is declared dead before it had a chance to show life.

Each worker declares on the roster for how long it may be silent. Every observer uses that value, so observers with
other settings cannot contradict it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta

SILENT = timedelta(seconds=15)
"""For views: a recruiter or cleaner without a heartbeat for this time, by the local clocks, counts as dead. A worker
declares its own time."""
UNDECLARED_DEAD_AFTER_SECONDS = 60.0
"""For a worker of an earlier release, whose roster document does not declare its time."""


@dataclass(slots=True)
class _Seen:
    """The last check of a process."""

    counter: Hashable
    looked_at: float
    still_for: float
    moved: bool = False


class Observation:
    """The heartbeat counters that this observer has seen, and how long each has stood still."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def still_for(self, who: str, counter: Hashable, now: float, longest_gap: float) -> float:
        """Checks this counter. Returns for how many seconds it is known to stand still: 0 if it has moved or is new."""
        seen = self._seen.get(who)
        if seen is None or seen.counter != counter:
            self._seen[who] = _Seen(counter, now, 0.0, moved=seen is not None)
            return 0.0
        seen.still_for += min(now - seen.looked_at, longest_gap)
        seen.looked_at = now
        return seen.still_for

    def stood_still_for(self, who: str, counter: Hashable) -> float | None:
        """The result of the last check: 0 if the counter has moved since, None if no check ever saw it move."""
        seen = self._seen.get(who)
        if seen is None:
            return None
        if seen.counter != counter:
            return 0.0
        return seen.still_for if seen.moved else None

    def forget_all_but(self, present: set[str]) -> None:
        for who in self._seen.keys() - present:
            del self._seen[who]

    def forget(self) -> None:
        self._seen.clear()
