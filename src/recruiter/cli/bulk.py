"""Doing something with jobs: with those that are named, one by one; or with all that a filter means, if asked first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recruiter.app import Recruiter
from recruiter.cli.errors import complain
from recruiter.cli.filters import FilterOptions
from recruiter.cli.output import ask, say
from recruiter.cli.waiting import bar
from recruiter.domain.job import JobId
from recruiter.domain.search.filter import JobFilter
from recruiter.domain.text import plural
from recruiter.errors import RecruiterError, SettingsError, StoreError

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Deed:
    """What is to be done: cancel, cancelling, being cancelled."""

    verb: str
    doing: str
    done: str
    one: Callable[[JobId], str]
    """Does it with one job, and says what has become of it."""
    among: Callable[[JobFilter], JobFilter]
    """Those of a filter's jobs with which it can be done."""
    many: Callable[[JobFilter, bool, Progress], int]
    """Does it with all of them; the truth value says that no filter means all."""


def act(recruiter: Recruiter, deed: Deed, ids: Sequence[str], which: FilterOptions, everything: bool, yes: bool) -> int:
    """The exit code: 0 if all is done."""
    filter = which.to_filter()
    if bool(ids) + (not filter.is_empty) + everything != 1:
        raise SettingsError(f"say which jobs to {deed.verb}: either ids, or a filter such as --task, or --everything")
    return _each(recruiter, deed, ids) if ids else _many(recruiter, deed, filter, yes)


def _each(recruiter: Recruiter, deed: Deed, ids: Sequence[str]) -> int:
    """One after another; one that cannot be done does not keep the others from it."""
    code = 0
    for text in ids:
        try:
            say(f"job {text} {deed.one(recruiter.jobs.id_of(text))}")
        except StoreError:
            raise
        except RecruiterError as error:
            complain(error)
            code = 1
    return code


def _many(recruiter: Recruiter, deed: Deed, filter: JobFilter, yes: bool) -> int:
    number = recruiter.jobs.count(deed.among(filter))
    if not number.number and number.exact:
        recruiter.jobs.recognize(filter)
        say(f"There is no job to {deed.verb} ({filter}).")
        return 0
    one = number == (1, True)
    jobs = f"{number} {'job' if one else 'jobs'}"
    if not ask(f"{jobs} ({filter}). {deed.verb.capitalize()} {'it' if one else 'them'}?", yes):
        say(f"Nothing was {deed.done.removeprefix('being ')}.")
        return 1
    with bar(deed.doing, number.number) as progress:
        done = deed.many(filter, filter.is_empty, progress)
    say(f"{plural(done, 'job is', 'jobs are')} {deed.done}.")
    return 0
