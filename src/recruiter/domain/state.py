"""The states a job can be in, in the words of the whole project."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a job is on its way, as `job.state` says it."""

    WAITING = "waiting"
    """Nobody holds it: it is due, or postponed, or to be tried again."""
    RUNNING = "running"
    """A worker holds it; also in the moment before it starts."""
    SUCCEEDED = "succeeded"
    """It has ended well."""
    FAILED = "failed"
    """It has ended, and will not be tried again."""
    CANCELLED = "cancelled"
    """Somebody did not want it any more; or not after a time that has passed."""
    LOST = "lost"
    """It must not run twice, was started, and nobody knows how it ended."""

    @classmethod
    def at_the_end(cls, done: bool, why: str) -> State:
        """Of a job that has ended, for this reason."""
        if done:
            return cls.SUCCEEDED
        return {"cancelled": cls.CANCELLED, "expired": cls.CANCELLED, "lost": cls.LOST}.get(why, cls.FAILED)
