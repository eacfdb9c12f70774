"""`recruiter job …`: finds, shows, changes, cancels, recovers and removes jobs, one or many."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NamedTuple

from cyclopts import App, Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

from recruiter.app import Recruiter
from recruiter.application import load_application
from recruiter.cli import options as given
from recruiter.cli.options import CountOrAll, FilterOptions, Flag, Yes, recruiter_on
from recruiter.cli.output import Output, ask, console, print_error, report, say, say_json, show
from recruiter.cli.records import COLUMNS, draw, full_record, record, row
from recruiter.domain.job import Job, JobId
from recruiter.domain.lane import Lane
from recruiter.domain.search.filter import JobFilter, JobSummary, Page
from recruiter.domain.state import State
from recruiter.domain.text import plural
from recruiter.errors import JobSucceeded, RecruiterError, SettingsError, StoreError
from recruiter.jobs import MOST_LISTED
from recruiter.views.explain import waiting_reasons

app = App(name="job", help="Find jobs, look at them, change, cancel, recover and remove them.")

Everything = Annotated[bool, Parameter(negative=(), help="Select all jobs; without ids and filters.")]


@app.command(name="list")
def list_(
    *,
    limit: CountOrAll = 50,
    after: str | None = None,
    full: Flag = False,
    which: FilterOptions = FilterOptions(),
    common: given.TargetOptions = given.TargetOptions(),
    output: Output = "table",
) -> None:
    """Lists running jobs, then waiting jobs in the order in which they start, then ended jobs, the newest first.

    Parameters
    ----------
    limit
        How many to show; 0 for all.
    after
        The cursor that the previous page printed at its end, on standard error; also with --output json and jsonl.
    full
        Print each job with arguments, attempts and log; for --output json and jsonl.
    """
    wanted = which.to_filter()
    if full and output == "table":
        raise SettingsError("--full is for --output json or jsonl; `recruiter job show ID` shows everything of one job")
    with recruiter_on(common) as recruiter:
        rows: list[dict[str, Any]] = []
        found, next_ = 0, None
        for page in _pages(recruiter, wanted, limit, after, full):
            found, next_ = found + len(page), page.next
            now = recruiter.clock.now()
            if output == "table":
                some = _rows(recruiter, [job for job in page if isinstance(job, JobSummary)], now)
            else:
                some = [_record(job) for job in page]
            if output == "jsonl":  # as they come: there may be very many
                show(some, (), output, empty="")
            else:
                rows += some
        if not found and after is None:
            recruiter.jobs.recognize(wanted)
        if output != "jsonl":
            show(rows, COLUMNS, output, empty=f"There are no jobs{'' if wanted.is_empty else f' ({wanted})'}.")
        if next_ is not None:
            say(f"There are more jobs. Show the next page with: --after {next_}", stderr=True)


@app.command
def count(
    *,
    exact: Flag = False,
    which: FilterOptions = FilterOptions(),
    common: given.TargetOptions = given.TargetOptions(),
    output: Output = "table",
) -> None:
    """Counts jobs. `recruiter analytics` counts them by group, task, owner or tag.

    Parameters
    ----------
    exact
        Count all of them, however long it takes.
    """
    wanted = which.to_filter()
    with recruiter_on(common) as recruiter:
        number = recruiter.jobs.count(wanted, most=None) if exact else recruiter.jobs.count(wanted)
        if not number.number:
            recruiter.jobs.recognize(wanted)
        if output == "table":
            say(number)
        else:
            say_json(number._asdict(), output)


@app.command(name="show")
def show_(
    id: str,
    /,
    *,
    log: CountOrAll = 20,
    common: given.TargetOptions = given.TargetOptions(),
    output: Output = "table",
) -> None:
    """Shows a job: why it is not running, its arguments, its history, its attempts and its log.

    Parameters
    ----------
    log
        How many of the last lines of its log to show; 0 for all.
    """
    with recruiter_on(common) as recruiter:
        known = recruiter.jobs.id_of(id)
        now = recruiter.explain(known)
        try:
            job = recruiter.find(known)
        except StoreError:  # MongoDB has just answered: so it is a document that nobody has adopted
            show([{"id": known, "now": now}], ("id", "now"), output, empty="")
            return
        if output == "table":
            draw(job, now, log)
        else:
            say_json({"now": now, **full_record(job)}, output)


@app.command
def cancel(
    *ids: str,
    who: given.AuthorOptions = given.AuthorOptions(),
    everything: Everything = False,
    yes: Yes = False,
    which: FilterOptions = FilterOptions(),
    common: given.TargetOptions = given.TargetOptions(),
    output: Output = "table",
) -> int:
    """Cancels jobs that have not ended, by their ids or by a filter: waiting ones never run, running ones are stopped.

    Parameters
    ----------
    ids
        The ids of the jobs; leave them out to use a filter.
    """
    with recruiter_on(common) as recruiter:

        def one(id: JobId) -> Done:
            recruiter.cancel(id, by=who.author, reason=who.reason)
            return Done("is being cancelled")

        def many(filter: JobFilter, everything: bool, progress: OnDone) -> int:
            return recruiter.jobs.cancel(
                filter, by=who.author, reason=who.reason, everything=everything, progress=progress
            )

        action = Action("cancel", "cancelling", "being cancelled", one, JobFilter.to_cancel, many)
        return act(recruiter, action, ids, which, everything, yes, output)


@app.command
def run(
    *ids: str,
    who: given.AuthorOptions = given.AuthorOptions(),
    everything: Everything = False,
    yes: Yes = False,
    which: FilterOptions = FilterOptions(),
    common: given.TargetOptions = given.TargetOptions(),
    output: Output = "table",
) -> int:
    """Makes postponed jobs due, by their ids or by a filter: also those that wait for their retry, or sleep.

    Parameters
    ----------
    ids
        The ids of the jobs; leave them out to use a filter.
    """
    with recruiter_on(common) as recruiter:

        def one(id: JobId) -> Done:
            recruiter.run_now(id, by=who.author, reason=who.reason)
            return Done(f"is due now: {recruiter.explain(id)}")

        def many(filter: JobFilter, everything: bool, progress: OnDone) -> int:
            by, reason = who.author, who.reason
            return recruiter.jobs.run_now(filter, by=by, reason=reason, everything=everything, progress=progress)

        action = Action("run", "running", "due now", one, JobFilter.to_run, many)
        return act(recruiter, action, ids, which, everything, yes, output)


@app.command
def reschedule(
    *ids: str,
    at: str | None = None,
    in_: Annotated[str | None, Parameter(name="--in")] = None,
    who: given.AuthorOptions = given.AuthorOptions(),
    everything: Everything = False,
    yes: Yes = False,
    which: FilterOptions = FilterOptions(),
    common: given.TargetOptions = given.TargetOptions(),
    output: Output = "table",
) -> int:
    """Gives waiting jobs another time, by their ids or by a filter. Jobs that a worker holds are refused.

    Parameters
    ----------
    ids
        The ids of the jobs; leave them out to use a filter.
    at
        When: 2030-12-01T22:18:00Z.
    in_
        Or how long from now: 2h.
    """
    if (at is None) == (in_ is None):
        raise SettingsError("give the new time: --at 2030-12-01T22:18:00Z, or --in 2h")
    moment = None if at is None else _date(at)
    with recruiter_on(common) as recruiter:

        def one(id: JobId) -> Done:
            recruiter.reschedule(id, at=moment, in_=in_, by=who.author, reason=who.reason)
            due = recruiter.find(id).scheduled_at
            return Done(f"is rescheduled for {due:%Y-%m-%d %H:%M:%S} UTC", {"scheduled_at": due})

        def many(filter: JobFilter, everything: bool, progress: OnDone) -> int:
            by, reason = who.author, who.reason
            return recruiter.jobs.reschedule(
                filter, at=moment, in_=in_, by=by, reason=reason, everything=everything, progress=progress
            )

        action = Action("reschedule", "rescheduling", "rescheduled", one, JobFilter.to_change, many)
        return act(recruiter, action, ids, which, everything, yes, output)


@app.command
def reprioritise(
    *ids: str,
    priority: float,
    who: given.AuthorOptions = given.AuthorOptions(),
    everything: Everything = False,
    yes: Yes = False,
    which: FilterOptions = FilterOptions(),
    common: given.TargetOptions = given.TargetOptions(),
    output: Output = "table",
) -> int:
    """Gives waiting jobs another priority, by their ids or by a filter. Jobs that a worker holds are refused.

    Parameters
    ----------
    ids
        The ids of the jobs; leave them out to use a filter.
    priority
        The new priority: a higher one goes first inside its group.
    """
    number = int(priority) if priority.is_integer() else priority
    with recruiter_on(common) as recruiter:

        def one(id: JobId) -> Done:
            recruiter.reprioritise(id, number, by=who.author, reason=who.reason)
            return Done(f"has priority {number}", {"priority": number})

        def many(filter: JobFilter, everything: bool, progress: OnDone) -> int:
            by, reason = who.author, who.reason
            return recruiter.jobs.reprioritise(
                filter, priority=number, by=by, reason=reason, everything=everything, progress=progress
            )

        action = Action("reprioritise", "reprioritising", "reprioritised", one, JobFilter.to_change, many)
        return act(recruiter, action, ids, which, everything, yes, output)


@app.command
def signal(
    id: str,
    name: str,
    *,
    data: str | None = None,
    clear: Flag = False,
    by: str | None = None,
    common: given.ApplicationOptions = given.ApplicationOptions(),
    output: Output = "table",
) -> None:
    """Sends a signal to a job that waits for it, or will (current_job.wait_for).

    Parameters
    ----------
    id
        The id of the job.
    name
        The name of the signal, such as approved.
    data
        What wait_for returns, as JSON: '{"by": "ada"}'. It is sealed by the codec of the application, if it has one.
    clear
        Store the data as it is: for an application without a codec, which then need not be loaded.
    by
        Who sends it (default: your user name).
    """
    author = given.AuthorOptions(by=by).author
    try:
        value = None if data is None else json.loads(data)
    except ValueError as error:
        raise SettingsError(f"--data is not valid JSON: {error}") from None
    bootstrap = given.settings_from(common).bootstrap
    if value is not None and bootstrap is None and not clear:
        raise SettingsError(
            "--data would be stored in clear, because this command does not know whether the application has a codec; "
            "give the application with --bootstrap, or --clear if it has none"
        )
    if value is None or clear:
        with recruiter_on(common) as recruiter:
            recruiter.signal(id, name, value, by=author)
    else:
        with given.application_recruiter(common) as recruiter:
            owner = load_application(bootstrap).owner_of(recruiter.find(id).task)
            recruiter.payload = getattr(owner, "payload", recruiter.payload)
            recruiter.signal(id, name, value, by=author)
    report(f"job {id} was sent the signal {name!r}", {"id": id, "signal": name}, output)


@app.command
def recover(
    *ids: str,
    schedule_at: str | None = None,
    again: Flag = False,
    everything: Everything = False,
    yes: Yes = False,
    which: FilterOptions = FilterOptions(),
    common: given.TargetOptions = given.TargetOptions(),
    output: Output = "table",
) -> int:
    """Runs ended jobs again, as new jobs, by their ids or by a filter.

    A filter without a state selects jobs that failed or were lost and have not been recovered yet. A job that succeeded
    is repeated only with --again, or if you say yes to the question.

    Parameters
    ----------
    ids
        The ids of the jobs; leave them out to use a filter.
    schedule_at
        When: 2030-12-01T22:18:00Z (default: now).
    again
        Repeat also jobs that succeeded: they do their work a second time.
    """
    at = None if schedule_at is None else _date(schedule_at)
    with recruiter_on(common) as recruiter:

        def one(id: JobId) -> Done:
            try:
                made = recruiter.recover(id, schedule_at=at, again=again)
            except JobSucceeded:
                if yes or not sys.stdin.isatty() or not ask(f"Job {id} succeeded. Do its work a second time?", False):
                    raise
                made = recruiter.recover(id, schedule_at=at, again=True)
            return Done(f"is recovered as {made.id}", {"recovered_as": made.id, "key": made.key})

        def many(filter: JobFilter, everything: bool, progress: OnDone) -> int:
            return recruiter.jobs.recover(filter, schedule_at=at, again=again, everything=everything, progress=progress)

        among = partial(JobFilter.to_recover, again=again)
        action = Action("recover", "recovering", "recovered", one, among, many)
        return act(recruiter, action, ids, which, everything, yes, output)


@app.command
def remove(
    *ids: str,
    everything: Everything = False,
    yes: Yes = False,
    which: FilterOptions = FilterOptions(),
    common: given.TargetOptions = given.TargetOptions(),
    output: Output = "table",
) -> int:
    """Removes ended jobs for good, by their ids or by a filter. Waiting and running jobs are refused.

    Parameters
    ----------
    ids
        The ids of the jobs; leave them out to use a filter.
    """
    with recruiter_on(common) as recruiter:

        def one(id: JobId) -> Done:
            recruiter.remove(id)
            return Done("is removed")

        def many(filter: JobFilter, everything: bool, progress: OnDone) -> int:
            return recruiter.jobs.remove(filter, everything=everything, progress=progress)

        action = Action("remove", "removing", "removed", one, JobFilter.to_remove, many)
        return act(recruiter, action, ids, which, everything, yes, output)


def _pages(
    recruiter: Recruiter, wanted: JobFilter, limit: int, after: str | None, full: bool
) -> Iterator[Page[Job] | Page[JobSummary]]:
    """Until there are as many as are wanted, however far that is."""
    looked_at = found = 0
    with looking() as tell:
        while True:
            some = min(MOST_LISTED, limit - found) if limit else MOST_LISTED
            jobs = recruiter.jobs
            page: Page[Job] | Page[JobSummary]
            if full:
                page = jobs.list(wanted, limit=some, after=after)
            else:
                page = jobs.list(wanted, limit=some, after=after, minimal=True)
            looked_at, found, after = looked_at + page.looked_at, found + len(page), page.next
            yield page
            if after is None or found == limit:
                return
            tell(looked_at, found)


def _rows(recruiter: Recruiter, jobs: list[JobSummary], now: datetime) -> list[dict[str, Any]]:
    """For people, with why the due ones wait."""
    waiting = [job for job in jobs if job.state is State.WAITING and not job.blocked]
    due = {job.id: Lane(job.group, job.task, job.needs) for job in waiting if job.scheduled_at <= now}
    reasons = waiting_reasons(recruiter.store, set(due.values()), now)
    return [row(job, now, reasons.get(due[job.id]) if job.id in due else None) for job in jobs]


def _record(job: Job | JobSummary) -> dict[str, Any]:
    return full_record(job) if isinstance(job, Job) else record(job)


def _date(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"{text!r} is not a date; write 2030-12-01T22:18:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


# -- many jobs at once ---------------------------------------------------------------------------------------------


OnDone = Callable[[int], None]


class Done(NamedTuple):
    """What happened to one job: for people, and for scripts."""

    text: str
    facts: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Action:
    """What to do with the jobs, in three forms: cancel, cancelling, being cancelled."""

    verb: str
    doing: str
    done: str
    one: Callable[[JobId], Done]
    """Does it to one job."""
    among: Callable[[JobFilter], JobFilter]
    """Narrows a filter to the jobs that it can be done to."""
    many: Callable[[JobFilter, bool, OnDone], int]
    """Does it to all jobs of the filter; the flag says that an empty filter means all jobs."""


def act(
    recruiter: Recruiter,
    action: Action,
    ids: Sequence[str],
    which: FilterOptions,
    everything: bool,
    yes: bool,
    output: Output,
) -> int:
    """Returns the exit code: 0 if it was done to all jobs."""
    filter = which.to_filter()
    if bool(ids) + (not filter.is_empty) + everything != 1:
        raise SettingsError(f"name the jobs to {action.verb}: give ids, or a filter such as --task, or --everything")
    return _each(recruiter, action, ids, output) if ids else _many(recruiter, action, filter, yes, output)


def _each(recruiter: Recruiter, action: Action, ids: Sequence[str], output: Output) -> int:
    """One job after another; an error of one does not stop the others."""
    rows: list[dict[str, Any]] = []
    for text in ids:
        try:
            done = action.one(recruiter.jobs.id_of(text))
            rows.append({"id": text, "done": True, **done.facts})
            if output == "table":
                say(f"job {text} {done.text}")
        except StoreError:
            raise
        except RecruiterError as error:
            rows.append({"id": text, "done": False, "error": str(error)})
            print_error(error)
    if output != "table":
        show(rows, (), output, empty="")
    return 0 if all(row["done"] for row in rows) else 1


def _many(recruiter: Recruiter, action: Action, filter: JobFilter, yes: bool, output: Output) -> int:
    number = recruiter.jobs.count(action.among(filter))
    if not number.number and number.exact:
        recruiter.jobs.recognize(filter)
        report(f"There is no job to {action.verb} ({filter}).", {"count": 0}, output)
        return 0
    one = number == (1, True)
    jobs = f"{number} {'job' if one else 'jobs'}"
    if not ask(f"{jobs} ({filter}). {action.verb.capitalize()} {'it' if one else 'them'}?", yes):
        report(f"Nothing was {action.done.removeprefix('being ')}.", {"count": 0}, output)
        return 1
    with bar(action.doing, number.number) as progress:
        done = action.many(filter, filter.is_empty, progress)
    report(f"{plural(done, 'job is', 'jobs are')} {action.done}.", {"count": done}, output)
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
