"""Why a job was archived: the one word every archived job carries."""

from __future__ import annotations

from enum import StrEnum


class Why(StrEnum):
    """Each word is stored as it is written here; people filter by them, so they never change."""

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
