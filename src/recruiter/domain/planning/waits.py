"""Waits: of steps that wait for others, one that each waits for, as far as the leader has seen.

Thousands of steps may end that one step waits for, which has to be looked at each time. To look at it is to read what
it waits for. But as long as a single one of these is pending it cannot start, whatever the others do. So the leader
remembers one, and asks first whether that is still pending. What is remembered is only a hint where to look: nothing is
decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from bson import ObjectId

from recruiter.domain.job import JobId

_MOST = 10_000


class Waits:
    """The thread of the leader owns it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[ObjectId, JobId], JobId] = {}

    def saw(self, flow: ObjectId, steps: Iterable[JobId], other: JobId) -> None:
        """These steps wait for another one."""
        if len(self._seen) > _MOST:
            self._seen.clear()
        self._seen |= {(flow, step): other for step in steps}

    def of(self, flow: ObjectId, steps: Iterable[JobId]) -> dict[JobId, JobId]:
        """Those of these steps of which that is known, each with the one that it waited for."""
        return {step: other for step in steps if (other := self._seen.get((flow, step))) is not None}
