"""Unique, debounced and throttled jobs: the effect of a job on a new job with the same key.

    unique, until ended       met, as long as the first has not ended
    unique, until started     met, as long as the first has not begun
    unique, for a period      met, during the period since the first was created, unless it ended without having begun
    debounce                  the first waits again, with the arguments of the second, as long as it has not begun
    throttle                  the first keeps its time and gets the arguments of the second; if it has begun, the
                              second waits until the period since then has ended

A job has begun when its code may have run (`begun_at` in `store/job_fields.py`). It stays so while it sleeps, waits for
a signal or waits for a retry. A cancelled job has ended when no worker holds it.

The decision is pure. `store/in_session.py` makes it in a transaction that reads the key and writes it, so that any
number of producers agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from recruiter.domain.duration import DurationLike, to_timedelta
from recruiter.domain.job import JobId
from recruiter.domain.names import check_text
from recruiter.domain.retry.decision import after
from recruiter.domain.text import shown
from recruiter.errors import InvalidDuration, InvalidJob, InvalidName

LONGEST_KEY = 500

Until: TypeAlias = Literal["started", "ended"] | DurationLike
"""Until when a job is unique."""


class UniqueKind(StrEnum):
    ENDED = "ended"
    STARTED = "started"
    PERIOD = "period"
    DEBOUNCE = "debounce"
    THROTTLE = "throttle"


@dataclass(frozen=True, slots=True)
class Uniqueness:
    """The rule for a job that meets another job with its key."""

    kind: UniqueKind
    key: str | None = None
    """The user's key; None for the task with its arguments (debounce and throttle: for the task alone)."""
    seconds: float = 0.0
    """The period, or the delay of a debounced job."""
    at_most: float | None = None
    """The longest total delay of a debounced job, in seconds."""

    @classmethod
    def until(cls, until: Until, key: object = None) -> Uniqueness:
        """Unique until it has started or ended, or for a duration. Raises InvalidJob, InvalidName, InvalidDuration."""
        allowed = f'a job is unique until "started", "ended" or for a duration such as "1 hour", not {shown(until)}'
        if isinstance(until, bool):
            raise InvalidJob(allowed)
        if until in (UniqueKind.STARTED, UniqueKind.ENDED):
            return cls(UniqueKind(str(until)), _checked_key(key))
        try:
            return cls(UniqueKind.PERIOD, _checked_key(key), _seconds("until", until))
        except InvalidDuration as error:
            raise InvalidDuration(f"{allowed}: {error}") from None

    @classmethod
    def debounce(cls, delay: DurationLike, key: object, at_most: DurationLike | None) -> Uniqueness:
        seconds, most = _seconds("a debounce", delay), None if at_most is None else _seconds("at_most", at_most)
        if most is not None and most < seconds:
            raise InvalidDuration("at_most must not be shorter than the debounce itself")
        return cls(UniqueKind.DEBOUNCE, _checked_key(key), seconds, most)

    @classmethod
    def throttle(cls, period: DurationLike, key: object) -> Uniqueness:
        return cls(UniqueKind.THROTTLE, _checked_key(key), _seconds("a throttle", period))

    @property
    def replaces(self) -> bool:
        """Whether the arguments of the last job win."""
        return self.kind in (UniqueKind.DEBOUNCE, UniqueKind.THROTTLE)

    @property
    def needs_start(self) -> bool:
        """Whether it matters that the other job has begun. The start of a job of this kind is written before it."""
        return self.replaces or self.kind is UniqueKind.STARTED

    @property
    def counts_ended(self) -> bool:
        """Whether the outcome of an ended job matters."""
        return self.kind in (UniqueKind.PERIOD, UniqueKind.THROTTLE)


@dataclass(frozen=True, slots=True)
class KnownJob:
    """The last job of a key."""

    id: JobId
    created_at: datetime
    scheduled_at: datetime
    exists: bool
    """It has not ended."""
    begun_at: datetime | None
    """None if it has not begun, or ended without having begun."""

    @property
    def is_to_begin(self) -> bool:
        """It waits for its first start."""
        return self.exists and self.begun_at is None


@dataclass(frozen=True, slots=True)
class Existing:
    """The known job counts: no job is created."""

    id: JobId


@dataclass(frozen=True, slots=True)
class Replace:
    """The waiting job gets these arguments, and this time."""

    id: JobId
    at: datetime


@dataclass(frozen=True, slots=True)
class Make:
    """A new job, due at this time; None for the job's own time."""

    at: datetime | None = None


Decision: TypeAlias = Existing | Replace | Make


def decide(wanted: Uniqueness, known: KnownJob | None, now: datetime) -> Decision:
    """Decides about a job of this key that is created now."""
    wait = timedelta(seconds=wanted.seconds)
    match wanted.kind:
        case UniqueKind.ENDED:
            return Existing(known.id) if known is not None and known.exists else Make()
        case UniqueKind.STARTED:
            return Existing(known.id) if known is not None and known.is_to_begin else Make()
        case UniqueKind.PERIOD:
            if known is None or not (known.exists or known.begun_at):
                return Make()
            return Existing(known.id) if now < after(known.created_at, wait) else Make()
        case UniqueKind.DEBOUNCE:
            if known is None or not known.is_to_begin:
                return Make(after(now, wait))
            at = after(now, wait)
            if wanted.at_most is not None:
                at = min(at, after(known.created_at, timedelta(seconds=wanted.at_most)))
            return Replace(known.id, max(at, known.scheduled_at))
        case UniqueKind.THROTTLE:
            if known is None:
                return Make(now)
            if known.is_to_begin:
                return Replace(known.id, known.scheduled_at)
            # A job that ended without having begun leaves its place to the next job.
            return Make(max(now, known.scheduled_at if known.begun_at is None else after(known.begun_at, wait)))


def _checked_key(key: Any) -> str | None:
    if key is None:
        return None
    text = check_text("a key", key)
    if len(text) > LONGEST_KEY:
        raise InvalidName(f"a key has {len(text)} characters; at most {LONGEST_KEY} are allowed")
    return text


def _seconds(name: str, duration: DurationLike) -> float:
    seconds = to_timedelta(duration).total_seconds()
    if not seconds:
        raise InvalidDuration(f"{name} must be longer than nothing")
    return seconds
