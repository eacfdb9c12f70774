"""How jobs are printed for people: as rows of a table, and one job in full."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from operator import itemgetter
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from recruiter.cli.output import Column, as_json, as_text, console, write
from recruiter.domain.duration import UNTIL_SIGNAL, brief, humanize
from recruiter.domain.job import ArchivedJob, Execution, Job
from recruiter.domain.names import DEFAULT_METHOD
from recruiter.domain.policy_registry import policy_text
from recruiter.domain.search.conditions import BLOCKED
from recruiter.domain.state import SKIPPED, WHY_SKIPPED, State
from recruiter.store.payload import shown_payload

COLUMNS = (
    Column("id", fair=24, whole=True),
    Column("state"),
    Column("task", fair=14),
    Column("when", fair=12),
    Column("what", rank=1, fair=12),
    Column("group", rank=2, fair=16),
    Column("attempts", rank=4, right=True),
    Column("took", rank=3, right=True),
    Column("time", rank=5, title="time (UTC)"),
    Column("owner", rank=6, fair=12),
    Column("tags", rank=8, fair=16),
    Column("worker", rank=7, fair=16),
)


def row(job: Job, now: datetime, waits_for: str | None = None) -> dict[str, Any]:
    """A row of a table; `waits_for` is the reason why a due job has not started."""
    return {
        "id": job.id,
        "state": "cancelling" if job.cancelling else _state(job),
        "task": job.task or "(no job)",
        "group": job.group,
        "when": _when(job, now),
        "what": _what(job, waits_for),
        "attempts": job.attempts or None,
        "took": _took(job, now),
        "time": job.ended_at or job.locked_at or (None if job.scheduled_at == UNTIL_SIGNAL else job.scheduled_at),
        "owner": job.owner,
        "tags": job.tags,
        "worker": job.worker,
    }


def _state(job: Job) -> str:
    if isinstance(job, ArchivedJob) and job.why in WHY_SKIPPED:
        return SKIPPED
    return BLOCKED if job.blocked else job.state.value


def _when(job: Job, now: datetime) -> str | None:
    """The time since its end or its start, or until it is due."""
    if job.blocked:
        return None  # its time counts from its release
    if job.ended_at is not None:
        return f"{whole(now - job.ended_at)} ago"
    if job.state is State.RUNNING:
        return f"for {whole(now - job.locked_at)}" if job.locked_at else "starting"
    if job.scheduled_at == UNTIL_SIGNAL:
        return "until its signal"
    if job.scheduled_at > now:
        return f"in {whole(job.scheduled_at - now)}"
    return f"late {whole(now - job.due_since)}"


def _what(job: Job, waits_for: str | None) -> str | None:
    """Why it ended without success, how far it is, or why it waits."""
    error = ": ".join(filter(None, (job.error, job.message)))
    if job.ended_at is not None and job.state is not State.SUCCEEDED:
        return error or job.why
    if job.state is State.RUNNING:
        return " ".join(filter(None, (job.stage, f"{job.progress:.0%}" if job.progress else "")))
    parts = (waits_for, f"after {error}" if job.error and job.ended_at is None else None)
    return "; ".join(filter(None, parts)) or None


def _took(job: Job, now: datetime) -> str | None:
    if job.state is State.WAITING or job.started_at is None:
        return None
    took = max(0.0, ((job.ended_at or now) - job.started_at).total_seconds())
    return brief(took) if took else "<1ms"  # dates have milliseconds


def whole(duration: timedelta) -> str:
    """In whole seconds: 2d 3h, 5m 12s, 8s, 0s."""
    return brief(int(duration.total_seconds())) if duration >= timedelta(seconds=1) else "0s"


_COLOURS = {State.SUCCEEDED: "green", State.FAILED: "red", State.LOST: "red", State.RUNNING: "cyan"}


def draw(job: Job, now: str, lines: int) -> None:
    """Prints the job. `now` explains its state; `lines` is the number of log lines, 0 for all."""
    page = console()
    write(page, Text(f"job {as_text(str(job.id))}", style="bold"), soft_wrap=True)
    write(page, Padding(Text(as_text(now), style=_COLOURS.get(job.state, "yellow")), (0, 0, 0, 2)))
    events = sorted(_events(job), key=itemgetter(0))
    what = _section("what it is", _grid(_facts(job)))
    history = _section("what happened (UTC)", _grid((_exactly(at), event) for at, event in events))
    if page.width >= 130:  # wide enough for two columns of facts
        both = Table.grid(padding=(0, 6, 0, 0))
        both.add_row(what, history)
        write(page, both)
    else:
        write(page, what, history)
    for title, text in _texts(job, lines, page.width - 2):
        # Not wrapped, so that it can be copied; indented, so that no line looks like output of the command.
        indented = "\n".join(f"  {line}" for line in text.splitlines())
        write(page, Text(f"\n{title}", style="bold"), Text(indented), soft_wrap=True)


def _section(title: str, content: RenderableType) -> Group:
    return Group(Text(f"\n{title}", style="bold"), Padding(content, (0, 0, 0, 2), expand=False))


def _grid(rows: Iterator[tuple[str, Any]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value not in (None, "", (), {}):
            grid.add_row(Text(name), Text(as_text(value)))
    return grid


# -- facts -----------------------------------------------------------------------------------------------------------


def _facts(job: Job) -> Iterator[tuple[str, Any]]:
    state = _state(job)
    yield "state", f"{state}, being cancelled" if job.cancelling else state
    if isinstance(job, ArchivedJob):
        yield "why", job.why
        yield "reason", job.reason
    yield "held by", job.locked_by
    yield "stage", f"{job.stage or ''} {job.progress:.0%}".strip() if job.status else None
    yield "task", job.task if job.method == DEFAULT_METHOD else f"{job.task}, method {job.method}"
    yield "flow", None if job.flow is None else f"{job.flow.flow} (recruiter flow show {job.flow.flow})"
    yield "group", job.group
    yield "priority", job.priority or None
    yield "tags", job.tags
    yield "owner", job.owner
    yield "urn", job.urn
    yield "limited by", job.limited_by
    yield "needs", job.needs.described() if job.needs else None
    yield "attempts", _attempts(job)
    yield "retry", policy_text(job.retry_policy)
    yield "timeout", None if job.timeout is None else humanize(timedelta(seconds=job.timeout))
    yield "guarantee", "at most once" if job.at_most_once else None
    yield "key", _id(job.key) if job.key != job.id else None
    yield "recovered from", _id(job.recovered_from)
    yield "recovered as", _id(job.recovered_as) if isinstance(job, ArchivedJob) else None


def _attempts(job: Job) -> str:
    counted = [
        (job.crashes, "its process died"),
        (job.worker_deaths, "its whole worker died"),
        (job.snoozes - job.conflicts, "deferred"),
        (job.conflicts, "deferred because of conflicting transactions"),
    ]
    running = job.state is State.RUNNING
    attempts = [f"{job.attempts} ended", "1 running"] if running else [str(job.attempts)]
    return ", ".join([*attempts, *(f"{event} {_times(number)}" for number, event in counted if number)])


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _id(id: Any) -> str | None:
    return None if id is None else str(id)


# -- what happened ---------------------------------------------------------------------------------------------------


def _events(job: Job) -> Iterator[tuple[datetime, str]]:
    """The history of a job. Events at the same time keep this order."""
    yield job.created_at, "created"
    if isinstance(job.scheduled_at, datetime) and job.scheduled_at != UNTIL_SIGNAL:  # beyond the year 9999 it is none
        before = any(attempt.ended_at and attempt.ended_at <= job.due_since for attempt in job.executions)
        yield job.due_since, "due again" if before else "due"
    for number, attempt in _numbered(job):
        if attempt.started_at is not None:
            yield attempt.started_at, f"attempt {number} started on {attempt.worker}"
    for entry in job.status:
        if entry.state == State.RUNNING:
            yield entry.date, f"stage {entry.stage or '–'} {entry.progress:.0%}"
    for number, attempt in _numbered(job):
        if attempt.ended_at is not None:
            yield attempt.ended_at, f"attempt {number} {_outcome(attempt)}"
    if job.locked_by is not None and job.locked_at is not None:
        # The death of a worker is listed, and is not among the counted attempts.
        number = max([job.attempts, *(number for number, _ in _numbered(job))]) + 1
        yield job.locked_at, f"attempt {number} started on {job.locked_by}"
    for event in job.history:
        yield event.at, str(event)
    if isinstance(job, ArchivedJob):
        yield job.archived_at, f"ended, {job.why}"


def _numbered(job: Job) -> Iterator[tuple[int, Execution]]:
    """Old ones may be gone."""
    yield from enumerate(job.executions, max(0, job.attempts - len(job.executions)) + 1)


def _outcome(attempt: Execution) -> str:
    if attempt.crashed:
        return f"ended when its process died: {_first_line(attempt.message)}"
    if attempt.exception:
        return f"failed with {attempt.exception}: {_first_line(attempt.message)}"
    return _first_line(attempt.message) or "succeeded"


def _first_line(text: str | None) -> str:
    line, *more = (text or "").splitlines() or [""]
    return f"{line[:200]}…" if more or len(line) > 200 else line


def _exactly(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03}"


# -- arguments, result, traces and log ---------------------------------------------------------------------------------


def _texts(job: Job, lines: int, width: int) -> Iterator[tuple[str, str]]:
    """The parts of a job that are longer than a line, each with its title."""
    if job.args:
        yield "arguments", _document(shown_payload(job.args), width)
    if isinstance(job, ArchivedJob) and job.result is not None:
        yield "result", _document(shown_payload(job.result), width)
    if job.checkpoints:
        told = (f"{done.name}: {_first_line(done.problem)}" if done.problem else done.name for done in job.checkpoints)
        times = (_exactly(done.at) for done in job.checkpoints)
        yield "checkpoints", "\n".join(map("  ".join, zip(times, told, strict=True)))
    attempts = list(_numbered(job))
    for (number, attempt), later in zip_longest(attempts, job.executions[1:]):
        is_repeated = later is not None and later.trace == attempt.trace
        if attempt.trace or attempt.notes or attempt.exception:
            yield f"attempt {number}{_time_of(attempt)}", "\n".join(_account(attempt, number, is_repeated))
    if job.log:
        shown = job.log[-lines:] if lines else job.log
        before = len(job.log) - len(shown) + job.log_cut
        extent = f" (the last {len(shown):,} lines of {before + len(shown):,})" if before else ""
        yield f"log{extent}", "\n".join(f"{_exactly(line.at)}  {line.text}" for line in shown)


def _account(attempt: Execution, number: int, is_repeated: bool) -> Iterator[str]:
    """The lines about the error of an attempt; without its trace if the next attempt repeats it."""
    if is_repeated:
        yield f"{attempt.exception}: {attempt.message}"
        yield f"(the same trace as in attempt {number + 1})" if attempt.trace else ""
    elif attempt.trace:
        yield attempt.trace.rstrip()
    else:
        yield f"{attempt.exception}: {attempt.message}"
    yield from (f"note: {note}" for note in attempt.notes)


def _time_of(attempt: Execution) -> str:
    if attempt.started_at is None or attempt.ended_at is None:
        return ""
    return f", {brief((attempt.ended_at - attempt.started_at).total_seconds())}"


def _document(value: Any, width: int) -> str:
    line = as_json(value, "jsonl")
    return line if len(line) <= width else as_json(value)
