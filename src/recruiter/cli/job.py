"""`recruiter job …`: jobs, listed, looked at and controlled."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any

from cyclopts import App, Parameter

from recruiter.app import Recruiter
from recruiter.cli import options as given
from recruiter.cli.filters import FilterOptions
from recruiter.cli.ids import found
from recruiter.cli.options import recruiter_on
from recruiter.cli.output import Output, ask, print_json, progress_bar, show, terminal
from recruiter.cli.sheet import as_record, print_sheet
from recruiter.domain.filters import JobFilter
from recruiter.domain.pages import JobSummary
from recruiter.domain.state import State
from recruiter.domain.why import Why
from recruiter.errors import InvalidFilter, SettingsError
from recruiter.jobs import meant
from recruiter.steps.known import Word, known

app = App(name="job", help="List jobs, look at them, cancel, recover and remove them.")

Yes = Annotated[bool, Parameter(negative=(), help="Do not ask.")]
Everything = Annotated[bool, Parameter(negative=(), help="All jobs; only without any other condition.")]

_COLUMNS = ("id", "state", "task", "group", "when", "attempts", "what", "owner", "tags", "worker")
_DONE = {"Cancel": "cancelled; those that run are stopped", "Recover": "recovered", "Remove": "removed"}
_LEAST = ("worker", "tags", "owner", "attempts", "group", "when")


@app.command(name="list")
def list_(
    *,
    which: FilterOptions = FilterOptions(),
    limit: int = 50,
    after: str | None = None,
    all: Annotated[bool, Parameter(negative=())] = False,
    common: given.TargetOptions = given.TargetOptions(),
    output: Output = "table",
) -> None:
    """Jobs: those that run, those that wait in the order of their turn, those that have ended, the newest first.

    Parameters
    ----------
    limit
        How many at most.
    after
        Go on here: what the list before said at its end.
    all
        All of them, however many.
    """
    wanted = which.filter()
    with recruiter_on(common) as recruiter:
        if all and output == "jsonl":
            for job in recruiter.jobs.iterate(wanted, minimal=True):
                print_json(_record(job), output)
            return
        jobs, more = _listed(recruiter, wanted, limit, after, all)
        if not jobs:
            _refuse_unknown(recruiter, wanted)
        rows = [_row(job) if output == "table" else _record(job) for job in jobs]
        show(rows, _COLUMNS, output, empty="No jobs.", least=_LEAST)
        if more is not None:
            print(f"there are more: --after {more}", file=sys.stderr)


@app.command(name="show")
def show_(id: str, /, *, common: given.TargetOptions = given.TargetOptions(), output: Output = "table") -> None:
    """Everything about a job: what it is, in words why it is not running, its attempts with traces, its log."""
    with recruiter_on(common) as recruiter:
        job = found(recruiter, id)
        explained = recruiter.explain(job.id)
        if output == "table":
            print_sheet(terminal(), job, explained)
        else:
            print_json(as_record(job, explained), output)


@app.command
def cancel(
    *ids: str,
    which: FilterOptions = FilterOptions(),
    everything: Everything = False,
    yes: Yes = False,
    reason: str | None = None,
    by: str | None = None,
    common: given.TargetOptions = given.TargetOptions(),
) -> None:
    """Cancels jobs that have not ended: a waiting one never runs, a running one is stopped.

    Parameters
    ----------
    ids
        Which; or say it with a filter.
    reason
        Why, for whoever wonders at night.
    by
        Who says so (default: you).
    """
    by = by or getpass.getuser()
    wanted = _wanted(ids, which, everything, JobFilter.to_cancel)
    with recruiter_on(common) as recruiter:
        for id in ids:
            recruiter.cancel(found(recruiter, id).id, by=by, reason=reason)
            print(f"job {id} is being cancelled")
        if wanted is not None:
            act = partial(recruiter.jobs.cancel, which.filter(), everything=everything, by=by, reason=reason)
            _many(recruiter, "Cancel", which, wanted, act, yes)


@app.command
def recover(
    *ids: str,
    which: FilterOptions = FilterOptions(),
    everything: Everything = False,
    yes: Yes = False,
    schedule_at: str | None = None,
    common: given.TargetOptions = given.TargetOptions(),
) -> None:
    """Runs jobs that have ended once more, as new jobs. Of a filter without a state, those that failed or were lost.

    Parameters
    ----------
    ids
        Which; or say it with a filter.
    schedule_at
        When: 2030-12-01T22:18:00Z (default: now).
    """
    at = _moment(schedule_at) if schedule_at is not None else None
    wanted = _wanted(ids, which, everything, JobFilter.to_recover)
    with recruiter_on(common) as recruiter:
        for id in ids:
            job = recruiter.recover(found(recruiter, id).id, schedule_at=at)
            print(f"job {id} is recovered as {job.id}")
        if wanted is not None:
            act = partial(recruiter.jobs.recover, which.filter(), everything=everything, schedule_at=at)
            _many(recruiter, "Recover", which, wanted, act, yes)


@app.command
def remove(
    *ids: str,
    which: FilterOptions = FilterOptions(),
    everything: Everything = False,
    yes: Yes = False,
    common: given.TargetOptions = given.TargetOptions(),
) -> None:
    """Removes jobs that have ended, for good. Those that wait or run are refused.

    Parameters
    ----------
    ids
        Which; or say it with a filter.
    """
    wanted = _wanted(ids, which, everything, JobFilter.to_remove)
    with recruiter_on(common) as recruiter:
        chosen = [found(recruiter, id).id for id in ids]
        if chosen and ask(f"Remove {_jobs(len(chosen))} for good?", yes):
            for each in chosen:
                recruiter.remove(each)
            print(f"{_jobs(len(chosen))} removed")
        if wanted is not None:
            act = partial(recruiter.jobs.remove, which.filter(), everything=everything)
            _many(recruiter, "Remove", which, wanted, act, yes)


def _listed(
    recruiter: Recruiter, wanted: JobFilter, limit: int, after: str | None, all: bool
) -> tuple[list[JobSummary], str | None]:
    """Goes on until there are enough: where no index answers a condition, a page may be short of them."""
    if all:
        return list(recruiter.jobs.iterate(wanted, minimal=True)), None
    jobs: list[JobSummary] = []
    with progress_bar("found", limit) as told:
        while True:
            page = recruiter.jobs.list(wanted, limit=limit - len(jobs), after=after, minimal=True)
            jobs += page.jobs
            after = page.next
            if after is None or len(jobs) >= limit:
                return jobs, after
            told(len(jobs))


def _refuse_unknown(recruiter: Recruiter, wanted: JobFilter) -> None:
    """An empty list is no answer to a name that nobody has ever used."""
    words: tuple[tuple[Word, tuple[str, ...]], ...] = (("group", wanted.group), ("task", wanted.task))
    for word, names in words:
        there = known(recruiter.store, word) if names else set()
        for name in names:
            if name not in there:
                near = get_close_matches(name, there, n=3) or sorted(there)[:5]
                hint = f"there are: {', '.join(near)}" if near else "there are no jobs at all"
                raise InvalidFilter(f"no job has the {word} {name!r}; {hint}")


def _record(job: JobSummary) -> dict[str, Any]:
    """All of it for scripts."""
    return asdict(job) | {"needs": job.needs.described() or None}


def _row(job: JobSummary) -> dict[str, Any]:
    """What the table says: `when` it began, is due or has ended; `what` it is doing, or went wrong."""
    row: dict[str, Any] = {
        "id": job.id,
        "state": "cancelling" if job.cancelling else job.state.value,
        "task": job.task,
        "group": job.group,
        "attempts": job.attempts or None,
        "owner": job.username,
        "tags": job.tags,
    }
    if job.state is State.RUNNING:
        return row | {"when": job.started_at, "what": _progress(job), "worker": job.locked_by}
    what = job.error or (job.why if job.why != Why.DONE else None)
    return row | {"when": job.ended_at if job.why else job.scheduled_at, "what": what, "worker": job.worker}


def _progress(job: JobSummary) -> str | None:
    return f"{job.progress:.0%} {job.stage or ''}".rstrip() if job.stage or job.progress else None


def _wanted(
    ids: tuple[str, ...],
    which: FilterOptions,
    everything: bool,
    narrowed: Callable[[JobFilter], JobFilter],
) -> JobFilter | None:
    """The jobs that a filter means; None when they are named one by one. Raises InvalidFilter for both, or neither."""
    wanted = which.filter()
    if not ids:
        if wanted.is_empty and not everything:
            raise InvalidFilter("say which jobs: their ids, a filter such as --state failed, or --everything")
        return narrowed(meant(wanted, everything))
    if everything or not wanted.is_empty:
        raise InvalidFilter("give ids or a filter, not both")
    return None


def _many(
    recruiter: Recruiter, verb: str, which: FilterOptions, wanted: JobFilter, act: Callable[..., int], yes: bool
) -> None:
    """Counts, asks, and acts."""
    count, said = recruiter.jobs.count(wanted), which.filter()
    if not count.number:
        _refuse_unknown(recruiter, wanted)
        print(f"there are none to {verb.lower()}: {said}")
    elif ask(f"{verb} {count} {'job' if count == (1, True) else 'jobs'} ({said})?", yes):
        with progress_bar(verb, count.number if count.exact else None) as told:
            done = act(progress=told)
        print(f"{_jobs(done)} {_DONE[verb]}")


def _jobs(count: int) -> str:
    return f"{count:,} job" if count == 1 else f"{count:,} jobs"


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"{text!r} is no date; write 2030-12-01T22:18:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
