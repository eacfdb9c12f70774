"""What became of one job that was run in the calling process."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from recruiter.domain.job import JobId


@dataclass(frozen=True, slots=True)
class JobReport:
    """One attempt at a job: it is done, it has failed for good (`why`), or it waits to be tried again (`next_at`)."""

    id: JobId
    task: str
    done: bool
    why: str | None = None
    """Why it ended, one of `Why`; None while it will be tried again."""
    result: Any = None
    error: str | None = None
    """What went wrong in this attempt, such as "ValueError: no good"."""
    next_at: datetime | None = None
    """When it will be tried again."""
