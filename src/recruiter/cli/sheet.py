"""`recruiter job show`: everything about one job, for reading."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from recruiter.cli.figures import bar, seconds
from recruiter.cli.output import as_text, print_facts
from recruiter.domain.job import ArchivedJob, Execution, Job
from recruiter.domain.state import State


def as_record(job: Job, explained: str) -> dict[str, Any]:
    """All of it for scripts."""
    record = asdict(job)
    record |= {
        "state": job.state.value,
        "explained": explained,
        "needs": job.needs.described() or None,
        "executions": [each._asdict() for each in job.executions],
        "status": [each._asdict() for each in job.status],
        "log": [each._asdict() for each in job.log],
    }
    return record


def print_sheet(console: Console, job: Job, explained: str) -> None:
    """What it is and why it is not running; then what happened, in sections that are there if there is something."""
    console.print(Text(f"job {job.id}", style="bold"), Text(_state(job), style=_style(job)))
    console.print(Text(explained, overflow="fold"))
    console.print()
    print_facts(console, _facts(job))
    _section(console, "arguments", _arguments(job))
    _section(console, "attempts", _attempts(job))
    _section(console, "timeline", _timeline(job))
    _section(console, "log", _log(job))
    if isinstance(job, ArchivedJob) and job.result is not None:
        _section(console, "result", _pretty(job.result))


def _section(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        console.print()
        console.print(Text(title, style="bold"))
        for line in lines:
            console.print(Text(f"  {line}", overflow="fold"), soft_wrap=False)


def _facts(job: Job) -> dict[str, Any]:
    call = job.task if job.method == "execute" else f"{job.task}.{job.method}"
    facts: dict[str, Any] = {
        "task": call,
        "group": job.group,
        "priority": job.priority or None,
        "owner": job.username,
        "tags": job.tags,
        "urn": job.urn,
        "key": job.key,
        "needs": job.needs.described() if job.needs else None,
        "timeout": seconds(job.timeout) if job.timeout is not None else None,
        "at most once": "yes" if job.at_most_once else None,
        "retries": job.retry_policy,
        "held by": job.locked_by,
        "attempts": job.attempts,
        "crashes": job.crashes or None,
        "asked to wait": f"{job.snoozes} times" if job.snoozes else None,
        "repeats": job.recovered_from,
    }
    if isinstance(job, ArchivedJob):
        facts |= {
            "ended": job.why,
            "reason": job.reason,
            "repeated as": job.recovered_as,
            "latency": seconds(job.latency) if job.latency is not None else None,
            "execution time": seconds(job.execution_time) if job.execution_time is not None else None,
        }
    return facts


def _state(job: Job) -> str:
    return job.state.value


def _style(job: Job) -> str:
    return {State.SUCCEEDED: "green", State.FAILED: "red", State.LOST: "red", State.CANCELLED: "yellow"}.get(
        job.state, "cyan"
    )


def _arguments(job: Job) -> list[str]:
    if isinstance(job.args, Sequence):
        return [f"{place}  {line}" for place, value in enumerate(job.args) for line in _pretty(value)]
    width = max(map(len, job.args), default=0)
    lines: list[str] = []
    for name, value in job.args.items():
        first, *more = _pretty(value)
        lines += [f"{name:<{width}}  {first}", *(f"{'':<{width}}  {line}" for line in more)]
    return lines


def _attempts(job: Job) -> list[str]:
    """Each with what went wrong; a trace that is the same as the one before is not told again."""
    lines: list[str] = []
    told: str | None = None
    first = job.attempts - len(job.executions) + 1
    for number, each in enumerate(job.executions, max(1, first)):
        lines.append(f"{number}  {_execution(each)}")
        lines += [f"   {note}" for note in each.notes]
        if each.trace and each.trace != told:
            lines += ["", *(f"   {line}" for line in each.trace.rstrip().splitlines()), ""]
        elif each.trace:
            lines.append("   with the same traceback")
        told = each.trace
    return lines


def _execution(each: Execution) -> str:
    took = ""
    if each.started_at is not None and each.ended_at is not None:
        took = f"took {seconds((each.ended_at - each.started_at).total_seconds())}"
    how = f"{each.exception}: {each.message}" if each.exception else each.message or "succeeded"
    where = f"on {each.worker}" if each.worker else ""
    when = as_text(each.started_at or each.ended_at)
    return " ".join(filter(None, (when, took, where))) + f": {how}"


def _timeline(job: Job) -> list[str]:
    return [f"{_clock(at)}  {what}" for at, what in sorted(_moments(job), key=lambda moment: moment[0])]


def _moments(job: Job) -> Iterator[tuple[datetime, str]]:
    yield job.created_at, "created"
    yield job.scheduled_at, "due"
    for each in job.executions:
        if each.started_at is not None:
            yield each.started_at, f"an attempt began on {each.worker}"
    if job.locked_at is not None:
        yield job.locked_at, f"runs on {job.locked_by}"
    for entry in job.status:
        stage = f" {entry.stage}" if entry.stage else ""
        yield entry.date, f"{bar(entry.progress, 10)} {entry.progress:4.0%}{stage} ({entry.state})"
    if isinstance(job, ArchivedJob):
        yield job.archived_at, f"ended: {job.why}"


def _log(job: Job) -> list[str]:
    cut = [f"… {job.log_cut:,} lines before that are gone"] if job.log_cut else []
    return [*cut, *(f"{_clock(line.at)}  {line.text}" for line in job.log)]


def _clock(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _pretty(value: Any) -> list[str]:
    return json.dumps(value, default=as_text, indent=2, ensure_ascii=False).splitlines()
