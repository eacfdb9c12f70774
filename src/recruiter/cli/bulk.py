"""Bulk actions: cancel, recover or remove the named jobs one by one, or all jobs that a filter finds, after a question.

While a command takes long, a progress line is shown on stderr, if stderr is a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

from recruiter.app import Recruiter
from recruiter.cli.options import FilterOptions
from recruiter.cli.output import ask, console, print_error, say
from recruiter.domain.job import JobId
from recruiter.domain.search.filter import JobFilter
from recruiter.domain.text import plural
from recruiter.errors import RecruiterError, SettingsError, StoreError

OnDone = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Action:
    """What to do with the jobs, in three forms: cancel, cancelling, being cancelled."""

    verb: str
    doing: str
    done: str
    one: Callable[[JobId], str]
    """Does it to one job; returns what happened to the job."""
    among: Callable[[JobFilter], JobFilter]
    """Narrows a filter to the jobs that it can be done to."""
    many: Callable[[JobFilter, bool, OnDone], int]
    """Does it to all jobs of the filter; the flag says that an empty filter means all jobs."""


def act(
    recruiter: Recruiter, action: Action, ids: Sequence[str], which: FilterOptions, everything: bool, yes: bool
) -> int:
    """Returns the exit code: 0 if it was done to all jobs."""
    filter = which.to_filter()
    if bool(ids) + (not filter.is_empty) + everything != 1:
        raise SettingsError(f"name the jobs to {action.verb}: give ids, or a filter such as --task, or --everything")
    return _each(recruiter, action, ids) if ids else _many(recruiter, action, filter, yes)


def _each(recruiter: Recruiter, action: Action, ids: Sequence[str]) -> int:
    """One job after another; an error of one does not stop the others."""
    code = 0
    for text in ids:
        try:
            say(f"job {text} {action.one(recruiter.jobs.id_of(text))}")
        except StoreError:
            raise
        except RecruiterError as error:
            print_error(error)
            code = 1
    return code


def _many(recruiter: Recruiter, action: Action, filter: JobFilter, yes: bool) -> int:
    number = recruiter.jobs.count(action.among(filter))
    if not number.number and number.exact:
        recruiter.jobs.recognize(filter)
        say(f"There is no job to {action.verb} ({filter}).")
        return 0
    one = number == (1, True)
    jobs = f"{number} {'job' if one else 'jobs'}"
    if not ask(f"{jobs} ({filter}). {action.verb.capitalize()} {'it' if one else 'them'}?", yes):
        say(f"Nothing was {action.done.removeprefix('being ')}.")
        return 1
    with bar(action.doing, number.number) as progress:
        done = action.many(filter, filter.is_empty, progress)
    say(f"{plural(done, 'job is', 'jobs are')} {action.done}.")
    return 0


_PATIENCE = 1.0
"""Seconds before the line appears."""


@contextmanager
def looking() -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with how many jobs were read and found; the line appears after a second."""
    page = console(stderr=True)
    status = Status("", console=page, spinner="dots")
    began = time.monotonic()

    def tell(looked_at: int, found: int) -> None:
        if page.is_terminal and time.monotonic() - began > _PATIENCE:
            status.update(f"read {looked_at:,} jobs, found {found:,} …")
            status.start()

    try:
        yield tell
    finally:
        status.stop()


@contextmanager
def bar(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with how many jobs are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    page = console(stderr=True)
    with Progress(*columns, console=page, transient=True, disable=not page.is_terminal) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda done: progress.update(task, completed=done)
