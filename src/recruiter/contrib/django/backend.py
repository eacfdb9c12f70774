"""The backend for Django's tasks: a queue is a group, a result is a job.

Django makes one backend for each thread. The Recruiter behind them is one for each alias of TASKS in the process, so
that all threads share one connection, and workers find every task in one registry.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from asgiref.sync import AsyncToSync, SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.db import close_old_connections, connections, transaction
from django.utils import timezone

from recruiter.app import Recruiter, current_job
from recruiter.domain.arguments.typed import decode_result
from recruiter.domain.arguments.values import from_bson
from recruiter.domain.duration import DurationLike
from recruiter.domain.job import Execution, Job
from recruiter.domain.names import check_name
from recruiter.domain.retry.decision import RetryPolicy
from recruiter.domain.state import State
from recruiter.errors import InvalidArguments, JobNotFound, RecruiterError
from recruiter.instruments import SendStart
from recruiter.producer import WEB_PATIENCE_SECONDS
from recruiter.task import Task as RegisteredTask

# -- Django's own interface: `django.tasks`, or its backport `django_tasks` where Django is older than 6 ---------------

_PACKAGE = "django.tasks" if find_spec("django.tasks") is not None else "django_tasks"

_tasks, _base, _exceptions, _signals = (
    import_module(f"{_PACKAGE}{part}") for part in ("", ".base", ".exceptions", ".signals")
)

BaseTaskBackend: Any = import_module(f"{_PACKAGE}.backends.base").BaseTaskBackend
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
task: Any = _tasks.task
task_backends: Any = _tasks.task_backends

# The backport has them under the names that they had before they went into Django.
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
InvalidTaskBackend: Any = getattr(_exceptions, "InvalidTaskBackend", None) or _exceptions.InvalidTaskBackendError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist

task_enqueued: Any = _signals.task_enqueued
task_started: Any = _signals.task_started
task_finished: Any = _signals.task_finished


def plain_json(value: Any) -> Any:
    """The value as JSON knows it, as Django requires of arguments and results: tuples are lists, and the members of a
    TextChoices are texts. Raises TypeError."""
    return json.loads(json.dumps(_base.normalize_json(value)))


# -- the backend -------------------------------------------------------------------------------------------------------

_OPTIONS = {"target", "prefix", "on_commit", "server_timeout", "console"}
_recruiters: dict[str, tuple[str | None, Recruiter]] = {}
"""The target in OPTIONS and the Recruiter, by alias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecruiterTask(Task):  # type: ignore[misc]
    """A task of Django with the options of Recruiter: `@task(retry=RetryManyTimes(3, "1 minute"), timeout="2m")`.

    Django passes them on since version 6.1; its backport does too. They have the same meaning as in `Recruiter.task`.
    """

    retry: RetryPolicy | None = None
    only: Iterable[type[BaseException]] = ()
    timeout: DurationLike | None = None
    at_most_once: bool = False
    expires: DurationLike | None = None
    keep_failed: DurationLike | None = None
    max_crashes: int | None = None
    max_running: int | None = None
    rate: str | None = None
    tags: Iterable[str] = ()
    aliases: Iterable[str] = ()

    def __post_init__(self) -> None:
        Task.__post_init__(self)
        backend = self.get_backend()
        if isinstance(backend, RecruiterBackend):
            backend.registered(self)


_OWN = [field.name for field in fields(RecruiterTask) if field.name not in {each.name for each in fields(Task)}]


class RecruiterBackend(BaseTaskBackend):  # type: ignore[misc]
    """Stores tasks as jobs in MongoDB. OPTIONS has `target`, where MongoDB is, `prefix`, which is in front of the names
    of its collections, `on_commit`, `server_timeout`: the time that a call waits for MongoDB before it raises
    StoreUnreachable (five seconds in the web process), and `console`: the path of the web console, for the admin.

    With `on_commit`, the alias of a database in DATABASES or True for the default one, a job is stored when the
    transaction that is open there commits, and never if it is rolled back. Without a transaction it is stored
    immediately.
    """

    task_class = RecruiterTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = sorted(set(self.options) - _OPTIONS)
        if unknown:
            raise InvalidTaskBackend(
                f"TASKS[{alias!r}]: unknown OPTIONS {', '.join(unknown)}; known: {', '.join(sorted(_OPTIONS))}"
            )
        on_commit = self.options.get("on_commit")
        self._database: str | None = "default" if on_commit is True else on_commit or None

    @property
    def recruiter(self) -> Recruiter:
        """The Recruiter of this alias, for what Django's interface has no word for: cancelling, searching, limits."""
        target = self.options.get("target")
        if self.alias not in _recruiters:
            timeout = self.options.get("server_timeout")
            made = Recruiter(target, prefix=self.options.get("prefix"), server_timeout=timeout)
            made.default_patience = WEB_PATIENCE_SECONDS
            _recruiters[self.alias] = target, made
        before, recruiter = _recruiters[self.alias]
        if before != target:  # the settings of a test
            recruiter.point_at(target)
            _recruiters[self.alias] = target, recruiter
        return recruiter

    # -- what Django asks ----------------------------------------------------------------------------------------

    def validate_task(self, task: Any) -> None:
        """Raises InvalidTask, also for a queue or a function whose name cannot be stored."""
        super().validate_task(task)
        try:
            check_name("queue", task.queue_name)
            check_name("task", task.module_path)
        except RecruiterError as error:
            raise InvalidTask(str(error)) from None

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Stores the job; returns when it is durable, or immediately with `on_commit`. Raises InvalidTask, and
        InvalidArguments for arguments that the function does not take."""
        self.validate_task(task)
        job = self._built(task, args, kwargs)
        result = result_of(job, task)
        if self._database is None:
            self._send(job, result)
        else:
            object.__setattr__(result, "enqueued_at", None)
            transaction.on_commit(partial(self._send, job, result), using=self._database)
        return result

    def get_result(self, result_id: str) -> Any:
        """Raises TaskResultDoesNotExist."""
        try:
            job = self.recruiter.find(result_id)
        except (JobNotFound, InvalidArguments):
            raise TaskResultDoesNotExist(result_id) from None
        task = _django_task(self.recruiter.registry.find(job.task))
        if task is None:  # a job of Recruiter's own, or of a task that is not loaded here
            raise TaskResultDoesNotExist(result_id)
        return result_of(job, task)

    def check(self, **_kwargs: Any) -> Iterator[Any]:
        """The findings of `manage.py check`. They need no MongoDB: `manage.py recruiter doctor` checks MongoDB."""
        try:
            str(self.recruiter.target)
        except RecruiterError as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: {error}", id="recruiter.E001")
        if self._database is not None and self._database not in settings.DATABASES:
            hint = "Name an alias of DATABASES, or True for the default one."
            told = f"TASKS[{self.alias!r}]: on_commit names no database: {self._database!r}"
            yield checks.Error(told, hint=hint, id="recruiter.E002")
        for queue in sorted(self.queues):
            try:
                check_name("queue", queue)
            except RecruiterError as error:
                yield checks.Error(f"TASKS[{self.alias!r}]: {error}", id="recruiter.E003")
        if not apps.is_installed("recruiter.contrib.django"):
            hint = "Add it: it finds the tasks.py of each application, and has `manage.py recruiter`."
            yield checks.Warning("recruiter.contrib.django is not in INSTALLED_APPS", hint=hint, id="recruiter.W001")

    # -- jobs ----------------------------------------------------------------------------------------------------

    def registered(self, task: Any) -> RegisteredTask[..., Any, Any]:
        """Recruiter's task for a Django task; registered under the path of its function."""
        name = task.module_path
        known: Any = self.recruiter.registry.find(name)
        if known is not None and getattr(_django_task(known), "func", None) is task.func:
            return RegisteredTask(self.recruiter, known, known.function)
        own = {option: getattr(task, option) for option in _OWN} if isinstance(task, RecruiterTask) else {}
        function = runner(task)
        made: RegisteredTask[..., Any, Any] = self.recruiter.task(name=name, group=task.queue_name, **own)(function)
        made.after_success(function.succeeded)
        made.after_last_failure(function.failed)
        return made

    def _built(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job:
        _check_arguments(task, args, kwargs)
        builder = self.registered(task).job(args=plain_json(list(args)), kwargs=plain_json(dict(kwargs)))
        builder = builder.in_group(task.queue_name).with_priority(task.priority)
        if task.run_after is not None:
            aware = task.run_after if timezone.is_aware(task.run_after) else timezone.make_aware(task.run_after)
            builder = builder.schedule_at(aware)
        return builder.build()

    def _send(self, job: Job, result: Any) -> None:
        recruiter = self.recruiter
        with recruiter.instruments.producing(lambda: SendStart(job.task, 1, recruiter, job.group)):
            recruiter.send(recruiter.instruments.stamped(job))
        object.__setattr__(result, "enqueued_at", _as_stored(job.created_at))
        task_enqueued.send(type(self), task_result=result)


def recruiters() -> dict[str, Recruiter]:
    """The Recruiter of each alias in TASKS that has this backend."""
    backends = {alias: task_backends[alias] for alias in task_backends}
    return {alias: each.recruiter for alias, each in backends.items() if isinstance(each, RecruiterBackend)}


def _django_task(definition: Any) -> Any:
    return getattr(getattr(definition, "function", None), "django_task", None)


def _check_arguments(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    context = (None,) if task.takes_context else ()
    try:
        inspect.signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as error:
        raise InvalidArguments(f"{task.module_path}(): {error}") from None


# -- what a worker calls: the task's function, with context, signals and database connections --------------------------


def runner(task: Any) -> Any:
    """The function that is registered for this task; `async def` if the task's own is."""
    ends = _Ends(task)

    def run(args: list[Any], kwargs: dict[str, Any]) -> Any:
        close_old_connections()
        try:
            return plain_json(task.func(*ends.started(), *args, **kwargs))
        finally:
            close_old_connections()

    async def run_async(args: list[Any], kwargs: dict[str, Any]) -> Any:
        async with _own_thread():
            try:
                context = await sync_to_async(ends.started)()
                return plain_json(await task.func(*context, *args, **kwargs))
            finally:
                await sync_to_async(connections.close_all)()

    function: Any = run_async if inspect.iscoroutinefunction(task.func) else run
    function.__name__, function.__qualname__ = task.func.__name__, task.func.__qualname__
    function.__module__, function.__doc__ = task.func.__module__, task.func.__doc__
    function.django_task = task
    function.succeeded, function.failed = ends.succeeded, ends.failed
    return function


@asynccontextmanager
async def _own_thread() -> AsyncIterator[None]:
    """Gives an attempt its own thread for the database, as Django has one for each request. The thread of an outer
    `async_to_sync`, or of an outer request, is occupied when the job itself runs in it: in a test, or in
    `sync_to_async(flush)`."""
    context = ThreadSensitiveContext()
    token = SyncToAsync.thread_sensitive_context.set(context)
    outer = getattr(AsyncToSync.executors, "current", None)
    AsyncToSync.executors.current = None
    try:
        yield
    finally:
        AsyncToSync.executors.current = outer
        SyncToAsync.thread_sensitive_context.reset(token)
        executor = SyncToAsync.context_to_thread_executor.pop(context, None)
        if executor is not None:
            executor.shutdown()


class _Ends:
    """Sends Django's signals: when an attempt begins, and when the last one has ended."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._backend = type(task.get_backend())

    def started(self) -> tuple[Any, ...]:
        """Returns the context, if the function takes one."""
        result = result_now(self._task)
        task_started.send_robust(sender=self._backend, task_result=result)
        return (TaskContext(task_result=result),) if self._task.takes_context else ()

    def succeeded(self, value: Any) -> None:
        self._finished(finished(result_now(self._task), TaskResultStatus.SUCCESSFUL, value))

    def failed(self, error: BaseException) -> None:
        try:
            raise error  # so that receivers, of which Django's own writes a log line, see it in sys.exc_info()
        except BaseException:
            self._finished(finished(result_now(self._task), TaskResultStatus.FAILED))

    def _finished(self, result: Any) -> None:
        task_finished.send_robust(sender=self._backend, task_result=result)


# -- a job as Django sees it: its TaskResult ---------------------------------------------------------------------------

_CRASHED = "recruiter.errors.JobFailed"
_STATUS = {
    State.WAITING: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
}


def result_of(job: Job, task: Any) -> Any:
    """The result of a job; `task` is the Django task, unchanged."""
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
        enqueued_at=_as_stored(job.created_at),
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


def _as_stored(time: datetime) -> datetime:
    """MongoDB keeps milliseconds: the time is the same before and after storing."""
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


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
