"""`recruiter job …`: finds, shows, changes, cancels, recovers and removes jobs, one or many."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

from recruiter.app import Recruiter
from recruiter.application import load_application
from recruiter.cli import options as given
from recruiter.cli.output import ask, console, print_error, say, say_json, show
from recruiter.cli.records import COLUMNS, draw, row
from recruiter.domain.job import Job
from recruiter.domain.search.filter import JobFilter, Page
from recruiter.domain.text import plural
from recruiter.errors import JobRecovered, JobSucceeded, RecruiterError, SettingsError, StoreError
from recruiter.job_actions import JOB_ACTIONS, ActionResult, JobAction
from recruiter.jobs import MAX_JOBS_LISTED
from recruiter.views.explain import waiting_reasons
from recruiter.views.record import job_record

Ids = Annotated[str, Parameter(help="The ids of the jobs; leave them out to use a filter.")]

app = App(name="job")


@app.command(name="list")
def list_(
    *,
    limit: given.CountOrAll = 50,
    after: str | None = None,
    full: given.Flag = False,
    which: given.FilterOptions = given.FilterOptions(),
    common: given.ReportOptions = given.ReportOptions(),
) -> None:
    """Lists running jobs, then waiting jobs in the order in which they start, then ended jobs, the newest first.

    Args:
        limit: How many to show; 0 for all.
        after: The cursor that the previous page printed at its end, on standard error; also with --output json and
            jsonl.
        full: Print each job with arguments, attempts and log; for --output json and jsonl.
    """
    wanted = which.to_filter()
    if full and common.output == "table":
        raise SettingsError("--full is for --output json or jsonl; `recruiter job show ID` shows everything of one job")
    with given.recruiter_on(common) as recruiter:
        rows: list[dict[str, Any]] = []
        found, next_ = 0, None
        for page in _pages(recruiter, wanted, limit, after, full):
            found, next_ = found + len(page), page.next
            if common.output == "table":
                page_rows = _rows(recruiter, page, recruiter.clock.now())
            else:
                page_rows = [job_record(job, minimal=not full) for job in page]
            for document in page.unreadable:
                say(document, stderr=True)
            if common.output == "jsonl":  # as they come: there may be very many
                show(page_rows, (), common.output, empty="")
            else:
                rows += page_rows
        if not found and after is None:
            recruiter.jobs.recognize(wanted)  # raises if a task or group is misspelt: 0 would look like good news
        if common.output != "jsonl":
            show(rows, COLUMNS, common.output, empty=f"There are no jobs{'' if wanted.is_empty else f' ({wanted})'}.")
        if next_ is not None:
            say(f"There are more jobs. Show the next page with: --after {next_}", stderr=True)


@app.command
def count(
    *,
    exact: given.Flag = False,
    which: given.FilterOptions = given.FilterOptions(),
    common: given.ReportOptions = given.ReportOptions(),
) -> None:
    """Counts jobs. `recruiter analytics` counts them by group, task, owner or tag.

    Args:
        exact: Count all of them, however long it takes.
    """
    wanted = which.to_filter()
    with given.recruiter_on(common) as recruiter:
        number = recruiter.jobs.count(wanted, most=None) if exact else recruiter.jobs.count(wanted)
        if not number.number:
            recruiter.jobs.recognize(wanted)  # raises if a task or group is misspelt: 0 would look like good news
        if common.output == "table":
            say(number)
        else:
            say_json(number._asdict(), common.output)


@app.command(name="show")
def show_(id: str, /, *, log: given.CountOrAll = 20, common: given.ReportOptions = given.ReportOptions()) -> None:
    """Shows a job: why it is not running, its arguments, its history, its attempts and its log.

    Args:
        log: How many of the last lines of its log to show; 0 for all.
    """
    with given.recruiter_on(common) as recruiter:
        known = recruiter.jobs.id_of(id)
        now = recruiter.explain(known)
        try:
            job = recruiter.find(known)
        except StoreError:  # MongoDB has just answered, so the document is not adopted yet
            show([{"id": known, "now": now}], ("id", "now"), common.output, empty="")
            return
        if common.output == "table":
            draw(job, now, log)
        else:
            say_json({"now": now, **job_record(job)}, common.output)


@app.command
def cancel(*ids: Ids, chosen: given.ChangedJobs = given.ChangedJobs()) -> int:
    """Cancels jobs that have not ended, by their ids or by a filter: waiting jobs never run, running jobs are
    stopped."""
    return _act("cancel", ids, chosen, by=chosen.author, reason=chosen.reason)


@app.command
def run(*ids: Ids, chosen: given.ChangedJobs = given.ChangedJobs()) -> int:
    """Makes postponed jobs due, by their ids or by a filter, including jobs that wait for their retry or sleep."""
    return _act("run", ids, chosen, by=chosen.author, reason=chosen.reason)


@app.command
def reschedule(
    *ids: Ids,
    at: str | None = None,
    in_: Annotated[str | None, Parameter(name="--in")] = None,
    chosen: given.ChangedJobs = given.ChangedJobs(),
) -> int:
    """Gives waiting jobs another time, by their ids or by a filter. Jobs that a worker holds are refused.

    Args:
        at: When: 2030-12-01T22:18:00Z.
        in_: Or how long from now: 2h.
    """
    if (at is None) == (in_ is None):
        raise SettingsError("give the new time: --at 2030-12-01T22:18:00Z, or --in 2h")
    moment = None if at is None else _date(at)
    return _act("reschedule", ids, chosen, at=moment, in_=in_, by=chosen.author, reason=chosen.reason)


@app.command
def reprioritise(*ids: Ids, priority: float, chosen: given.ChangedJobs = given.ChangedJobs()) -> int:
    """Gives waiting jobs another priority, by their ids or by a filter. Jobs that a worker holds are refused.

    Args:
        priority: The new priority: a higher one goes first inside its group.
    """
    number = int(priority) if priority.is_integer() else priority
    return _act("reprioritise", ids, chosen, priority=number, by=chosen.author, reason=chosen.reason)


@app.command
def recover(
    *ids: Ids,
    schedule_at: str | None = None,
    again: given.Flag = False,
    chosen: given.ChosenJobs = given.ChosenJobs(),
) -> int:
    """Runs ended jobs again, as new jobs, by their ids or by a filter.

    A filter without a state selects jobs that failed or were lost and have not been recovered yet. A job that succeeded
    is repeated only with --again, or if you answer the question with yes.

    Args:
        schedule_at: When: 2030-12-01T22:18:00Z (default: now).
        again: Repeat also jobs that succeeded: they do their work a second time.
    """
    at = None if schedule_at is None else _date(schedule_at)
    return _act("recover", ids, chosen, schedule_at=at, again=again)


@app.command
def remove(*ids: Ids, chosen: given.ChosenJobs = given.ChosenJobs()) -> int:
    """Removes ended jobs for good, by their ids or by a filter. Waiting and running jobs are refused."""
    return _act("remove", ids, chosen)


@app.command
def signal(
    id: str,
    name: str,
    *,
    data: str | None = None,
    clear: given.Flag = False,
    by: str | None = None,
    common: given.ApplicationReportOptions = given.ApplicationReportOptions(),
) -> None:
    """Sends a signal to a job that waits for it, or will (current_job.wait_for).

    Args:
        id: The id of the job.
        name: The name of the signal, such as approved.
        data: What wait_for returns, as JSON: '{"by": "ada"}'. It is sealed by the codec of the application, if it has
            one.
        clear: Store the data in clear: for an application without a codec, which then need not be loaded.
        by: Who sends it (default: your user name).
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
        with given.recruiter_on(common) as recruiter:
            recruiter.signal(id, name, value, by=author)
    else:
        with given.application_recruiter(common) as recruiter:
            owner = load_application(bootstrap).owner_of(recruiter.find(id).task)
            recruiter.payload = getattr(owner, "payload", recruiter.payload)
            recruiter.signal(id, name, value, by=author)
    common.report(f"job {id} was sent the signal {name!r}", {"id": id, "signal": name})


def _pages(recruiter: Recruiter, wanted: JobFilter, limit: int, after: str | None, full: bool) -> Iterator[Page[Job]]:
    """Yields pages until there are `limit` jobs (0: all), or until none is left. It may read very many other jobs."""
    looked_at = found = 0
    with looking() as tell:
        while True:
            size = min(MAX_JOBS_LISTED, limit - found) if limit else MAX_JOBS_LISTED
            page = recruiter.jobs.list(wanted, limit=size, after=after, minimal=not full)
            looked_at, found, after = looked_at + page.looked_at, found + len(page), page.next
            yield page
            if after is None or (limit and found == limit):
                return
            tell(looked_at, found)


def _rows(recruiter: Recruiter, jobs: Page[Job], now: datetime) -> list[dict[str, Any]]:
    why = {id: reason.text for id, reason in waiting_reasons(recruiter.store, jobs, now).items()}
    return [row(job, now, why.get(job.id)) for job in jobs]


def _date(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"{text!r} is not a date; write 2030-12-01T22:18:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


# -- actions on many jobs ---------------------------------------------------------------------------------------------


def _act(verb: str, ids: Sequence[str], chosen: given.ChosenJobs, **options: Any) -> int:
    """Acts on the jobs of these ids, or of the filter; returns the exit code, 0 if it was done to all of them."""
    filter = chosen.which.to_filter()
    if bool(ids) + (not filter.is_empty) + chosen.everything != 1:
        raise SettingsError(f"name the jobs to {verb}: give ids, or a filter such as --task, or --everything")
    with given.recruiter_on(chosen) as recruiter:
        if ids:
            return _one_by_one(recruiter, JOB_ACTIONS[verb], ids, chosen, options)
        return _many(recruiter, JOB_ACTIONS[verb], filter, chosen, options)


def _one_by_one(
    recruiter: Recruiter, action: JobAction, ids: Sequence[str], chosen: given.ChosenJobs, options: dict[str, Any]
) -> int:
    """Acts on one job after another; an error of one does not stop the others. Returns the exit code."""
    rows: list[dict[str, Any]] = []
    for text in ids:
        try:
            done = _one(recruiter, action, text, chosen, options)
            rows.append({"id": text, "done": True, **done.facts})
            if chosen.output == "table":
                say(f"job {text} {done.text}")
        except StoreError:
            raise
        except RecruiterError as error:
            rows.append({"id": text, "done": False, "error": str(error)})
            print_error(error)
    if chosen.output != "table":
        show(rows, (), chosen.output, empty="")
    return 0 if all(row["done"] for row in rows) else 1


def _one(
    recruiter: Recruiter, action: JobAction, text: str, chosen: given.ChosenJobs, options: dict[str, Any]
) -> ActionResult:
    """Acts on one job. Asks a person before a job does its work a second time."""
    id = recruiter.jobs.id_of(text)
    try:
        return action.one(recruiter, id, **options)
    except (JobSucceeded, JobRecovered) as error:
        what = "succeeded" if isinstance(error, JobSucceeded) else "was recovered before"
        question = f"Job {id} {what}. Do its work a second time?"
        if chosen.yes or not sys.stdin.isatty() or not ask(question, False):
            raise
        return action.one(recruiter, id, **options | {"again": True})


def _many(
    recruiter: Recruiter, action: JobAction, filter: JobFilter, chosen: given.ChosenJobs, options: dict[str, Any]
) -> int:
    """Asks, and then acts on all jobs of the filter. Returns the exit code."""
    found = recruiter.jobs.count(action.among(filter, again=options.get("again", False)))
    if not found.number and found.exact:
        recruiter.jobs.recognize(filter)  # raises for a name with a typing error
        chosen.report(f"There is no job to {action.verb} ({filter}).", {"count": 0})
        return 0
    one = found == (1, True)
    jobs = f"{found} {'job' if one else 'jobs'}"
    if not ask(f"{jobs} ({filter}). {action.verb.capitalize()} {'it' if one else 'them'}?", chosen.yes):
        chosen.report(f"Nothing was {action.done.removeprefix('being ')}.", {"count": 0})
        return 1
    with bar(action.doing, found.number) as progress:
        done = action.many(recruiter, filter, progress, everything=filter.is_empty, **options)
    chosen.report(f"{plural(done, 'job is', 'jobs are')} {action.done}.", {"count": done})
    return 0


_QUIET_SECONDS = 1.0
"""A shorter search shows no line."""


@contextmanager
def looking() -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with how many jobs were read and found; the line appears after a second."""
    page = console(stderr=True)
    status = Status("", console=page, spinner="dots")
    began = time.monotonic()

    def tell(looked_at: int, found: int) -> None:
        if page.is_terminal and time.monotonic() - began > _QUIET_SECONDS:
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
