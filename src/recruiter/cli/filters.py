"""The options that say which jobs, shared by the commands that list them and act on many."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Annotated, Any

from cyclopts import Parameter

from recruiter.domain.filters import JobFilter
from recruiter.errors import InvalidFilter

Several = Annotated[list[str] | None, Parameter(negative=())]


@Parameter(name="*")
@dataclass(frozen=True)
class FilterOptions:
    state: Several = None
    "waiting, queued, postponed, running, succeeded, failed, cancelled or lost; may be repeated."
    task: Several = None
    "Of this task; may be repeated."
    group: Several = None
    "In this group; may be repeated."
    tag: Several = None
    "With this tag; of several, with all of them."
    owner: Several = None
    "Of this owner; may be repeated."
    urn: Several = None
    "With this urn; may be repeated."
    key: Several = None
    "Limited by this key, such as customer:42; may be repeated."
    worker: Several = None
    "Held by this worker, or last run by it."
    error: Several = None
    "Whose last attempt failed with this exception class, with or without its module."
    why: Several = None
    "Ended for this reason, such as done, lost or tried-too-many-times."
    arg: Several = None
    "With this argument: customer.id=42. The value is read as JSON if it is any; may be repeated."
    since: str | None = None
    "Ended, or if they have not ended created, since: 2026-11-16T03:00Z, or 2h ago."
    until: str | None = None
    "The same, before: 2026-11-16T03:00Z, or 30m ago."
    slow: str | None = None
    "Whose last attempt took at least so long: 10s."
    delayed: str | None = None
    "That started, or still wait, at least so long after their time: 1m."
    recovered: bool | None = None
    "That somebody has recovered, or with --no-recovered nobody has."
    attempts: int | None = None
    "That have been tried at least so often."

    def filter(self) -> JobFilter:
        """Raises InvalidFilter."""
        words: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        given = words.pop("arg")
        if given:
            words["args"] = _arguments(given)
        return JobFilter(**words)


def _arguments(given: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        path, equals, text = each.partition("=")
        if not equals or not path:
            raise InvalidFilter(f"--arg is {each!r}; write PATH=VALUE, such as customer.id=42 or name=Ada")
        found[path] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
