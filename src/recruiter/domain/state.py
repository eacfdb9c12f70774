"""The words for where a job is: its state, and why it was archived."""

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


class Why(StrEnum):
    """Why a job was archived. The words are stored as written here, and people filter by them: they never change."""

    DONE = "done"
    TRIED_TOO_MANY_TIMES = "tried-too-many-times"
    NON_RETRIABLE_EXCEPTION = "non-retriable-exception"
    NOT_SCHEDULED_BY_RETRY_POLICY = "not-scheduled-by-retry-policy"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    LOST = "lost"
    CRASHED_TOO_MANY_TIMES = "crashed-too-many-times"
    MALFORMED = "malformed"
    POLICY_FAILED = "policy-failed"
