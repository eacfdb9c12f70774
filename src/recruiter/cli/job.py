"""`recruiter job …`: one job, asked about and controlled."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId
from cyclopts import App

from recruiter.cli import options as given
from recruiter.cli.options import recruiter_on
from recruiter.cli.output import Output, show_one
from recruiter.domain.job import ArchivedJob, Job, JobId
from recruiter.errors import SettingsError

app = App(name="job", help="Look at jobs, cancel and recover them.")


@app.command(name="show")
def show_(id: str, /, *, common: given.TargetOptions = given.TargetOptions(), output: Output = "table") -> None:
    """Everything about a job, and in words why it is not running."""
    with recruiter_on(common) as recruiter:
        job = recruiter.find(_id(id))
        show_one({"now": recruiter.explain(job.id), **_facts(job)}, output)


@app.command
def cancel(
    id: str,
    /,
    *,
    reason: str | None = None,
    by: str | None = None,
    common: given.TargetOptions = given.TargetOptions(),
) -> None:
    """Cancels a job that has not ended: a waiting one never runs, a running one is stopped.

    Parameters
    ----------
    reason
        Why, for whoever wonders at night.
    by
        Who says so (default: you).
    """
    with recruiter_on(common) as recruiter:
        recruiter.cancel(_id(id), by=by or getpass.getuser(), reason=reason)
        print(f"job {id} is being cancelled")


@app.command
def recover(id: str, /, *, schedule_at: str | None = None, common: given.TargetOptions = given.TargetOptions()) -> None:
    """Runs a job that has ended once more, as a new job.

    Parameters
    ----------
    schedule_at
        When: 2030-12-01T22:18:00Z (default: now).
    """
    with recruiter_on(common) as recruiter:
        job = recruiter.recover(_id(id), schedule_at=_moment(schedule_at) if schedule_at is not None else None)
        print(f"job {id} is recovered as {job.id}")


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"{text!r} is no date; write 2030-12-01T22:18:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _id(text: str) -> JobId:
    """Ids made by Recruiter are ObjectIds; others are taken as the text they are, or as a number."""
    if ObjectId.is_valid(text):
        return ObjectId(text)
    return int(text) if text.lstrip("-").isdigit() else text


def _facts(job: Job) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": job.id,
        "state": job.state.value,
        "task": job.task,
        "method": job.method,
        "args": job.args,
        "group": job.group,
        "priority": job.priority,
        "tags": job.tags,
        "owner": job.username,
        "recovered_from": job.recovered_from,
        "urn": job.urn,
        "key": job.key,
        "needs": job.needs.described() if job.needs else None,
        "timeout": job.timeout,
        "retry_policy": job.retry_policy,
        "created_at": job.created_at,
        "scheduled_at": job.scheduled_at,
        "attempts": job.attempts,
        "crashes": job.crashes or None,
        "snoozes": job.snoozes or None,
    }
    if isinstance(job, ArchivedJob):
        facts |= {"why": job.why, "reason": job.reason, "result": job.result, "archived_at": job.archived_at}
    for number, each in enumerate(job.executions, 1):
        told = f"{each.exception}: {each.message}" if each.exception else each.message or "succeeded"
        facts[f"execution_{number}"] = f"{each.started_at} – {each.ended_at} on {each.worker}: {told}"
    if job.last_execution is not None and job.last_execution.trace:
        facts["trace"] = f"\n{job.last_execution.trace}"
    return facts
