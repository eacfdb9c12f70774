"""`recruiter job …`: one job, asked about and controlled."""

from __future__ import annotations

import getpass
from typing import Any

from bson import ObjectId
from cyclopts import App

from recruiter.cli import options as given
from recruiter.cli.options import recruiter_on
from recruiter.cli.output import Output, show_one
from recruiter.domain.job import ArchivedJob, Job, JobId

app = App(name="job", help="Look at jobs, and cancel them.")


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
