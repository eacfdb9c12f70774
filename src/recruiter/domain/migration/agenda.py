"""Agenda (Node): one collection, `agendaJobs`, with a document for each job that waits, has ended or repeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recruiter.domain.migration import (
    Moved,
    MovedJob,
    MovedScheduler,
    NotMoved,
    arguments,
    moment,
    task_name,
)
from recruiter.domain.policy_registry import schedule_policy
from recruiter.errors import RecruiterError

COLLECTIONS = ("agendaJobs",)


def moved(document: Mapping[str, Any], renamed: Mapping[str, str], collection: str) -> Moved:
    """What becomes of a document of `agendaJobs`."""
    del collection
    id = f"agenda:{document['_id']}"
    if not isinstance(document.get("name"), str):
        return NotMoved(id, "it has no name")
    if document.get("disabled"):
        return NotMoved(id, "it is disabled")
    task, args = task_name(document["name"], renamed), arguments(document.get("data"))
    every, at_time = document.get("repeatInterval"), document.get("repeatAt")
    if at_time:
        return NotMoved(id, f"it repeats at {at_time!r}: write that as a cron expression, with @recruiter.every")
    if every:
        return _scheduler(id, task, args, every, document.get("repeatTimezone") or "UTC")
    due = moment(document.get("nextRunAt"))
    if due is None:
        return NotMoved(id, "it has ended")
    if document.get("lockedAt") is not None:
        return NotMoved(id, "it is running there: stop Agenda, and import again")
    priority = document.get("priority", 0)
    return MovedJob(id, task, args, due, priority=priority if isinstance(priority, int | float) else 0)


def _scheduler(id: str, task: str, args: Any, every: object, zone: str) -> Moved:
    """`repeatInterval` is a cron expression, an interval in words, or a number of milliseconds."""
    interval = f"{every / 1000}s" if isinstance(every, int | float) else str(every)
    try:
        return MovedScheduler(id, f"agenda:{task}", task, args, schedule_policy(interval, zone), unique=True)
    except RecruiterError as error:
        return NotMoved(id, f"its interval is not understood: {error}")
