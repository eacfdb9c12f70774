"""Unique, debounced and throttled jobs: what happens to a new job when there is already a job with its key.

    unique, until ended       met, as long as the first has not ended
    unique, until started     met, as long as the first has not been given to a worker
    unique, until a time      met, for so long after the first was made
    debounce                  the first waits anew, with the arguments of the second, as long as no worker has it
    throttle                  the first keeps its time and gets the arguments of the second; if it has started, the
                              second waits until the period since the first is over

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
    """What a job of the same key means for this one."""

    kind: UniqueKind
    key: str | None = None
    """A key of the user's own; None for the task with its arguments (debounce and throttle: for the task alone)."""
    seconds: float = 0.0
    """The period, or how long a debounced job waits."""
    at_most: float | None = None
    """How long a debounced job can be put off in all."""

    @classmethod
    def until(cls, until: Until, key: object = None) -> Uniqueness:
        """Raises InvalidJob, InvalidName, InvalidDuration."""
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
    def needs_untouched(self) -> bool:
        """Whether it matters that the other job has started."""
        return self.replaces or self.kind is UniqueKind.STARTED


@dataclass(frozen=True, slots=True)
class KnownJob:
    """The last job of a key."""

    id: JobId
    created_at: datetime
    scheduled_at: datetime
    """When it was due, or is."""
    exists: bool
    """It has not ended."""
    untouched: bool
    """And no worker has been given it, and it has not been tried."""


@dataclass(frozen=True, slots=True)
class Existing:
    """There is one: nothing is made."""

    id: JobId


@dataclass(frozen=True, slots=True)
class Replace:
    """The one that waits gets these arguments, and this time."""

    id: JobId
    at: datetime


@dataclass(frozen=True, slots=True)
class Make:
    """A new job, due then; None for when it says itself."""

    at: datetime | None = None


Decision: TypeAlias = Existing | Replace | Make


def decide(wanted: Uniqueness, known: KnownJob | None, now: datetime) -> Decision:
    """What becomes of a job of this key that is made now."""
    wait = timedelta(seconds=wanted.seconds)
    match wanted.kind:
        case UniqueKind.ENDED:
            return Existing(known.id) if known is not None and known.exists else Make()
        case UniqueKind.STARTED:
            return Existing(known.id) if known is not None and known.untouched else Make()
        case UniqueKind.PERIOD:
            return Existing(known.id) if known is not None and now < after(known.created_at, wait) else Make()
        case UniqueKind.DEBOUNCE:
            if known is None or not known.untouched:
                return Make(after(now, wait))
            at = after(now, wait)
            if wanted.at_most is not None:
                at = min(at, after(known.created_at, timedelta(seconds=wanted.at_most)))
            return Replace(known.id, max(at, known.scheduled_at))
        case UniqueKind.THROTTLE:
            if known is None:
                return Make(now)
            if known.untouched:
                return Replace(known.id, known.scheduled_at)
            return Make(max(now, after(known.scheduled_at, wait)))


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
