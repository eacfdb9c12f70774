"""The state of a job (`State`), and the reason why it was archived (`Why`)."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The state of a job, as in `job.state`."""

    WAITING = "waiting"
    """No worker holds it: it is due, or postponed, or will be tried again."""
    RUNNING = "running"
    """A worker holds it: it runs, or is about to start."""
    SUCCEEDED = "succeeded"
    """It has ended well."""
    FAILED = "failed"
    """It has ended, and will not be tried again."""
    CANCELLED = "cancelled"
    """It was cancelled, or it expired before it started, or its flow did not need it."""
    LOST = "lost"
    """It must not run twice, it was started, and its outcome is unknown."""

    @classmethod
    def at_the_end(cls, done: bool, why: str) -> State:
        """The state of a job that ended for this reason."""
        if done:
            return cls.SUCCEEDED
        return _AT_THE_END.get(why, cls.FAILED)


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
    WORKER_DIED_TOO_MANY_TIMES = "worker-died-too-many-times"
    MALFORMED = "malformed"
    POLICY_FAILED = "policy-failed"
    DEPENDENCY_FAILED = "dependency-failed"
    NOT_NEEDED = "not-needed"


_AT_THE_END = {
    "cancelled": State.CANCELLED,
    "expired": State.CANCELLED,
    "not-needed": State.CANCELLED,
    "lost": State.LOST,
}
"""The states of jobs that ended without success, by reason; FAILED for all other reasons."""

SKIPPED = "skipped"
WHY_SKIPPED = (Why.DEPENDENCY_FAILED, Why.NOT_NEEDED)
"""Flows and lists show steps that ended for these reasons, without having run, as skipped."""
