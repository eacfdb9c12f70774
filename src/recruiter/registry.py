"""The tasks of this process. A name stored in the database is looked up here, and never imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, ClassVar, NamedTuple, TypeAlias
from weakref import WeakSet

from recruiter.domain.arguments.check import Signature
from recruiter.domain.arguments.typed import encode_result
from recruiter.domain.arguments.values import from_bson
from recruiter.domain.definitions import note, same_definition
from recruiter.domain.names import DEFAULT_METHOD, check_name
from recruiter.domain.options import TaskOptions
from recruiter.domain.planning.limits import Ceiling, Limit
from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.domain.text import shown
from recruiter.errors import InvalidArguments, TaskExists, UnknownTask
from recruiter.events import Events, Listener
from recruiter.first_use import cached_property
from recruiter.instruments import Instruments
from recruiter.workable import WORKABLES, Workable, checked, parameters_of, rebuilt


class Finalizers:
    """Functions to call after an attempt, each once. An exception of one does not affect the job or the others."""

    def __init__(self) -> None:
        self.after_success: list[Callable[[Any], Any]] = []
        self.after_failure: list[Callable[[BaseException], Any]] = []
        self.after_last_failure: list[Callable[[BaseException], Any]] = []
        self.finalize: list[Callable[[BaseException | None], Any]] = []

    def __bool__(self) -> bool:
        return bool(self.after_success or self.after_failure or self.after_last_failure or self.finalize)

    @classmethod
    def of(cls, workable: Workable) -> Finalizers:
        finalizers = cls()
        finalizers.after_success.append(workable.after_success)
        finalizers.after_failure.append(workable.after_failure)
        finalizers.after_last_failure.append(workable.after_last_failure)
        finalizers.finalize.append(workable.finalize)
        return finalizers


class Call(NamedTuple):
    """A stored job, rebuilt and ready to run."""

    run: Callable[[], Any]
    finalizers: Finalizers
    listener: Listener | None = None
    """Receives the events of this job: the workable itself."""


@dataclass(frozen=True)
class FunctionTask:
    """A plain function, `def` or `async def`."""

    name: str
    function: Callable[..., Any]
    options: TaskOptions
    aliases: tuple[str, ...] = ()
    finalizers: Finalizers = field(default_factory=Finalizers)
    ceiling: Ceiling | None = None

    @cached_property
    def signature(self) -> Signature:
        return Signature(self.function)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return self.signature.bind(args, dict(kwargs))

    def store(self, data: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """The stored form of the arguments. Raises InvalidArguments when they do not fit."""
        return self.bind((), data) if isinstance(data, Mapping) else self.bind(tuple(data), {})

    def arguments(self, args: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """The arguments of a stored job by name, in the form that the caller gave."""
        positional, named = self.signature.unbind(args if isinstance(args, Mapping) else list(args))
        return {**self.named(positional), **named}

    def named(self, positional: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.signature.names, positional, strict=False))

    def flat(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Stored arguments in the form of a producer that does not have the code."""
        return self.signature.flat(args)

    def check_method(self, method: str) -> None:
        """Raises InvalidArguments when there is no such method to run."""
        if method != DEFAULT_METHOD:
            raise InvalidArguments(f"task {self.name!r} is a function and has no method {method!r}")

    def call(self, args: Mapping[str, Any] | Sequence[Any], method: str) -> Call:
        """The call to run for a stored job. Raises InvalidArguments when the stored arguments do not fit."""
        self.check_method(method)
        document = args if isinstance(args, Mapping) else list(args)
        positional, named = self.signature.unbind(document)
        return Call(partial(self.function, *positional, **named), self.finalizers)

    def is_async(self, method: str) -> bool:  # noqa: ARG002
        return inspect.iscoroutinefunction(self.function)

    def encode_result(self, result: Any) -> Any:
        """The stored form of the result. Raises UnsupportedValue when it cannot be stored."""
        return encode_result(result, self.signature.returns)


class WorkableTask:
    """A class that exports itself and is rebuilt in another process; a job runs a method of it."""

    def __init__(self, workable: type[Workable]) -> None:
        self.workable = workable
        self.name, self.aliases = workable.task_name, workable.task_aliases
        self.options, self.ceiling = workable.task_options, workable.task_ceiling

    def call(self, args: Mapping[str, Any] | Sequence[Any], method: str) -> Call:
        self.check_method(method)
        workable = rebuilt(self.workable, self._named(args))
        if not isinstance(workable, self.workable):
            raise InvalidArguments(f"{self.name}.import_() must return a {self.name}, not {type(workable).__name__}")
        listens = type(workable).on_event is not Workable.on_event
        return Call(getattr(workable, method), Finalizers.of(workable), workable.on_event if listens else None)

    def store(self, data: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        return checked(self.workable, self._named(data))

    def arguments(self, args: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        return dict(from_bson(dict(self._named(args))))

    def named(self, positional: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(parameters_of(self.workable), positional, strict=False))

    def flat(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        return args

    def _named(self, data: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
        if not isinstance(data, Mapping):
            raise InvalidArguments(f"{self.name} needs a document of arguments, not an array")
        return data

    def check_method(self, method: str) -> None:
        """Allows only public instance methods that its author wrote, without required parameters. Methods of Workable
        or pydantic, class methods and static methods may do things that no job should."""
        owner = next((cls for cls in self.workable.__mro__ if method in vars(cls)), object)
        if (
            method.startswith("_")
            or hasattr(Workable, method)
            or owner is object
            or owner.__module__.partition(".")[0] == "pydantic"
            or not inspect.isfunction(vars(owner)[method])
        ):
            raise InvalidArguments(f"{self.name} has no method {method!r} that can be run as a job")
        _, *parameters = inspect.signature(vars(owner)[method]).parameters.values()
        optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if needed := [p.name for p in parameters if p.default is p.empty and p.kind not in optional]:
            raise InvalidArguments(
                f"{self.name}.{method}() needs {', '.join(needed)}, and a job calls it without arguments: "
                "give the workable what it needs when you make it"
            )

    def is_async(self, method: str) -> bool:
        return inspect.iscoroutinefunction(getattr(self.workable, method, None))

    def encode_result(self, result: Any) -> Any:
        return encode_result(result)


TaskDefinition: TypeAlias = FunctionTask | WorkableTask
"""How jobs of one name are made and run."""


class Registry:
    """Tasks by name and by alias. Workable classes need no registration."""

    def __init__(self) -> None:
        self._tasks: dict[str, FunctionTask] = {}

    def add(self, task: FunctionTask) -> None:
        """Registers a task. Raises TaskExists, unless the name belongs to the same function, which was loaded again."""
        note(task.function)
        for known_as in (task.name, *task.aliases):
            if known_as in WORKABLES:
                raise TaskExists(f"{known_as!r} is already a workable; give {task.function.__qualname__} another name=")
            known = self._tasks.get(known_as)
            if known is not None and not same_definition(known.function, task.function):
                first, second = _described(known.function), _described(task.function)
                raise TaskExists(f"task {known_as!r} is {first} already; give {second} another name=")
        for known_as in (task.name, *task.aliases):
            self._tasks[check_name("task", known_as)] = task

    def find(self, name: str) -> TaskDefinition | None:
        task = self._tasks.get(name)
        if task is not None:
            return task
        workable = WORKABLES.get(name)
        return WorkableTask(workable) if workable else None

    def has(self, name: str) -> bool:
        """Whether this registry has it itself; workables belong to no registry."""
        return name in self._tasks

    @property
    def own_names(self) -> set[str]:
        return set(self._tasks)

    def get(self, name: str) -> TaskDefinition:
        task = self.find(name)
        if task is None:
            raise UnknownTask(
                f"no task {shown(name)} is registered here; known: {', '.join(sorted(self.names())) or 'none'}"
            )
        return task

    def names(self) -> set[str]:
        """Every name that a job may have, former names included."""
        return {*self._tasks, *WORKABLES}

    def limits(self, names: Iterable[str] | None = None) -> list[Limit]:
        """The limits that the application declares for these tasks, or for all. Jobs are counted by their stored name:
        jobs with a former name of the task have a separate limit."""
        found = ((name, self.find(name)) for name in sorted(self.names() if names is None else names))
        ceilings = ((name, task.ceiling) for name, task in found if task is not None and task.ceiling is not None)
        return [limit for name, ceiling in ceilings for limit in ceiling.limits_of(name)]

    @classmethod
    def merged(cls, registries: Iterable[Registry]) -> Registry:
        merged = cls()
        for registry in registries:
            for task in registry._tasks.values():
                merged.add(task)
        return merged


BECAME_MASTER, STEPT_BACK = "recruiter_became_master", "recruiter_stept_back"
"""The hooks of an application, by the names that they have in a module."""

_numbers = count()


class RegistryOwner:
    """An object that has tasks. Loading an application finds all of them in `alive`."""

    alive: ClassVar[WeakSet[RegistryOwner]] = WeakSet()

    def __init__(self) -> None:
        self.registry = Registry()
        self.policies = PolicyRegistry()
        """Registers custom retry policies: `@recruiter.policies.register`."""
        self.schedules = SchedulePolicyRegistry()
        """Registers custom schedule policies: `@recruiter.schedules.register`."""
        self.events = Events()
        self.instruments = Instruments(self.events)
        self.hooks: dict[str, list[Callable[[Any], Any]]] = {BECAME_MASTER: [], STEPT_BACK: []}
        # Seconds to wait for MongoDB where neither the user nor the settings set a time; None for the usual time.
        self.default_patience: float | None = None
        self.number = next(_numbers)
        """The order of creation."""
        RegistryOwner.alive.add(self)

    @property
    def has_own_names(self) -> bool:
        """Whether a task or a policy is registered here; an owner without any only sends jobs."""
        return bool(self.registry.own_names or self.policies.own_names or self.schedules.own_names)

    @property
    def target(self) -> Any:
        """The `Target` of its jobs; prints without the password."""
        raise NotImplementedError

    def point_at(self, target: Any) -> None:
        """Uses this target from now on, over a new connection: the old one may belong to another process."""
        raise NotImplementedError


def _described(function: Callable[..., Any]) -> str:
    name = f"{function.__module__}.{function.__qualname__}"
    has_line = "<" in function.__qualname__ and hasattr(function, "__code__")
    return f"{name} (line {function.__code__.co_firstlineno})" if has_line else name
