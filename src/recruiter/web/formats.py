"""Formats for people: numbers and times (12.4k, 3m 12s, 2h ago); tracebacks with folded frames of libraries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from recruiter.domain.duration import brief
from recruiter.domain.text import printable
from recruiter.web.schemas import Amount, Finding

_MOMENT = re.compile(
    r"(?P<moment>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?(?: UTC|\+00:00)|\bjob (?P<job>[0-9a-f]{24})\b"
)


_GIB = 2**30


def size(value: float) -> str:
    """Of memory: 512 MiB, 24.1 GiB."""
    return f"{count(round(value / _GIB, 1))} GiB" if value >= _GIB else f"{count(round(value / 2**20))} MiB"


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
    """All of it, shown when the pointer is on a figure."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def amount(value: Amount) -> str:
    """A count that may be a lower bound."""
    return count(value.number) + ("" if value.exact else "+")


def whole(text: str) -> int | None:
    """The whole number of up to nine digits that a person or a program has written; None for any other text."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def between(since: datetime | None, until: datetime | None) -> float | None:
    """Seconds; None if one of them is None."""
    return None if since is None or until is None else (until - since).total_seconds()


def relative(moment: datetime, now: datetime) -> str:
    """`3m 12s ago`, `in 2h`."""
    seconds = (now - moment).total_seconds()
    return f"{brief(seconds)} ago" if seconds >= 0 else f"in {brief(-seconds)}"


def iso(moment: datetime) -> str:
    """For machines, and shown when the pointer is on a time."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def exact(moment: datetime) -> str:
    """For people: to the second, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job that a sentence names."""

    id: str


def parts_of(text: str) -> list[str | datetime | JobRef]:
    """A sentence in parts: text, times and jobs."""
    parts: list[str | datetime | JobRef] = []
    end = 0
    for found in _MOMENT.finditer(text):
        part: datetime | JobRef
        if found["job"]:
            part = JobRef(found["job"])
        else:
            try:
                part = datetime.strptime(found["moment"], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            except ValueError:
                continue
        parts += [text[end : found.start()], part]
        end = found.end()
    return [*parts, text[end:]]


def todo(text: str) -> tuple[str, str]:
    """The advice, and the command at its end if there is one."""
    told, found, command = text.rpartition(": recruiter ")
    return (f"{told}:", f"recruiter {command}") if found else (text, "")


@dataclass(frozen=True, slots=True)
class SuggestedAction:
    """The button for the command that a finding recommends."""

    verb: str
    label: str
    name: str = ""
    id: str = ""


_ACTIONS = {
    ("group", "resume"): ("resume-group", "Resume"),
    ("worker", "resume"): ("resume-worker", "Resume"),
    ("scheduler", "resume"): ("resume-schedule", "Resume"),
}


def action_of(command: str) -> SuggestedAction | None:
    """The action of the console that does the same as this command; None if there is none."""
    parts = command.split()
    if len(parts) != len(("recruiter", "thing", "verb", "subject")):
        return None
    _, thing, verb, subject = parts
    if (thing, verb, subject) == ("group", "resume", "--all"):
        return SuggestedAction("allow-starts", "Allow starts")
    if thing == "job" and verb in ("cancel", "recover"):
        return SuggestedAction(verb, verb.capitalize(), id=subject)
    found = _ACTIONS.get((thing, verb))
    return None if found is None or subject.isupper() else SuggestedAction(*found, name=subject)


def alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings by level and code, in their order."""
    kinds: dict[object, list[Finding]] = {}
    for each in findings:
        kinds.setdefault((each.level, each.code), []).append(each)
    return list(kinds.values())


def harmless(value: object) -> object:
    """Text with control and direction characters spelled out; other values unchanged.

    Every value that a template prints passes through here before it is escaped."""
    return printable(value) if type(value) is str else value


def zone_of(name: str | None) -> tzinfo:
    """The zone of this name; UTC for an unknown one."""
    try:
        return ZoneInfo(name) if name else UTC
    except (KeyError, ValueError, OSError):
        return UTC


def in_zone(moment: datetime, zone: str) -> str:
    """The clock on the wall there: 06:00."""
    return f"{moment.astimezone(zone_of(zone)):%H:%M}"


_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line \d+')
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python3|^<frozen |/recruiter/steps/execute|/recruiter/processes/"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some lines of a trace that are read, or folded, together."""

    text: str
    frames: int = 0  # Number of library frames; 0 if the piece is not folded


def pieces(trace: str) -> list[Piece]:
    """The trace in its order; nothing is left out."""
    found: list[Piece] = []
    for lines, frames in _frames(trace.removesuffix("\n").split("\n")):
        last = found[-1] if found else None
        if last is not None and bool(last.frames) == bool(frames):
            found[-1] = Piece(f"{last.text}\n{lines}", last.frames + frames)
        else:
            found.append(Piece(lines, frames))
    return found


def _frames(lines: list[str]) -> list[tuple[str, int]]:
    """Each frame with the lines that belong to it, and whether it is a library's."""
    found: list[tuple[list[str], int]] = []
    within = False
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            found.append(([line], 1 if _LIBRARY.search(frame["file"]) else 0))
            within = True
        elif within and line.startswith("    "):
            found[-1][0].append(line)
        else:
            found.append(([line], 0))
            within = False
    return [("\n".join(lines), frames) for lines, frames in found]
