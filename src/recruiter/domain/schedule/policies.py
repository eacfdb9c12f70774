"""The schedule policies: a steady pace (`Every`), and times on the local clock (`Cron`), also on the days when that
clock is changed.

With summer time, one day of the year lacks some times of day and another has some of them twice:

    Europe/Rome            the last Sunday of March             the last Sunday of October
    the wall shows         01:59 ─▶ 03:00, no 02:30             02:59 ─▶ 02:00, and 02:30 again
    "30 2 * * *"           once, at 03:00                       once, the first time
    "*/30 * * * *"         01:30, 03:00, 03:30, …               02:00, 02:30, 02:00, 02:30, 03:00, …

So there are two kinds of expressions, distinguished as in Debian's cron. A *fixed* expression means times of the day,
and each day has each of them once: a time that does not exist runs when the clock skips it (several such times are one
occurrence then), and a time that exists twice runs the first time. An expression whose minute or hour begins with `*`
means a *pace*: it runs whenever the wall shows a time that fits, so half an hour stays half an hour. A pace that is
limited to some hours (`*/20 2 * * *`, `0 */2 * * *`) does not lose the day without that hour either: it runs once, when
the clock skips it. Debian would not run it.

The clock is not always moved by an hour (Lord Howe: half an hour), not always at night's small hours (Beirut, São
Paulo: midnight, so the day begins at 01:00), not always twice a year (Casablanca: around Ramadan), and Samoa once
skipped a day. Nothing below assumes more than that no clock is moved twice within a day.

cronsim walks the calendar, over naive wall times, where it is right. Its own treatment of zones (as of 2.8) is not
used: for an instant in the second 02:00 it answers an earlier instant, leaves expressions with seconds untreated, loses
`0 */4 * * *` after a shift of half an hour, and loops forever at a midnight that does not exist.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from recruiter.domain.duration import MILLISECOND, DurationLike, humanize, to_timedelta
from recruiter.domain.retry.decision import LATEST
from recruiter.domain.schedule.scheduler import SchedulePolicy, in_utc
from recruiter.domain.text import said_by, shown
from recruiter.errors import InvalidSchedule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_LONGEST = timedelta(days=36_525)


@dataclass(frozen=True, init=False, repr=False)
class Every(SchedulePolicy):
    """Each time that `interval` (text, timedelta or seconds) has gone by, counted from `anchor`, before it and after.

    Not from when the scheduler was made or the leader was started: from a fixed instant, the UNIX epoch unless you
    give one, so that every process counts alike. `Every("1 day")` is midnight UTC; `Every("1 day", anchor=a)` is the
    time of day of `a`, in UTC. Time zones do not matter: for six o'clock in Rome, summer and winter, write a Cron.
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

    The pace never breaks: 7 continues across the hour and across midnight, where the cron `*/7 * * * *` begins
    again each hour.
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
    if not timedelta(seconds=1) <= interval <= _LONGEST:
        raise InvalidSchedule(f"an interval is between 1 second and 100 years, not {humanize(interval)}")
    if interval % MILLISECOND:
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


ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

# name, description, number of values
_FIELDS = (
    ("second", "0-59", 60),
    ("minute", "0-59", 60),
    ("hour", "0-23", 24),
    ("day of month", "1-31, L (the last day) and LW (the last day from Monday to Friday)", 31),
    ("month", "1-12 and JAN-DEC", 12),
    ("day of week", "0-7 (0 and 7 are Sunday), SUN-SAT, MON#2 (the second Monday) and 5L (the last Friday)", 7),
)
_STEP = re.compile(r"/(\d+)$", re.ASCII)

# They are files where zones are, but their content is that of one machine, or counts leap seconds.
_NOT_A_ZONE = re.compile(r"(right|posix)/.*|localtime|posixrules|Factory")

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_EARLIEST = datetime(1, 1, 3, tzinfo=UTC)  # every zone can show it
_SOME_LEAP_YEAR = datetime(2000, 1, 1)


@dataclass(frozen=True, init=False)
class Cron(SchedulePolicy):
    """When the clock on the wall of `tz` (an IANA name, stored as such) fits the expression: `Cron("0 6 * * MON-FRI")`.

    Five fields: minute, hour, day of month, month, day of week; or six, with the seconds in front; or @yearly,
    @annually, @monthly, @weekly, @daily, @midnight, @hourly. A field takes `*`, values, ranges `1-5`, lists `1,5`
    and steps `*/5`; months and days of the week also names. `L` is the last day of the month, `LW` its last day
    from Monday to Friday, `MON#2` its second Monday, `5L` its last Friday. If both days are given, either will do,
    as in every cron (`0 0 13 * FRI`: each 13th and each Friday), unless either begins with `*`.

    An expression that can never fit, such as the 30th of February, is refused like a malformed expression.
    """

    expression: str
    tz: str
    _fields: str = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __init__(self, expression: str, tz: str | ZoneInfo = "UTC") -> None:
        if not isinstance(expression, str):
            raise InvalidSchedule(f"a cron expression is a text such as '0 6 * * *', not {said_by(expression, repr)}")
        zone = _zone_called(tz.key if isinstance(tz, ZoneInfo) else tz)
        object.__setattr__(self, "expression", " ".join(expression.split()))
        object.__setattr__(self, "tz", zone.key)
        object.__setattr__(self, "_fields", _fields_of(self.expression))
        object.__setattr__(self, "_zone", zone)

    def next_after(self, moment: datetime) -> datetime | None:
        # Occurrences are whole seconds, so the fraction makes no difference. Nothing happens after LATEST.
        moment = max(in_utc(moment), _EARLIEST).replace(microsecond=0)
        if moment >= LATEST:
            return None
        minute, hour = self._fields.split()[-5:-3]
        # `*` is a pace, which continues when clocks are moved. A fixed time that clocks skip or repeat occurs once.
        is_pace = minute.startswith("*") or hour.startswith("*")
        return self._next_at_pace(moment) if is_pace else self._next_fixed(moment)

    def _next_fixed(self, moment: datetime) -> datetime | None:
        wall = self._next_wall(_wall(moment, self._zone))
        # While the wall shows times for the second time, skip their occurrences.
        while wall and _first_instant(wall, self._zone) <= moment:
            wall = self._next_wall(wall)
        return wall and _first_instant(wall, self._zone)

    def _next_at_pace(self, moment: datetime) -> datetime | None:
        """Walks on with the offset of `cursor` until the expression fits or the clock is moved, whichever is first."""
        cursor, seen = moment, _wall(moment, self._zone)
        runs_every_hour = len(CronSim(self._fields, _SOME_LEAP_YEAR).hours) == _FIELDS[2][2]
        while wall := self._next_wall(seen):
            instant = wall.replace(tzinfo=UTC) - _offset(cursor, self._zone)
            near = min(instant, cursor + _DAY)
            turn = _turn(cursor, near, self._zone)
            if turn is None and near == instant:
                return instant
            if turn is None:  # nothing fits until the wall shows `wall`: be there a day before
                cursor = max(near, _first_instant(wall - _DAY, self._zone))
                seen = _wall(cursor, self._zone)
            elif _wall(turn, self._zone) > wall and not runs_every_hour:
                return turn
            else:
                cursor, seen = turn, _wall(turn, self._zone) - _SECOND
        return None

    def _next_wall(self, wall: datetime) -> datetime | None:
        """The next wall time that fits, as if no clock was ever moved."""
        try:
            found: datetime | None = next(CronSim(self._fields, wall), None)
        except OverflowError:
            return None
        return found if found and found.year < LATEST.year else None


def _offset(instant: datetime, zone: ZoneInfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _wall(instant: datetime, zone: ZoneInfo) -> datetime:
    """The local time of the zone."""
    return instant.astimezone(zone).replace(tzinfo=None)


def _first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """When the clock on the wall shows this, for the first time; if it never does, when it skips it."""
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    # For a skipped wall time Python has one instant before the skip (fold=1) and one after it (fold=0).
    skipped = _turn(second, first, zone) if second < first else None
    return skipped or first


def _turn(after: datetime, until: datetime, zone: ZoneInfo) -> datetime | None:
    """The first second after `after`, and not after `until`, at which the clock of the zone has been moved.

    They are a day apart at most, so it is moved once or not at all.
    """
    offset = _offset(after, zone)
    if _offset(until, zone) == offset:
        return None
    seconds = range(int((until - after).total_seconds()) + 1)
    return after + _SECOND * bisect_left(seconds, True, key=lambda n: _offset(after + _SECOND * n, zone) != offset)


@lru_cache(maxsize=4096)
def _fields_of(expression: str) -> str:
    """The five or six fields of an expression, checked. A scheduler is loaded far more often than it is changed."""
    if len(expression) > 500 or not expression.isprintable():
        raise InvalidSchedule(f"{expression[:80]!r} is not a cron expression; write one such as '0 6 * * *'")
    fields = ALIASES.get(expression.lower(), expression)
    texts = fields.split()
    if len(texts) not in (5, 6):
        raise InvalidSchedule(
            f"{expression!r} has {len(texts)} field{'s' * (len(texts) != 1)}; write five (minute, hour, day of month, "
            f"month, day of week), six with seconds in front, or one of {' '.join(ALIASES)}"
        )
    for position, text in enumerate(texts, start=1):
        _check_field(expression, position, text, of=len(texts))
    if not _ever_fits(fields):
        raise InvalidSchedule(f"{expression}: it will never run, no such day exists; correct day, month or day of week")
    return fields


def _check_field(expression: str, position: int, text: str, of: int) -> None:
    name, takes, size = _FIELDS[position - 1 - of]
    for term in text.split(","):
        place = f"{expression}: {name} (field {position}) is {text!r}"
        where = "" if term == text else f", where {term!r} is wrong"
        step = _STEP.search(term)
        if not _can_be_read(term, position - 1 - of):
            raise InvalidSchedule(f"{place}{where}; it takes *, {takes}, upward ranges, lists and steps such as */5")
        if step and int(step[1]) > size:
            raise InvalidSchedule(f"{place}{where}; a step can be {size} at most")


def _can_be_read(term: str, place: int) -> bool:
    """Whether cronsim accepts this term in this field."""
    if not term or not term.isascii():  # cronsim converts some other letters to ASCII
        return False
    fields = ["*"] * len(_FIELDS)
    fields[place] = term
    try:
        CronSim(" ".join(fields), _SOME_LEAP_YEAR)
    except CronSimError:
        return False
    return True


def _ever_fits(fields: str) -> bool:
    # The calendar brings every combination of date and weekday within the fifty years that cronsim looks ahead.
    try:
        return next(CronSim(fields, _SOME_LEAP_YEAR), None) is not None
    except CronSimError:
        return False


def _zone_called(name: object) -> ZoneInfo:
    if not isinstance(name, str) or len(name) > 100 or _NOT_A_ZONE.fullmatch(name):
        raise InvalidSchedule(f"a time zone is an IANA name such as 'Europe/Rome', not {said_by(name, repr, 100)}")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # also a folder of zones, a path out of it, what cannot be a file name
        zones = {zone.lower(): zone for zone in available_timezones()}
        close = [zones[zone] for zone in get_close_matches(name.lower(), zones, n=3)]
        hint = f"did you mean {' or '.join(close)}?" if close else "write an IANA name such as 'Europe/Rome'"
        raise InvalidSchedule(f"there is no time zone {shown(name)} on this machine; {hint}") from None
