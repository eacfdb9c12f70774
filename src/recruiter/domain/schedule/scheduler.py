"""A scheduler: the template of a job, its schedule, and the last handled occurrence; and pure functions that decide
about due occurrences.

    the scheduler's policy ──▶ late_occurrences(policy, last, now) ──▶ Due(occurrences, handled, next, …)
    these, and the overlap ──▶ plan(scheduler, due, busy)          ──▶ Plan(instants, handled, next_at, …)
    one of them            ──▶ occurrence_id(urn, instant)         ──▶ "report:daily@2030-01-01T06:00:00Z"

An occurrence is an instant without a number. So two leaders, or a restarted leader, give the same id to the same
occurrence, and the second leader finds that its job exists.

A custom policy is a class with `next_after`, registered where the tasks are (docs/how-to/repeatable-jobs.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NoReturn

from recruiter.domain.duration import DurationLike, humanize, to_timedelta
from recruiter.domain.job import Job
from recruiter.domain.names import plain
from recruiter.domain.retry.decision import LATEST, StoredPolicy
from recruiter.domain.text import said_by
from recruiter.errors import InvalidSchedule

WINDOW = timedelta(minutes=30)
"""Older occurrences are not created after downtime."""

MAX_OCCURRENCES_WALKED = 2_000
"""Maximum number of occurrences of one scheduler to visit. The default window has about as many seconds."""


class SchedulePolicy(StoredPolicy, ABC):
    """When a repeatable job runs. A policy is a value: immutable, compared by content.

    The same time must give the same answer in every process: the next leader asks again.
    """

    error = InvalidSchedule

    @abstractmethod
    def next_after(self, moment: datetime) -> datetime | None:
        """The first occurrence strictly after this aware time, in UTC, in whole milliseconds; None: never again."""


class Late(StrEnum):
    """The treatment of occurrences that were missed because there was no leader."""

    SKIP = "skip"
    """They are dropped."""
    LATEST = "latest"
    """Only the newest is created: one report, not one for each day of the holidays."""
    ALL = "all"
    """All are created, up to a bound."""

    @classmethod
    def of(cls, value: object) -> Late:
        """Raises InvalidSchedule."""
        return cls(plain(value)) if isinstance(value, str) else cls._missing_(value)

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise InvalidSchedule(f"late is 'skip', 'latest' or 'all', not {said_by(value, repr)}")


@dataclass(frozen=True, slots=True)
class Due:
    """The occurrences to create now, oldest first, and where to continue."""

    occurrences: tuple[datetime, ...]
    handled: datetime
    """Every occurrence up to here is decided: the `last` of the next call."""
    next: datetime | None
    """The first occurrence that is not due yet; None: there will be none."""
    skipped: int = 0
    """Number of occurrences inside the window that are not created."""
    too_old: bool = False
    """Some occurrences are older than the window. They are not created and not counted."""


def late_occurrences(
    policy: SchedulePolicy,
    last: datetime,
    now: datetime,
    window: DurationLike = WINDOW,
    late: Late | str = Late.LATEST,
    *,
    tolerance: DurationLike = "1 minute",
    bound: int = 100,
) -> Due:
    """Selects the occurrences to create after `last`, up to and including `now`.

    If the oldest is younger than `tolerance`, the fleet was not down (a change of the leader takes seconds), and all
    are created, regardless of `late`: a leader that checks every two seconds must not lose half of the occurrences of
    every second. Otherwise SKIP creates the occurrences that are still on time, LATEST the newest, ALL all of them.
    Occurrences older than `window` are never created. If there are more than `bound`, the oldest are dropped.

    The function visits the occurrences in the window, regardless of the length of the downtime. In a window with
    thousands of occurrences it visits only the last part, and all before it is too old. If the clock stepped back
    before `last`, there is nothing to do: handled occurrences are not handled again.
    """
    if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
        raise InvalidSchedule(f"the bound is a number of occurrences, 1 or more, not {said_by(bound, repr)}")
    last, now, late = in_utc(last), in_utc(now), Late(late)
    horizon = _back(now, to_timedelta(window))
    upcoming = next_occurrence(policy, last)
    too_old = upcoming is not None and upcoming < horizon
    if too_old:
        upcoming = next_occurrence(policy, horizon - datetime.resolution)
    missed, upcoming = _walk(policy, upcoming, now)
    if upcoming is not None and upcoming <= now:  # too many: the same time before now
        too_old = True
        horizon = now - (missed[-1] - missed[0])
        missed, upcoming = _walk(policy, next_occurrence(policy, horizon), now)
    while upcoming is not None and upcoming <= now:  # they come closer together there: half of that, until they fit
        horizon += (now - horizon) / 2
        missed, upcoming = _walk(policy, next_occurrence(policy, horizon), now)
    on_time_since = _back(now, to_timedelta(tolerance))
    was_down = too_old or (bool(missed) and missed[0] < on_time_since)
    made = (_after_downtime(late, missed, on_time_since) if was_down else missed)[-bound:]
    handled = missed[-1] if missed else horizon if too_old else last
    return Due(tuple(made), handled, upcoming, skipped=len(missed) - len(made), too_old=too_old)


def _walk(policy: SchedulePolicy, upcoming: datetime | None, now: datetime) -> tuple[list[datetime], datetime | None]:
    """The occurrences from here up to now, and the next one; not all if there are very many."""
    missed: list[datetime] = []
    while upcoming is not None and upcoming <= now and len(missed) < MAX_OCCURRENCES_WALKED:
        missed.append(upcoming)
        upcoming = next_occurrence(policy, upcoming)
    return missed, upcoming


def next_occurrence(policy: SchedulePolicy, moment: datetime) -> datetime | None:
    """Calls `policy.next_after` and checks the answer: a custom policy must not cause an endless loop."""
    moment = in_utc(moment)
    try:
        answer: object = policy.next_after(moment)
    except InvalidSchedule:
        raise
    except (Exception, SystemExit) as error:  # it is the policy's, not the leader's
        problem = f"{said_by(policy, repr)} raised {type(error).__name__}: {said_by(error)}"
        raise InvalidSchedule(f"{problem}; correct its next_after()") from error
    if answer is None:
        return None
    instant = _checked_answer(policy, moment, answer)
    return instant if instant <= LATEST else None


def occurrence_id(urn: str, instant: datetime) -> str:
    """The id of the job of this occurrence: the same in every process, and different for every occurrence. The instant
    has no '@', so the last '@' of the id ends the urn."""
    return f"{urn}@{in_utc(instant).replace(tzinfo=None).isoformat()}Z"


def in_utc(moment: datetime) -> datetime:
    """The aware time in UTC; InvalidSchedule if it has no time zone."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidSchedule(f"a datetime with a time zone is needed, not {said_by(moment, repr)}")
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # within a day of the first or the last datetime there is
        return moment.replace(tzinfo=UTC)


def _after_downtime(late: Late, missed: list[datetime], on_time_since: datetime) -> list[datetime]:
    """The missed occurrences that are created after a downtime of the fleet."""
    match late:
        case Late.SKIP:
            return [instant for instant in missed if instant >= on_time_since]
        case Late.LATEST:
            return missed[-1:]
        case Late.ALL:
            return missed


def _checked_answer(policy: SchedulePolicy, moment: datetime, answer: object) -> datetime:
    if not isinstance(answer, datetime) or answer.utcoffset() is None:
        problem = "next_after() answers a datetime with a time zone, or None"
    elif answer <= moment:
        problem = "next_after() must answer something later"
    elif answer.microsecond % 1000:  # MongoDB would keep an earlier instant, and the occurrence would come again
        problem = "next_after() must answer whole milliseconds"
    else:
        return in_utc(answer)
    answer_text = f"{said_by(policy, repr)} answered {said_by(answer, repr)} for {moment.isoformat()}"
    raise InvalidSchedule(f"{answer_text}; {problem}")


def _back(now: datetime, window: timedelta) -> datetime:
    try:
        return max(now - window, _FIRST)
    except OverflowError:
        return _FIRST


_FIRST = datetime.min.replace(tzinfo=UTC) + datetime.resolution


_NEVER = datetime.min.replace(tzinfo=UTC)


class Overlap(StrEnum):
    """The treatment of an occurrence when an earlier one is still waiting, running or being retried."""

    ALLOW = "allow"
    """It is created anyway."""
    UNIQUE = "unique"
    """It is skipped."""
    REPLACE = "replace"
    """The earlier one is cancelled."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise InvalidSchedule(f"overlap is 'allow', 'unique' or 'replace', not {said_by(value, repr)}")


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause: its begin, author and reason."""

    at: datetime
    by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A repeatable job. `handled` only moves forward, and moves together with the jobs that are made."""

    urn: str
    template: Job
    """The job of every occurrence, except for its id and times."""
    schedule: Mapping[str, Any]
    """The schedule policy, as a document."""
    created_at: datetime
    handled: datetime
    """Every occurrence up to here has been made, or skipped for good."""
    next_at: datetime | None
    """When the leader must check again; None: there will be no other occurrence."""
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
    """Number of changes of its definition."""

    def late_by(self, now: datetime) -> timedelta:
        """How late its next occurrence is; zero within a minute, which a change of the leader may take."""
        late = now - self.next_at if self.next_at is not None else timedelta()
        return late if late > timedelta(minutes=1) else timedelta()

    def broken_promise(self, succeeded_at: datetime | None, now: datetime) -> str | None:
        """A sentence if it has not kept its promise (`must_succeed_within`), given its last success."""
        if self.must_succeed_within is None or self.paused is not None:
            return None
        since = max(succeeded_at or self.created_at, self.created_at)
        if now - since <= self.must_succeed_within:
            return None
        last = f"its last success is from {succeeded_at:%Y-%m-%d %H:%M:%S}" if succeeded_at else "it never has"
        return f"must succeed every {humanize(self.must_succeed_within)}, and {last}"

    def same_definition(self, other: Scheduler) -> bool:
        """Whether both have the same definition, regardless of their history."""
        return self._definition() == other._definition()

    def _definition(self) -> tuple[Any, ...]:
        template = replace(self.template, id="", created_at=_NEVER, scheduled_at=_NEVER, expires_at=None)
        return (template, self.schedule, self.overlap, self.late, self.window, self.must_succeed_within)

    def occurrence(self, instant: datetime, now: datetime) -> Job:
        """The job of the occurrence at this time."""
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
    """The result of one pass over a scheduler: the occurrences to create, and its state afterwards."""

    scheduler: Scheduler
    instants: tuple[datetime, ...]
    handled: datetime
    next_at: datetime | None
    skipped: int
    cancels: bool = False
    """Whether earlier occurrences that have not ended must be cancelled."""


def plan(scheduler: Scheduler, due: Due, busy: bool) -> Plan:
    """Decides about due occurrences; `busy` if an earlier one is waiting, running or being retried."""
    instants = due.occurrences
    if scheduler.overlap is not Overlap.ALLOW:
        instants = instants[-1:]  # two of them would overlap each other
    if scheduler.overlap is Overlap.UNIQUE and busy:
        instants = ()
    cancels = scheduler.overlap is Overlap.REPLACE and busy and bool(instants)
    skipped = due.skipped + len(due.occurrences) - len(instants)
    return Plan(scheduler, instants, due.handled, due.next, skipped, cancels)
