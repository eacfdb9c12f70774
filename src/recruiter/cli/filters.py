"""The options that select jobs, and the filter they become."""

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
    "Jobs of this task."
    group: _Several = None
    "Jobs of this group."
    tag: _Several = None
    "Jobs with this tag; repeat it for jobs with all of the tags."
    owner: _Several = None
    "Jobs of this owner."
    error: _Several = None
    "Jobs whose last attempt failed with this exception: its name, with or without the module."
    why: _Several = None
    "Jobs that ended for this reason: tried-too-many-times, …"
    arg: _Several = None
    "Jobs with this argument, by its path: customer.id=42."
    since: _One = None
    "Jobs that ended since this time, or that are due since then: 2h (ago), 2026-11-16, 2026-11-16T03:00Z."
    until: _One = None
    "Jobs that ended, or are due, until this time."
    slow: _One = None
    "Jobs whose last attempt took, or takes, at least this long: 10s."
    delayed: _One = None
    "Jobs that started, or still wait, at least this long after their time: 1m."
    attempts: _Number = None
    "Jobs with at least this many attempts."
    worker: _Several = None
    "Jobs that this worker holds, or ran last."
    urn: _Several = None
    "Jobs with this urn, such as the jobs of a scheduler."
    key: _Several = None
    "Jobs with this key of a limit, such as customer:42."
    created_since: _One = None
    "Jobs created since this time."
    created_until: _One = None
    "Jobs created until this time."
    scheduled_since: _One = None
    "Jobs due since this time."
    scheduled_until: _One = None
    "Jobs due until this time."
    ended_since: _One = None
    "Jobs ended since this time."
    ended_until: _One = None
    "Jobs ended until this time."
    recovered_from: _One = None
    "Jobs that were made by recovering this job."
    recovered: Annotated[bool | None, Parameter(group=_GROUP)] = None
    "Jobs that have been recovered, or have not."

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
