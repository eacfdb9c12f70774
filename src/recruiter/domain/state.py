"""The states a job can be in, in the words of the whole project."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @classmethod
    def at_the_end(cls, done: bool, why: str) -> State:
        """Of a job that has ended, for this reason."""
        if done:
            return cls.SUCCEEDED
        return {"cancelled": cls.CANCELLED, "lost": cls.LOST}.get(why, cls.FAILED)
