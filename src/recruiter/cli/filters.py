"""The options by which jobs are chosen, and how they become a filter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Annotated

from cyclopts import Group, Parameter

from recruiter.app import Recruiter
from recruiter.cli.output import say
from recruiter.domain.search.filter import JobFilter
from recruiter.errors import InvalidFilter
from recruiter.views.find import argument_written

_GROUP = Group("Which jobs", sort_key=1)
_Several = Annotated[list[str] | None, Parameter(negative=(), group=_GROUP)]
_One = Annotated[str | None, Parameter(group=_GROUP)]
_Number = Annotated[int | None, Parameter(group=_GROUP)]


@Parameter(name="*")
@dataclass(frozen=True)
class FilterOptions:
    """Given several times, an option means any of its values; tags mean all of them."""

    state: _Several = None
    "waiting (that is queued or postponed), running, succeeded, failed, cancelled, lost."
    task: _Several = None
    "Of this task."
    group: _Several = None
    "Of this group."
    tag: _Several = None
    "With this tag; given several times, with all of them."
    owner: _Several = None
    "Of this owner."
    error: _Several = None
    "Whose last attempt failed with this exception: its name, with or without the module."
    why: _Several = None
    "That ended for this reason: tried-too-many-times, …"
    arg: _Several = None
    "With this argument, by its path: customer.id=42."
    since: _One = None
    "Ended since, or if not ended, due since: 2h (ago), 2026-11-16, 2026-11-16T03:00Z."
    until: _One = None
    "Likewise until."
    slow: _One = None
    "Whose last attempt took, or takes, at least so long: 10s."
    delayed: _One = None
    "That started, or still wait, at least so long after their time: 1m."
    attempts: _Number = None
    "Tried at least so often."
    worker: _Several = None
    "That this worker holds, or tried last."
    urn: _Several = None
    "With this urn, such as the jobs of a scheduler."
    key: _Several = None
    "With this key of a limit, such as customer:42."
    created_since: _One = None
    "Created since."
    created_until: _One = None
    "Created until."
    scheduled_since: _One = None
    "Due since."
    scheduled_until: _One = None
    "Due until."
    ended_since: _One = None
    "Ended since."
    ended_until: _One = None
    "Ended until."
    recovered_from: _One = None
    "That repeat this job."
    recovered: Annotated[bool | None, Parameter(group=_GROUP)] = None
    "That somebody has recovered, or nobody has."

    def to_filter(self) -> JobFilter:
        """Raises InvalidFilter."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        said = {name: value for name, value in said.items() if value not in (None, [])}
        if "arg" in said:
            said["args"] = dict(map(argument_written, said.pop("arg")))
        return JobFilter(**said)


@contextmanager
def noting_new_names(recruiter: Recruiter, kind: str, name: str) -> Iterator[None]:
    """Afterwards says on stderr if nobody knew this task or group before: it is allowed, and may be a slip of the
    pen."""
    doubt = None
    try:
        recruiter.jobs.recognize(JobFilter(group=name) if kind == "group" else JobFilter(task=name))
    except InvalidFilter as error:
        doubt = error
    yield
    if doubt is not None:
        say(f"note: {doubt}", stderr=True)
