"""What `@recruiter.task(...)` and `@recruiter.every(...)` leave to be put on a function."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from recruiter.domain.names import check_aliases, check_name
from recruiter.domain.options import TaskOptions
from recruiter.domain.planning.limits import Ceiling
from recruiter.domain.schedule.occurrences import SchedulePolicy
from recruiter.registry import FunctionTask
from recruiter.repeatable import RepeatableJob
from recruiter.task import Task

if TYPE_CHECKING:
    from recruiter.app import Recruiter

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


class AsRepeated:
    """What `@recruiter.every(...)` leaves to be put on a function or a task that takes no arguments."""

    def __init__(
        self, recruiter: Recruiter, policy: SchedulePolicy, options: Callable[[RepeatableJob], RepeatableJob]
    ) -> None:
        self._recruiter = recruiter
        self._policy = policy
        self._options = options

    @overload
    def __call__(self, function: Task[[], C, R], /) -> Task[[], C, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[[], Coroutine[Any, Any, R]], /) -> Task[[], Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[[], R], /) -> Task[[], R, R]: ...
    def __call__(self, function: Callable[[], Any], /) -> Any:
        task = function if isinstance(function, Task) else self._recruiter.task(function)
        self._recruiter.declare(self._options(task.job().repeat_with_policy(self._policy)))
        return task


class AsTask:
    """What `@recruiter.task(...)` leaves to be put on a function."""

    def __init__(
        self,
        recruiter: Recruiter,
        name: str | None,
        aliases: Iterable[str],
        options: TaskOptions,
        ceiling: Ceiling | None,
    ) -> None:
        self._recruiter = recruiter
        self._name = None if name is None else check_name("task", name)
        self._ceiling = ceiling
        self._aliases = aliases
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        definition = FunctionTask(
            self._name or function.__name__,
            function,
            self._options,
            check_aliases(self._aliases),
            ceiling=self._ceiling,
        )
        self._recruiter.registry.add(definition)
        return Task(self._recruiter, definition, function)
