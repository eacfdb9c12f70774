"""Durations and points in time, as people write them.

A duration is a number of seconds, a timedelta, or a string such as "5 minutes". A point in time is a date such as
2026-11-16T03:00Z or 2026-11-16, or how long ago it was: 2h, "30 minutes ago".
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

import pytimeparse2

from recruiter.domain.text import shown
from recruiter.errors import InvalidDuration, InvalidFilter

_EXAMPLES = "a number of seconds, a timedelta, or a text such as '30s', '5 minutes', '1h30m', '500ms'"

DurationLike = timedelta | int | float | str

_NUMBER = re.compile(r"[\d.]+")
_WHOLE_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")
_ZERO = timedelta(0)
MILLISECOND = timedelta(milliseconds=1)
LONGEST_SECONDS = 1e10
"""The longest stored duration, 317 years: dates can be calculated with it."""


def to_timedelta(value: DurationLike) -> timedelta:
    """The duration as a timedelta, never negative; raises InvalidDuration for everything that is not one."""
    duration = _read(value)
    if duration < _ZERO:
        raise InvalidDuration(f"{shown(value)} is negative; write {_EXAMPLES}")
    return duration


def to_seconds(value: DurationLike) -> float:
    return to_timedelta(value).total_seconds()


def humanize(duration: timedelta) -> str:
    """For people, exact to the microsecond: "1m 30s". `to_timedelta` reads it back."""
    if duration < _ZERO:
        return f"-{humanize(-duration)}"
    minutes, seconds = divmod(duration.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    milliseconds = f"{duration.microseconds // 1000}.{duration.microseconds % 1000:03}".rstrip("0").rstrip(".")
    parts = {"d": duration.days, "h": hours, "m": minutes, "s": seconds}
    texts = [f"{amount}{unit}" for unit, amount in parts.items() if amount]
    if duration.microseconds:
        texts.append(f"{milliseconds}ms")
    return " ".join(texts) or "0s"


def elapsed(duration: timedelta) -> str:
    """For people, in whole seconds and never negative: the clocks of two hosts may disagree."""
    return humanize(timedelta(seconds=max(0, round(duration.total_seconds()))))


def brief(seconds: float | None) -> str:
    """For people, in two units at most: "1m 17s", "3.2s", "12ms"; "–" for None."""
    if seconds is None:
        return "–"
    if seconds < 0.0001:
        return "<0.1ms"
    if seconds < 1:
        return f"{_one_decimal(seconds * 1000)}ms"
    if seconds < 60:
        return f"{_one_decimal(seconds)}s"
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds_left, "s")]
    first = next(place for place, (amount, _) in enumerate(parts) if amount)
    return " ".join(f"{amount}{unit}" for amount, unit in parts[first : first + 2] if amount)


def _one_decimal(amount: float) -> str:
    """None from 10 on, and none that is zero."""
    return f"{amount:.1f}".removesuffix(".0") if amount < 10 else f"{int(amount)}"


def _read(value: DurationLike) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return _from_seconds(_parse(value), value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidDuration(f"{shown(value)} is not a duration; write {_EXAMPLES}")
    return _from_seconds(value, value)


def _from_seconds(seconds: float, value: DurationLike) -> timedelta:
    if isinstance(seconds, float) and not math.isfinite(seconds):
        raise InvalidDuration(f"{shown(value)} is not a duration; write {_EXAMPLES}")
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise InvalidDuration(f"{shown(value)} is longer than any duration can be") from None


def _parse(text: str) -> float:
    words = " ".join(text.split())
    # pytimeparse2 reads "1.2.3s" as zero seconds instead of refusing it.
    # A longer string may be an attack that makes a regular expression backtrack.
    sane = len(words) <= 100 and all(map(_WHOLE_NUMBER.fullmatch, _NUMBER.findall(words)))
    seconds = pytimeparse2.parse(words) if sane and words else None
    if seconds is None:
        raise InvalidDuration(f"{shown(text)} is not a duration; write {_EXAMPLES}")
    return float(seconds)


# -- moments -------------------------------------------------------------------------------------------------------


Moment = datetime | timedelta
"""A date; or a duration, which is counted back from now."""
MomentLike = datetime | timedelta | int | float | str

EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
UNTIL_SIGNAL = datetime(9999, 1, 1, tzinfo=UTC)
"""The time of a job that waits for a signal without a timeout. For people: "when its signal comes"."""
_MOMENT_EXAMPLES = "a date such as 2026-11-16T03:00Z, or how long ago, such as 2h or '30 minutes'"


def to_moment(name: str, value: object) -> Moment:
    """Reads a date or a duration. A date in a string without a time zone is in UTC. Raises InvalidFilter."""
    if isinstance(value, str):
        return _read_moment(name, value.strip())
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidFilter(f"{name} needs a datetime with a time zone, not {shown(value)}; add tzinfo=UTC")
        return value
    return _ago(name, value)


def resolved(moment: Moment, now: datetime) -> datetime:
    """The date that this means now; EARLIEST if it would be before the first date."""
    if isinstance(moment, datetime):
        return moment
    try:
        return now - moment
    except OverflowError:
        return EARLIEST


def not_before(moment: datetime) -> datetime:
    """Rounds up to whole milliseconds: MongoDB would round down, which is too early."""
    finer = moment.microsecond % 1000
    try:
        return moment + timedelta(microseconds=1000 - finer) if finer else moment
    except OverflowError:
        return moment


def told(moment: Moment) -> str:
    """For people."""
    if isinstance(moment, timedelta):
        return f"{humanize(moment)} ago"
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _read_moment(name: str, text: str) -> Moment:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return _ago(name, text.removesuffix("ago"))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _ago(name: str, value: object) -> timedelta:
    try:
        return to_timedelta(value)  # type: ignore[arg-type]  # it refuses whatever is none
    except InvalidDuration:
        raise InvalidFilter(f"{name} is {shown(value)}; write {_MOMENT_EXAMPLES}") from None
