"""Migration: reads the documents of other schedulers as jobs and schedulers of Recruiter. Nothing is stored here.

A foreign document becomes a job, a scheduler, or nothing, with the reason. Each program has a module: agenda,
apscheduler, recruiter_php.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from recruiter.domain.names import DEFAULT_GROUP, DEFAULT_METHOD
from recruiter.domain.retry.decision import RetryPolicy
from recruiter.domain.schedule.scheduler import SchedulePolicy

Arguments = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class MovedJob:
    """A job that waits there."""

    id: str
    """Made of the id that it has there, so that importing it twice makes one job."""
    task: str
    args: Arguments
    at: datetime | None = None
    group: str = DEFAULT_GROUP
    priority: int | float = 0
    tags: tuple[str, ...] = ()
    method: str = DEFAULT_METHOD
    retry: RetryPolicy | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MovedScheduler:
    """A job that repeats there."""

    id: str
    urn: str
    task: str
    args: Arguments
    policy: SchedulePolicy
    unique: bool = False
    retry: RetryPolicy | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotMoved:
    """A document that is left where it is."""

    id: str
    reason: str


Moved = MovedJob | MovedScheduler | NotMoved


def task_name(name: object, renamed: Mapping[str, str]) -> str:
    """The name of our task: as it was said, or the name there with blanks and slashes replaced."""
    text = str(name)
    return renamed.get(text) or re.sub(r"[\s/]+", "_", text.strip())


def moment(value: object) -> datetime | None:
    """A date of the foreign document, in UTC."""
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def arguments(value: object) -> Arguments:
    """A document is named arguments, an array positional ones, nothing none, and any other value the only one."""
    if value is None:
        return {}
    return value if isinstance(value, Mapping | list) else [value]
