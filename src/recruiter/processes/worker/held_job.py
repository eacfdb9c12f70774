"""A job that a worker holds, as the bytes that came from MongoDB."""

from __future__ import annotations

from typing import NamedTuple

from recruiter.domain.job import JobId
from recruiter.domain.names import CANCELLED_LANE
from recruiter.store.codec import decode

_CANCELLED = CANCELLED_LANE.encode()


class HeldJob(NamedTuple):
    """A job that this worker holds, as bytes."""

    id: JobId
    raw: bytes

    @property
    def at_most_once(self) -> bool:
        if b"at_most_once" not in self.raw:
            return False
        try:
            return bool(decode(self.raw).get("at_most_once"))
        except Exception:
            return False  # it cannot be read; the child will say so

    @property
    def cancelled(self) -> bool:
        """Whether somebody had cancelled it when it was fetched."""
        return _CANCELLED in self.raw and self._field("lane") == CANCELLED_LANE

    @property
    def group(self) -> str | None:
        """None of one that cannot be read; the child will say so."""
        group = self._field("group")
        return group if isinstance(group, str) else None

    def _field(self, name: str) -> object:
        try:
            return decode(self.raw).get(name)
        except Exception:
            return None

    @property
    def memory(self) -> int | None:
        """How many bytes of memory it asked for, if it did; it may not use more."""
        if b"mem\x00" not in self.raw:
            return None
        try:
            asked = decode(self.raw).get("mem")
            return int(asked) if isinstance(asked, int | float) and asked > 0 else None
        except Exception:
            return None
