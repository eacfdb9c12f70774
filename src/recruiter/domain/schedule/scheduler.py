"""A scheduler: the template of a job, its schedule, and the last occurrence that was handled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NoReturn

from recruiter.domain.duration import humanize
from recruiter.domain.job import Job
from recruiter.domain.schedule.occurrences import WINDOW, Due, Late, occurrence_id
from recruiter.domain.text import said_by
from recruiter.errors import InvalidSchedule

_NEVER = datetime.min.replace(tzinfo=UTC)


class Overlap(StrEnum):
    """What becomes of an occurrence when an earlier one is still waiting, running or being retried."""

    ALLOW = "allow"
    """It is made all the same."""
    UNIQUE = "unique"
    """It is skipped."""
    REPLACE = "replace"
    """The earlier one is cancelled."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise InvalidSchedule(f"overlap is 'allow', 'unique' or 'replace', not {said_by(value, repr)}")


@dataclass(frozen=True, slots=True)
class Pause:
    """Since when, by whom and why something is paused."""

    at: datetime
    by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A repeatable job. `handled` only moves forward, and moves together with the jobs that are made."""

    urn: str
    template: Job
    """What every occurrence is like; its id and times are the occurrence's own."""
    schedule: Mapping[str, Any]
    """The schedule policy, as a document."""
    created_at: datetime
    handled: datetime
    """Every occurrence up to here has been made, or skipped for good."""
    next_at: datetime | None
    """When the leader must look again; None: there will be no other occurrence."""
    overlap: Overlap = Overlap.ALLOW
    late: Late = Late.LATEST
    window: timedelta = WINDOW
    must_succeed_within: timedelta | None = None
    paused: Pause | None = None
    broken: str | None = None
    """Why its policy cannot be asked, if it cannot."""
    last_at: datetime | None = None
    """The occurrence that was made last."""
    made: int = 0
    skipped: int = 0
    succeeded_at: datetime | None = None
    """The last known success; kept when the archive has removed it."""
    revision: int = 0
    """How often its definition was changed."""

    def broken_promise(self, succeeded_at: datetime | None, now: datetime) -> str | None:
        """What it has promised (`must_succeed_within`) and not kept, given its last success."""
        if self.must_succeed_within is None or self.paused is not None:
            return None
        since = max(succeeded_at or self.created_at, self.created_at)
        if now - since <= self.must_succeed_within:
            return None
        last = f"its last success is from {succeeded_at:%Y-%m-%d %H:%M:%S}" if succeeded_at else "it never has"
        return f"must succeed every {humanize(self.must_succeed_within)}, and {last}"

    def same_definition(self, other: Scheduler) -> bool:
        """Do both say the same? What has happened to them is another matter."""
        return self._definition() == other._definition()

    def _definition(self) -> tuple[Any, ...]:
        template = replace(self.template, id="", created_at=_NEVER, scheduled_at=_NEVER, expires_at=None)
        return (template, self.schedule, self.overlap, self.late, self.window, self.must_succeed_within)

    def occurrence(self, instant: datetime, now: datetime) -> Job:
        """The job of this occurrence."""
        return replace(
            self.template,
            id=occurrence_id(self.urn, instant),
            urn=self.urn,
            created_at=now,
            scheduled_at=instant,
            expires_at=self.template.expiry(instant),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a scheduler in one look: the occurrences to make, and where it stands afterwards."""

    scheduler: Scheduler
    instants: tuple[datetime, ...]
    handled: datetime
    next_at: datetime | None
    skipped: int
    cancels: bool = False
    """Whether what is left of earlier occurrences is to be cancelled."""


def plan(scheduler: Scheduler, due: Due, busy: bool) -> Plan:
    """What to do about these due occurrences, when an earlier one is busy (waiting, running, retrying) or is not."""
    instants = due.occurrences
    if scheduler.overlap is not Overlap.ALLOW:
        instants = instants[-1:]  # two of them would overlap each other
    if scheduler.overlap is Overlap.UNIQUE and busy:
        instants = ()
    cancels = scheduler.overlap is Overlap.REPLACE and busy and bool(instants)
    skipped = due.skipped + len(due.occurrences) - len(instants)
    return Plan(scheduler, instants, due.handled, due.next, skipped, cancels)
