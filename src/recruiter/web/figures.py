"""Numbers and times as people read them: 12.4k, 3 m 12 s, 2 h ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from recruiter.domain.text import printable
from recruiter.web.views import Amount

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?(?: UTC|\+00:00)")


def count(value: float) -> str:
    """With thousands apart; above 10,000 in thousands; a fraction only where it matters."""
    if value >= 10_000_000:
        return f"{value / 1_000_000:.0f}M"
    if value >= 1_000_000:
        return f"{value / 1_000_000:.1f}M"
    if value >= 10_000:
        return f"{value / 1000:.1f}k" if value < 100_000 else f"{value / 1000:.0f}k"
    if value == int(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def exactly(value: float) -> str:
    """All of it, for whoever points at a figure."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def amount(value: Amount) -> str:
    """A count that may be a lower bound."""
    return count(value.number) + ("" if value.exact else "+")


def duration(seconds: float | None) -> str:
    """In two units at most: 3 m 12 s."""
    if seconds is None:
        return "–"
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    first = next(place for place, (value, _) in enumerate(parts) if value)
    return " ".join(f"{value} {unit}" for value, unit in parts[first : first + 2] if value)


def between(since: datetime | None, until: datetime | None) -> float | None:
    """Seconds; None where one of them is not known."""
    return None if since is None or until is None else (until - since).total_seconds()


def relative(moment: datetime, now: datetime) -> str:
    """`3 m 12 s ago`, `in 2 h`."""
    seconds = (now - moment).total_seconds()
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def iso(moment: datetime) -> str:
    """For machines, and for whoever points at a time."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def exact(moment: datetime) -> str:
    """For people: to the second, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def parts_of(text: str) -> list[str | datetime]:
    """A sentence of ours in parts, with the times in it as times."""
    parts: list[str | datetime] = []
    end = 0
    for found in _MOMENT.finditer(text):
        try:
            moment = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        except ValueError:
            continue
        parts += [text[end : found.start()], moment]
        end = found.end()
    return [*parts, text[end:]]


def harmless(value: object) -> object:
    """Text with control characters and those that turn the direction of writing spelled out; anything else as it is.

    Everything that a template prints goes through here before it is escaped."""
    return printable(value) if type(value) is str else value


def in_zone(moment: datetime, zone: str) -> str:
    """The clock on the wall there: 06:00."""
    try:
        return f"{moment.astimezone(ZoneInfo(zone)):%H:%M}"
    except (KeyError, ValueError, OSError):
        return exact(moment)
