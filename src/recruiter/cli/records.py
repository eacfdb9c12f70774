"""How jobs are printed: as records for scripts; for people as rows of a table, and one job in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from recruiter.cli.output import Column, as_json, as_text, console, write
from recruiter.domain.duration import UNTIL_SIGNAL, brief, humanize
from recruiter.domain.job import ArchivedJob, Execution, Job
from recruiter.domain.names import DEFAULT_METHOD
from recruiter.domain.search.conditions import BLOCKED
from recruiter.domain.search.filter import JobSummary
from recruiter.domain.state import State
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


def record(job: JobSummary) -> dict[str, Any]:
    """A short record, for scripts."""
    return {
        "id": job.id,
        "state": job.state.value,
        "task": job.task,
        "group": job.group,
        "priority": job.priority,
        "tags": job.tags,
        "owner": job.owner,
        "urn": job.urn,
        "needs": job.needs.amounts(),
        "created_at": job.created_at,
        "scheduled_at": job.scheduled_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "attempts": job.attempts,
        "why": job.why,
        "error": job.error,
        "message": job.message,
        "worker": job.worker,
        "stage": job.stage,
        "progress": job.progress,
        "locked_by": job.locked_by,
        "locked_at": job.locked_at,
        "cancelling": job.cancelling,
        "blocked": job.blocked,
    }


def full_record(job: Job) -> dict[str, Any]:
    """Everything that is known of it, for scripts."""
    facts: dict[str, Any] = {
        "id": job.id,
        "key": job.key,
        "state": job.state.value,
        "task": job.task,
        "method": job.method,
        "args": shown_payload(job.args),
        "group": job.group,
        "priority": job.priority,
        "tags": job.tags,
        "owner": job.owner,
        "urn": job.urn,
        "limited_by": job.limited_by,
        "needs": job.needs.amounts(),
        "timeout": job.timeout,
        "at_most_once": job.at_most_once,
        "retry_policy": job.retry_policy,
        "recovered_from": job.recovered_from,
        "flow": None if job.flow is None else job.flow.flow,
        "blocked": job.blocked,
        "created_at": job.created_at,
        "scheduled_at": job.scheduled_at,
        "attempts": job.attempts,
        "crashes": job.crashes,
        "worker_deaths": job.worker_deaths,
        "snoozes": job.snoozes,
        "conflicts": job.conflicts,
        "locked_by": job.locked_by,
        "locked_at": job.locked_at,
        "cancel": None if job.cancel is None else job.cancel._asdict(),
        "stage": job.stage,
        "progress": job.progress,
        "executions": [execution._asdict() for execution in job.executions],
        "status": [entry._asdict() for entry in job.status],
        "log": [line._asdict() for line in job.log],
        "history": [{**entry._asdict(), "text": str(entry)} for entry in job.history],
    }
    if isinstance(job, ArchivedJob):
        facts |= {
            "ended_at": job.archived_at,
            "why": job.why,
            "reason": job.reason,
            "result": shown_payload(job.result),
            "recovered_as": job.recovered_as,
        }
    return facts


def row(job: JobSummary, now: datetime, waits_for: str | None = None) -> dict[str, Any]:
    """At a glance, for people; `waits_for` says why a due job has not started."""
    return {
        "id": job.id,
        "state": "cancelling" if job.cancelling else BLOCKED if job.blocked else job.state.value,
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


def _when(job: JobSummary, now: datetime) -> str | None:
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
    return f"late {whole(now - job.scheduled_at)}"


def _what(job: JobSummary, waits_for: str | None) -> str | None:
    """What a person would ask next."""
    error = ": ".join(filter(None, (job.error, job.message)))
    if job.ended_at is not None and job.state is not State.SUCCEEDED:
        return error or job.why
    if job.state is State.RUNNING:
        return " ".join(filter(None, (job.stage, f"{job.progress:.0%}" if job.progress else "")))
    told = (waits_for, f"after {error}" if job.error and job.ended_at is None else None)
    return "; ".join(filter(None, told)) or None


def _took(job: JobSummary, now: datetime) -> str | None:
    if job.state is State.WAITING or job.started_at is None:
        return None
    took = max(0.0, ((job.ended_at or now) - job.started_at).total_seconds())
    return brief(took) if took else "<1ms"  # dates have milliseconds


def whole(duration: timedelta) -> str:
    """In whole seconds: 2d 3h, 5m 12s, 8s, 0s."""
    return brief(int(duration.total_seconds())) if duration >= timedelta(seconds=1) else "0s"


_WIDE = 130
"""From so many columns on, what it is and what happened stand side by side."""
_COLOURS = {State.SUCCEEDED: "green", State.FAILED: "red", State.LOST: "red", State.RUNNING: "cyan"}


def draw(job: Job, now: str, lines: int) -> None:
    """Prints it; `now` says in words how it is, `lines` how much of the log is wanted, 0 for all."""
    page = console()
    write(page, Text(f"job {as_text(str(job.id))}", style="bold"), soft_wrap=True)
    write(page, Padding(Text(as_text(now), style=_COLOURS.get(job.state, "yellow")), (0, 0, 0, 2)))
    what, history = _section("what it is", _grid(_facts(job))), _section("what happened (UTC)", _grid(_history(job)))
    if page.width >= _WIDE:
        both = Table.grid(padding=(0, 6, 0, 0))
        both.add_row(what, history)
        write(page, both)
    else:
        write(page, what, history)
    for title, text in _texts(job, lines, page.width - 2):
        # Neither cut nor wrapped: a line of a trace or a document is to be copied as it is.
        write(page, Text(f"\n{title}", style="bold"), Text(_indented(text)), soft_wrap=True)


def _indented(text: str) -> str:
    """Every line of it, so that none can look like one of ours."""
    return "\n".join(f"  {line}" for line in text.splitlines())


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


# -- what it is ------------------------------------------------------------------------------------------------------


def _facts(job: Job) -> Iterator[tuple[str, Any]]:
    cancelling = job.cancel is not None and not isinstance(job, ArchivedJob)
    state = BLOCKED if job.blocked else job.state.value
    yield "state", f"{state}, being cancelled" if cancelling else state
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
    yield "retry", _policy(job.retry_policy)
    yield "timeout", None if job.timeout is None else humanize(timedelta(seconds=job.timeout))
    yield "guarantee", "at most once" if job.at_most_once else None
    yield "key", _id(job.key) if job.key != job.id else None
    yield "recovered from", _id(job.recovered_from)
    yield "recovered as", _id(job.recovered_as) if isinstance(job, ArchivedJob) else None


def _attempts(job: Job) -> str:
    more = [
        (job.crashes, "ended when their process died"),
        (job.worker_deaths, "times its whole worker died"),
        (job.snoozes - job.conflicts, "times it asked to be run later"),
        (job.conflicts, "times its transaction met another one for too long"),
    ]
    runs = job.state is State.RUNNING
    began = [f"{job.attempts} ended", "1 runs"] if runs else [str(job.attempts)]
    return ", ".join([*began, *(f"{number} {told}" for number, told in more if number)])


def _policy(stored: Mapping[str, Any] | None) -> str | None:
    """As it would be written: RetryManyTimes(3, 60) only ConnectionError."""
    if stored is None:
        return None
    parameters = stored.get("parameters")
    values = parameters.values() if isinstance(parameters, Mapping) else ()
    only = f" only {as_text(stored['only'])}" if stored.get("only") else ""
    return f"{stored.get('class')}({', '.join(as_text(value) for value in values)}){only}"


def _id(id: Any) -> str | None:
    return None if id is None else str(id)


# -- what happened ---------------------------------------------------------------------------------------------------


def _history(job: Job) -> Iterator[tuple[str, str]]:
    for at, told in sorted(_moments(job), key=lambda moment: moment[0]):
        yield _exactly(at), told


def _moments(job: Job) -> Iterator[tuple[datetime, str]]:
    """Of two at the same time, the one that comes first is told first."""
    yield job.created_at, "created"
    if isinstance(job.scheduled_at, datetime) and job.scheduled_at != UNTIL_SIGNAL:  # beyond the year 9999 it is none
        before = any(attempt.ended_at and attempt.ended_at <= job.scheduled_at for attempt in job.executions)
        yield job.scheduled_at, "due again" if before else "due"
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
        yield job.locked_at, f"attempt {job.attempts + 1} started on {job.locked_by}"
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


# -- what is read as it is -------------------------------------------------------------------------------------------


def _texts(job: Job, lines: int, width: int) -> Iterator[tuple[str, str]]:
    if job.args:
        yield "arguments", _document(shown_payload(job.args), width)
    if isinstance(job, ArchivedJob) and job.result is not None:
        yield "result", _document(shown_payload(job.result), width)
    if job.checkpoints:
        yield "checkpoints", "\n".join(f"{_exactly(each.at)}  {each.name}" for each in job.checkpoints)
    attempts = list(_numbered(job))
    for (number, attempt), later in zip_longest(attempts, job.executions[1:]):
        same = later is not None and later.trace == attempt.trace
        if attempt.trace or attempt.notes or attempt.exception:
            yield f"attempt {number}{_time_of(attempt)}", "\n".join(_account(attempt, number, same=same))
    if job.log:
        shown = job.log[-lines:] if lines else job.log
        before = len(job.log) - len(shown) + job.log_cut
        told = f" (the last {len(shown):,} lines of {before + len(shown):,})" if before else ""
        yield f"log{told}", "\n".join(f"{_exactly(line.at)}  {line.text}" for line in shown)


def _account(attempt: Execution, number: int, *, same: bool) -> Iterator[str]:
    if same:
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
