"""A job as Django sees it: its `TaskResult`."""

from __future__ import annotations

from typing import Any

from recruiter.app import current_job
from recruiter.contrib.django.interface import (
    InvalidTask,
    TaskError,
    TaskResult,
    TaskResultStatus,
)
from recruiter.domain.arguments.typed import decode_result
from recruiter.domain.arguments.values import from_bson
from recruiter.domain.job import Execution, Job
from recruiter.domain.state import State

_CRASHED = "recruiter.errors.JobFailed"
_STATUS = {
    State.WAITING: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
}


def result_of(job: Job, task: Any) -> Any:
    """The result of a job that was found; `task` is Django's own, as it is defined."""
    executions = list(job.executions)
    if job.locked_by is not None:
        executions.append(Execution(job.locked_at, None, job.locked_by))
    return _result(job, task, _STATUS.get(job.state, TaskResultStatus.FAILED), executions)


def result_now(task: Any) -> Any:
    """The result of the job that runs here, in its present attempt."""
    job = current_job.job
    executions = [*job.executions, Execution(current_job.started_at, None, current_job.worker)]
    return _result(job, task, TaskResultStatus.RUNNING, executions)


def finished(result: Any, status: Any, value: Any = None) -> Any:
    """The same result when its last attempt has ended."""
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", current_job.recruiter.clock.now())
    object.__setattr__(result, "_return_value", value)
    return result


def _result(job: Job, task: Any, status: Any, executions: list[Execution]) -> Any:
    args = from_bson(job.args)
    begun = [each.started_at for each in executions if each.started_at is not None]
    result = TaskResult(
        task=_as_enqueued(job, task),
        id=str(job.id),
        status=status,
        enqueued_at=job.created_at,
        started_at=begun[0] if begun else None,
        last_attempted_at=begun[-1] if begun else None,
        finished_at=job.archived_at,
        args=list(args["args"]),
        kwargs=dict(args["kwargs"]),
        backend=task.backend,
        errors=[_error(each) for each in executions if each.exception is not None or each.crashed],
        worker_ids=[str(each.worker) for each in executions if each.worker is not None],
    )
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", decode_result(job.result, Any))
    return result


def _as_enqueued(job: Job, task: Any) -> Any:
    later = job.scheduled_at if job.scheduled_at > job.created_at and not job.attempts else None
    try:
        return task.using(priority=int(job.priority), queue_name=job.group, run_after=later)
    except InvalidTask:
        return task  # its queue is no longer among the backend's QUEUES


def _error(execution: Execution) -> Any:
    if execution.exception is None:
        return TaskError(exception_class_path=_CRASHED, traceback=execution.message or "the worker died")
    name = execution.exception if "." in execution.exception else f"builtins.{execution.exception}"
    return TaskError(exception_class_path=name, traceback=execution.trace or execution.message or "")
