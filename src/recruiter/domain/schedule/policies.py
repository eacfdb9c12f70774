"""The schedule policies of a steady pace. Times on the clock on the wall are `Cron`'s, in cron.py."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from recruiter.domain.duration import DurationLike, humanize, to_timedelta
from recruiter.domain.retry.decision import LATEST
from recruiter.domain.schedule.occurrences import SchedulePolicy, in_utc
from recruiter.domain.text import said_by
from recruiter.errors import InvalidSchedule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SHORTEST = timedelta(seconds=1)
_LONGEST = timedelta(days=36_525)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, init=False, repr=False)
class Every(SchedulePolicy):
    """Each time that `interval` (text, timedelta or seconds) has gone by, counted from `anchor`, before it and after.

    Not from when the scheduler was made or the leader was started: from a fixed instant, the UNIX epoch unless you
    give one, so that every process counts alike. `Every("1 day")` is midnight UTC; `Every("1 day", anchor=a)` is the
    time of day of `a`, in UTC. No zone has a say in it: for six o'clock in Rome, summer and winter, write a Cron.
    """

    interval: timedelta
    anchor: datetime

    def __init__(self, interval: DurationLike, anchor: datetime | None = None) -> None:
        object.__setattr__(self, "interval", _checked_interval(to_timedelta(interval)))
        object.__setattr__(self, "anchor", EPOCH if anchor is None else _checked_anchor(anchor))

    def next_after(self, moment: datetime) -> datetime | None:
        return _next_step(in_utc(moment), self.interval, self.anchor)

    def export(self) -> dict[str, Any]:
        seconds = self.interval.total_seconds()
        anchor = {} if self.anchor == EPOCH else {"anchor": self.anchor}
        return {"interval": int(seconds) if seconds.is_integer() else seconds, **anchor}

    def __repr__(self) -> str:
        anchor = "" if self.anchor == EPOCH else f", anchor={self.anchor.isoformat()}"
        return f"Every({humanize(self.interval)!r}{anchor})"


@dataclass(frozen=True)
class EveryMinutes(SchedulePolicy):
    """Every `n` minutes, at the multiples of `n` minutes since the UNIX epoch: 15 is :00, :15, :30 and :45.

    The pace never breaks: 7 goes on across the hour and across midnight, where the cron `*/7 * * * *` begins again
    each hour.
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _checked_minutes(self.n))

    def next_after(self, moment: datetime) -> datetime | None:
        return _next_step(in_utc(moment), timedelta(minutes=self.n), EPOCH)


def _next_step(moment: datetime, interval: timedelta, anchor: datetime) -> datetime | None:
    try:
        found = anchor + ((moment - anchor) // interval + 1) * interval
    except OverflowError:
        return None
    return found if found <= LATEST else None


def _checked_interval(interval: timedelta) -> timedelta:
    if not _SHORTEST <= interval <= _LONGEST:
        raise InvalidSchedule(f"an interval is between 1 second and 100 years, not {humanize(interval)}")
    if interval % _MILLISECOND:
        raise InvalidSchedule(f"an interval is of whole milliseconds, as MongoDB keeps them, not {humanize(interval)}")
    return interval


def _checked_anchor(anchor: datetime) -> datetime:
    anchor = in_utc(anchor)
    if anchor.microsecond % 1000:
        raise InvalidSchedule(f"an anchor is of whole milliseconds, as MongoDB keeps them, not {anchor.isoformat()}")
    return anchor


def _checked_minutes(value: object) -> int:
    # A number that JavaScript wrote is a float, whole or not.
    n = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= _LONGEST // timedelta(minutes=1):
        raise InvalidSchedule(f"EveryMinutes needs a whole number of minutes, 1 or more, not {said_by(value, repr)}")
    return n
