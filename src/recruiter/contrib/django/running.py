"""What a worker calls for a task of Django: its function, with context, signals and database connections."""

from __future__ import annotations

import inspect
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from recruiter.contrib.django.interface import (
    TaskContext,
    TaskResultStatus,
    plain_json,
    task_finished,
    task_started,
)
from recruiter.contrib.django.results import finished, result_now


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
        await sync_to_async(close_old_connections)()
        try:
            context = await sync_to_async(ends.started)()
            return plain_json(await task.func(*context, *args, **kwargs))
        finally:
            await sync_to_async(close_old_connections)()

    function: Any = run_async if inspect.iscoroutinefunction(task.func) else run
    function.__name__, function.__qualname__ = task.func.__name__, task.func.__qualname__
    function.__module__, function.__doc__ = task.func.__module__, task.func.__doc__
    function.django_task = task
    function.succeeded, function.failed = ends.succeeded, ends.failed
    return function


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
