"""Which tasks this process knows. A name stored in the database is looked up here, and never imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol
from weakref import WeakSet

from recruiter.domain.arguments import Signature
from recruiter.domain.names import DEFAULT_GROUP, DEFAULT_METHOD, check_name
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry import RetryPolicy
from recruiter.domain.typed import encode_result
from recruiter.errors import InvalidArguments, TaskExists, UnknownTask
from recruiter.workable import WORKABLES, Workable


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a job of a task has when it does not say otherwise."""

    group: str = DEFAULT_GROUP
    priority: int | float = 0
    tags: tuple[str, ...] = ()
    retry: RetryPolicy | None = None
    only: tuple[type[BaseException], ...] = ()
    at_most_once: bool = False

    def __post_init__(self) -> None:
        check_name("group", self.group)


class TaskDefinition(Protocol):
    """How jobs of one name are made and run."""

    @property
    def name(self) -> str: ...

    @property
    def defaults(self) -> Defaults: ...

    def runner(self, args: Mapping[str, Any] | Sequence[Any], method: str) -> Callable[[], Any]:
        """What to call for a stored job. Raises InvalidArguments when the stored arguments do not fit."""

    def encode_result(self, result: Any) -> Any:
        """The result as it is stored. Raises UnsupportedValue when it cannot be."""


@dataclass(frozen=True)
class FunctionTask:
    """A plain function, `def` or `async def`."""

    name: str
    function: Callable[..., Any]
    defaults: Defaults

    @cached_property
    def signature(self) -> Signature:
        return Signature.of(self.function)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return self.signature.bind(args, dict(kwargs))

    def runner(self, args: Mapping[str, Any] | Sequence[Any], method: str) -> Callable[[], Any]:
        if method != DEFAULT_METHOD:
            raise InvalidArguments(f"task {self.name!r} is a function and has no method {method!r}")
        positional, named = self.signature.unbind(args if isinstance(args, Mapping) else list(args))
        function = self.function
        return lambda: function(*positional, **named)

    def encode_result(self, result: Any) -> Any:
        return encode_result(result, self.signature.returns)


@dataclass(frozen=True)
class WorkableTask:
    """A class that exports itself and is rebuilt elsewhere; any of its own methods can be the one to run."""

    name: str
    workable: type[Workable]
    defaults: Defaults = Defaults()

    def runner(self, args: Mapping[str, Any] | Sequence[Any], method: str) -> Callable[[], Any]:
        self.check_method(method)
        if not isinstance(args, Mapping):
            raise InvalidArguments(f"{self.name} needs a document of arguments, not an array")
        run: Callable[[], Any] = getattr(self.workable.import_(args), method)
        return run

    def check_method(self, method: str) -> None:
        if method.startswith("_") or hasattr(Workable, method) or not callable(getattr(self.workable, method, None)):
            raise InvalidArguments(f"{self.name} has no method {method!r} that can be run as a job")

    def encode_result(self, result: Any) -> Any:
        return encode_result(result)


class Registry:
    """Tasks by name. Workable classes are known as soon as they are defined."""

    def __init__(self) -> None:
        self._tasks: dict[str, FunctionTask] = {}

    def add(self, task: FunctionTask) -> None:
        known = self._tasks.get(task.name)
        if known is not None and not _same_place(known.function, task.function):
            raise TaskExists(
                f"task {task.name!r} is {known.function.__module__}.{known.function.__qualname__} already; "
                f"give {task.function.__module__}.{task.function.__qualname__} another name="
            )
        self._tasks[check_name("task", task.name)] = task

    def find(self, name: str) -> TaskDefinition | None:
        task = self._tasks.get(name)
        if task is not None:
            return task
        workable = WORKABLES.get(name)
        return WorkableTask(name, workable) if workable else None

    def get(self, name: str) -> TaskDefinition:
        task = self.find(name)
        if task is None:
            raise UnknownTask(
                f"no task {name!r} is registered here; known are {', '.join(sorted(self.names())) or 'none'}"
            )
        return task

    def names(self) -> set[str]:
        return {*self._tasks, *WORKABLES}

    @classmethod
    def merged(cls, registries: Iterable[Registry]) -> Registry:
        merged = cls()
        for registry in registries:
            for task in registry._tasks.values():
                merged.add(task)
        return merged


class RegistryOwner:
    """Whoever has tasks. Kept track of, so that loading an application finds them wherever it keeps them."""

    alive: ClassVar[WeakSet[RegistryOwner]] = WeakSet()

    def __init__(self) -> None:
        self.registry = Registry()
        self.policies = PolicyRegistry()
        RegistryOwner.alive.add(self)

    @property
    def address(self) -> str:
        """Where it keeps its jobs; may hold a password."""
        raise NotImplementedError

    def point_at(self, address: str) -> None:
        """Keeps its jobs there from now on, over a new connection: the old one may be another process's."""
        raise NotImplementedError


def _same_place(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same definition loaded twice, as __main__ and as a module, or reloaded."""
    if one is other:
        return True
    try:
        return one.__qualname__ == other.__qualname__ and inspect.getsourcefile(one) == inspect.getsourcefile(other)
    except TypeError:
        return False
