"""Jobs as records for scripts, and as rows for people."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from recruiter.cli.columns import Column, seconds
from recruiter.domain.job import ArchivedJob, Job
from recruiter.domain.search.pages import JobSummary
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
    }


def full_record(job: Job) -> dict[str, Any]:
    """Everything that is known of it, for scripts."""
    facts: dict[str, Any] = {
        "id": job.id,
        "state": job.state.value,
        "task": job.task,
        "method": job.method,
        "args": shown_payload(job.args),
        "group": job.group,
        "priority": job.priority,
        "tags": job.tags,
        "owner": job.owner,
        "urn": job.urn,
        "key": job.key,
        "needs": job.needs.amounts(),
        "timeout": job.timeout,
        "at_most_once": job.at_most_once,
        "retry_policy": job.retry_policy,
        "recovered_from": job.recovered_from,
        "created_at": job.created_at,
        "scheduled_at": job.scheduled_at,
        "attempts": job.attempts,
        "crashes": job.crashes,
        "snoozes": job.snoozes,
        "locked_by": job.locked_by,
        "locked_at": job.locked_at,
        "cancel": None if job.cancel is None else job.cancel._asdict(),
        "stage": job.stage,
        "progress": job.progress,
        "executions": [execution._asdict() for execution in job.executions],
        "status": [entry._asdict() for entry in job.status],
        "log": [line._asdict() for line in job.log],
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
        "state": "cancelling" if job.cancelling else job.state.value,
        "task": job.task or "(no job)",
        "group": job.group,
        "when": _when(job, now),
        "what": _what(job, waits_for),
        "attempts": job.attempts or None,
        "took": _took(job, now),
        "time": job.ended_at or job.locked_at or job.scheduled_at,
        "owner": job.owner,
        "tags": job.tags,
        "worker": job.worker,
    }


def _when(job: JobSummary, now: datetime) -> str:
    if job.ended_at is not None:
        return f"{brief(now - job.ended_at)} ago"
    if job.state is State.RUNNING:
        return f"for {brief(now - job.locked_at)}" if job.locked_at else "starting"
    if job.scheduled_at > now:
        return f"in {brief(job.scheduled_at - now)}"
    return f"late {brief(now - job.scheduled_at)}"


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
    return seconds(took) if took else "< 1 ms"  # dates have milliseconds


def brief(duration: timedelta) -> str:
    """Near enough: 2d 3h, 5m 12s, 8s."""
    whole = timedelta(seconds=max(0, int(duration.total_seconds())))
    return seconds(whole.total_seconds()).replace(".0 s", "s") if whole.total_seconds() >= 1 else "0s"
