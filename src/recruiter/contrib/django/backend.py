"""The backend for Django's tasks: a queue is a group, a result is a job.

Django makes one backend for each thread. The Recruiter behind them is one for each alias of TASKS in the process, so
that all threads share one connection, and workers find every task in one registry.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.db import transaction
from django.utils import timezone

from recruiter.app import Recruiter
from recruiter.contrib.django.interface import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResultDoesNotExist,
    plain_json,
    task_backends,
    task_enqueued,
)
from recruiter.contrib.django.results import result_of
from recruiter.contrib.django.running import runner
from recruiter.domain.duration import DurationLike
from recruiter.domain.job import Job
from recruiter.domain.names import check_name
from recruiter.domain.retry.decision import RetryPolicy
from recruiter.errors import InvalidArguments, JobNotFound, RecruiterError
from recruiter.task import Task as RegisteredTask

_OPTIONS = {"target", "on_commit"}
_recruiters: dict[str, tuple[str | None, Recruiter]] = {}
"""The target in OPTIONS and the Recruiter, by alias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecruiterTask(Task):  # type: ignore[misc]
    """A task of Django with the options of Recruiter: `@task(retry=RetryManyTimes(3, "1 minute"), timeout="2m")`.

    Django passes them on since version 6.1; its backport does too. They mean what they mean in `Recruiter.task`.
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
    """Stores tasks as jobs in MongoDB. OPTIONS has `target`, where MongoDB is, and `on_commit`.

    With `on_commit`, the alias of a database in DATABASES or True for the default one, a job is stored when the
    transaction that is open there commits, and never if it is rolled back. Without a transaction it is stored at once.
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
                f"TASKS[{alias!r}]: unknown OPTIONS {', '.join(unknown)}; known are {', '.join(sorted(_OPTIONS))}"
            )
        on_commit = self.options.get("on_commit")
        self._database: str | None = "default" if on_commit is True else on_commit or None

    @property
    def recruiter(self) -> Recruiter:
        """The Recruiter of this alias, for what Django's interface has no word for: cancelling, searching, limits."""
        target = self.options.get("target")
        if self.alias not in _recruiters:
            _recruiters[self.alias] = target, Recruiter(target)
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
        """Stores the job; returns when it is durable, or with `on_commit` at once. Raises InvalidTask, and
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
        """What `manage.py check` says. MongoDB is not asked: `manage.py recruiter doctor` does that."""
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
        """The task of Recruiter for one of Django; registered under the path of its function."""
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
        self.recruiter.send(job)
        object.__setattr__(result, "enqueued_at", job.created_at)
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
