"""When: a moment, or so long ago. As people write it: 2026-11-16T03:00Z, 2026-11-16, 2h, "30 minutes ago"."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from recruiter.domain.duration import humanize, to_timedelta
from recruiter.domain.text import shown
from recruiter.errors import InvalidDuration, InvalidFilter

Moment = datetime | timedelta
"""A moment; or a duration, which is counted back from now."""
MomentLike = datetime | timedelta | int | float | str

EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
UNTIL_SIGNAL = datetime(9999, 1, 1, tzinfo=UTC)
"""When a job is due that waits for a signal without a timeout. For people: "when its signal comes"."""
_EXAMPLES = "a date such as 2026-11-16T03:00Z, or how long ago, such as 2h or '30 minutes'"


def to_moment(name: str, value: object) -> Moment:
    """What a person means by it. A date in text without a time zone is in UTC. Raises InvalidFilter."""
    if isinstance(value, str):
        return _read(name, value.strip())
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidFilter(f"{name} needs a datetime with a time zone, not {value!r}; add tzinfo=UTC")
        return value
    return _ago(name, value)


def resolved(moment: Moment, now: datetime) -> datetime:
    """As a date; so long ago that there is no such date is the earliest there is."""
    if isinstance(moment, datetime):
        return moment
    try:
        return now - moment
    except OverflowError:
        return EARLIEST


def not_before(moment: datetime) -> datetime:
    """The first whole millisecond that is not before it: MongoDB cuts what is finer, which would be too early."""
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


def _read(name: str, text: str) -> Moment:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return _ago(name, text.removesuffix("ago"))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _ago(name: str, value: object) -> timedelta:
    try:
        return to_timedelta(value)  # type: ignore[arg-type]  # it refuses whatever is none
    except InvalidDuration:
        raise InvalidFilter(f"{name} is {shown(value)}; write {_EXAMPLES}") from None
