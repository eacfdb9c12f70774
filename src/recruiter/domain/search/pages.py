"""What a search for jobs answers: pages, short records, counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from recruiter.domain.job import JobId
from recruiter.domain.planning.needs import NOTHING, Needs
from recruiter.domain.state import State
from recruiter.domain.unreadable import Unreadable

J = TypeVar("J", covariant=True)


@dataclass(frozen=True, slots=True)
class Page(Generic[J]):
    """Some jobs, in order, and where to go on."""

    jobs: tuple[J, ...]
    next: str | None = None
    """What to give as `after` for the next page; None if there is nothing more."""
    looked_at: int = 0
    """About how many documents were read for it. Where no index answers a condition, a page may be short, even empty,
    while `next` says that there is more to look at."""
    unreadable: tuple[Unreadable, ...] = ()
    """Documents that should have been on this page and cannot be read."""

    def __iter__(self) -> Iterator[J]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job at a glance: without its arguments, result, trace and log."""

    id: JobId
    task: str
    group: str
    state: State
    created_at: datetime
    scheduled_at: datetime
    priority: int | float = 0
    tags: tuple[str, ...] = ()
    urn: str | None = None
    owner: str | None = None
    needs: Needs = NOTHING
    attempts: int = 0
    started_at: datetime | None = None
    """Its last attempt, or the one that runs."""
    ended_at: datetime | None = None
    why: str | None = None
    error: str | None = None
    """The class of the exception that its last attempt ended with."""
    message: str | None = None
    """What that exception said, or how the attempt ended."""
    worker: str | None = None
    """Who ran its last attempt."""
    stage: str | None = None
    progress: float = 0.0
    locked_by: str | None = None
    """The worker that holds it."""
    locked_at: datetime | None = None
    cancelling: bool = False
    """It is being cancelled, and has not ended yet."""
    blocked: bool = False
    """It waits for other steps of its flow, or its flow is paused."""


class Count(NamedTuple):
    """How many there are; or at least, where counting all would take too long."""

    number: int
    exact: bool

    def __int__(self) -> int:
        return self.number

    def __str__(self) -> str:
        return f"{self.number:,}" if self.exact else f"at least {self.number:,}"
