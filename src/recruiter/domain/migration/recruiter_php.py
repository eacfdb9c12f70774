"""Recruiter for PHP: `scheduled` has the jobs that wait, `schedulers` those that repeat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recruiter.domain.migration import Moved, MovedJob, MovedScheduler, NotMoved, arguments, moment, task_name
from recruiter.domain.names import DEFAULT_GROUP, DEFAULT_METHOD
from recruiter.domain.retry.decision import RetryPolicy
from recruiter.domain.retry.policies import DoNotDoItAgain, ExponentialBackoff, RetryForever, RetryManyTimes
from recruiter.domain.schedule.policies import Cron, EveryMinutes
from recruiter.domain.schedule.scheduler import SchedulePolicy
from recruiter.errors import RecruiterError

COLLECTIONS = ("scheduled", "schedulers")

_HOW_OFTEN, _WAIT, _FIRST_WAIT = (
    "retry_how_many_times",
    "seconds_to_wait_before_retry",
    "seconds_to_initially_wait_before_retry",
)


def moved(document: Mapping[str, Any], renamed: Mapping[str, str], collection: str) -> Moved:
    """What becomes of a document of one of the two collections."""
    id = f"recruiter-php:{document['_id']}"
    try:
        return _scheduler(id, document, renamed) if collection == "schedulers" else _job(id, document, renamed)
    except (KeyError, TypeError, ValueError, RecruiterError) as error:
        return NotMoved(id, f"it cannot be read: {type(error).__name__}: {error}")


def _job(id: str, document: Mapping[str, Any], renamed: Mapping[str, str]) -> Moved:
    if "workable" not in document:
        return NotMoved(id, "it is not a job of Recruiter for PHP")
    if document.get("locked"):
        return NotMoved(id, "it is running there: stop its recruiter and workers, and import again")
    workable = document["workable"]
    retry, notes = _retry(document.get("retry_policy"))
    return MovedJob(
        id,
        _task(workable, renamed),
        arguments(workable.get("parameters")),
        moment(document.get("scheduled_at")),
        group=document.get("group") or DEFAULT_GROUP,
        tags=tuple(map(str, document.get("tags") or ())),
        method=workable.get("method") or DEFAULT_METHOD,
        retry=retry,
        notes=notes,
    )


def _scheduler(id: str, document: Mapping[str, Any], renamed: Mapping[str, str]) -> Moved:
    workable = document["job"]["workable"]
    retry, notes = _retry(document["job"].get("retry_policy"))
    policy = _schedule(document["schedule_policy"])
    if policy is None:
        return NotMoved(id, f"its schedule policy {document['schedule_policy'].get('class')} is a class of its own")
    task, args = _task(workable, renamed), arguments(workable.get("parameters"))
    return MovedScheduler(id, document["urn"], task, args, policy, bool(document.get("unique")), retry, notes)


def _task(workable: Mapping[str, Any], renamed: Mapping[str, str]) -> str:
    """A workable of ours is stored under the name of its class, without the namespace."""
    name = str(workable["class"])
    return renamed.get(name) or task_name(_last(name), renamed)


def _last(name: str) -> str:
    return name.rpartition("\\")[2]


def _retry(stored: Mapping[str, Any] | None) -> tuple[RetryPolicy | None, tuple[str, ...]]:
    if not stored:
        return None, ()
    name, values = _last(str(stored["class"])), stored.get("parameters") or {}
    match name:
        case "DoNotDoItAgain":
            return DoNotDoItAgain(), ()
        case "RetryManyTimes":
            return RetryManyTimes(int(values[_HOW_OFTEN]), values[_WAIT]), ()
        case "RetryForever":
            return RetryForever(values[_WAIT]), ()
        case "ExponentialBackoff":
            return ExponentialBackoff(int(values[_HOW_OFTEN]), values[_FIRST_WAIT]), ()
        case "RetriableExceptionFilter":
            policy, notes = _retry(values["filtered_retry_policy"])
            only = ", ".join(map(str, values["retriable_exceptions"]))
            return policy, (*notes, f"it was retried only after {only}; here it is retried after every exception")
    return None, (f"its retry policy {name} is not known here; the policy of its task is used",)


def _schedule(stored: Mapping[str, Any]) -> SchedulePolicy | None:
    name, values = _last(str(stored["class"])), stored.get("parameters") or {}
    if name == "Cron":
        return Cron(values["cron_expression"])
    return EveryMinutes(1) if name == "EveryMinutes" else None
