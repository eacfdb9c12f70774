"""FactoryMethodCommand: a chain of method calls, written where the job is made and run where the objects are.

    in the application     @FactoryMethodCommand.factory("mailer")
                           def mailer() -> Mailer: return Mailer(settings.smtp)

    in any producer        FactoryMethodCommand.from_("mailer").to("a@b.c").send("hello").as_job_of(recruiter)…

    stored                 {"factory": "mailer", "calls": [{"method": "to", "args": ["a@b.c"]},
                                                           {"method": "send", "args": ["hello"]}]}

A user who can write to the database can call every public method of the objects that registered factories return, and
of the objects that those methods return. So the chain goes from object to object, and stops at other values: a module,
a class or a function would lead anywhere, and a string has `format`, which reads private attributes. Only methods of
an object's class are called: an attribute that holds something callable may lead anywhere too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, partialmethod, singledispatchmethod
from pathlib import PurePath
from types import ClassMethodDescriptorType, FunctionType, MethodDescriptorType
from typing import Any, Self, TypeVar

from recruiter.domain.definitions import note, same_definition
from recruiter.domain.names import check_name
from recruiter.errors import InvalidArguments, TaskExists, UnknownTask
from recruiter.workable import Workable

F = TypeVar("F", bound=Callable[..., Any])

_FACTORIES: dict[str, Callable[..., Any]] = {}
_METHODS = (
    FunctionType,
    MethodDescriptorType,
    ClassMethodDescriptorType,
    classmethod,
    staticmethod,
    partialmethod,
    singledispatchmethod,
)
"""The types of methods. A callable attribute is no method: it may hold any function of any module."""
_ARGUMENTS = {"args": list, "kwargs": dict}


@dataclass(frozen=True, slots=True)
class _MethodCall:
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    method: str = ""
    """Empty for the call of the factory itself."""

    def exported(self) -> dict[str, Any]:
        parts = {"method": self.method, "args": self.args, "kwargs": self.kwargs}
        return {name: part for name, part in parts.items() if part}

    @classmethod
    def imported(cls, document: Mapping[str, Any], method: str = "") -> _MethodCall:
        for name, kind in _ARGUMENTS.items():
            if not isinstance(document.get(name, kind()), kind):
                raise InvalidArguments(f"FactoryMethodCommand: {name} must be a {kind.__name__}: {document!r:.200}")
        return cls(document.get("args", []), document.get("kwargs", {}), method)

    def on(self, function: Callable[..., Any]) -> Any:
        return function(*self.args, **self.kwargs)


class FactoryMethodCommand(Workable):
    """Calls methods of an object that a registered factory makes: for applications whose work is in objects already.

    Every method called on it becomes a step of the chain; each step returns a new command. A method whose name this
    class has itself (`execute`, `export`, `finalize`, …) is given by name: `.call("export", "csv")`. The result is
    the value of the last method, or nothing if that is its own object, as in fluent interfaces.
    """

    def __init__(self, factory: str, made: _MethodCall, calls: tuple[_MethodCall, ...] = ()) -> None:
        self._factory = check_name("factory", factory)
        self._made = made
        self._calls = calls

    # -- in the application --------------------------------------------------------------------------------------

    @classmethod
    def register(cls, name: str, factory: Callable[..., Any]) -> None:
        """Lets jobs start a chain with what this function or class returns."""
        note(factory)
        known = _FACTORIES.get(check_name("factory", name))
        if known is not None and not same_definition(known, factory):
            raise TaskExists(f"a factory {name!r} exists already: {known!r}; give {factory!r} another name")
        _FACTORIES[name] = factory

    @classmethod
    def factory(cls, name: str) -> Callable[[F], F]:
        """A decorator: `register` for the function or class below it."""

        def register(factory: F) -> F:
            cls.register(name, factory)
            return factory

        return register

    # -- where jobs are made -------------------------------------------------------------------------------------

    @classmethod
    def from_(cls, factory: str, /, *args: Any, **kwargs: Any) -> Self:
        """Begins a chain. Arguments are for the factory; it need not be registered in this process."""
        return cls(factory, _MethodCall([*args], kwargs))

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Self:
        """The next method, by its name."""
        return type(self)(self._factory, self._made, (*self._calls, _MethodCall([*args], kwargs, _public(method))))

    def __getattr__(self, method: str) -> Callable[..., Self]:
        if method.startswith("_"):
            raise AttributeError(f"{method!r} is private; a chain calls public methods only")
        return partial(self.call, method)

    def __repr__(self) -> str:
        return ".".join([f"FactoryMethodCommand.from_({self._factory!r})", *(f"{c.method}(…)" for c in self._calls)])

    # -- on its way ----------------------------------------------------------------------------------------------

    def export(self) -> Mapping[str, Any]:
        calls = [call.exported() for call in self._calls]
        return {"factory": self._factory, **self._made.exported(), "calls": calls}

    @classmethod
    def import_(cls, parameters: Mapping[str, Any]) -> Self:
        calls = parameters.get("calls", [])
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise InvalidArguments(f"FactoryMethodCommand: calls must be a list of documents, not {calls!r:.200}")
        steps = tuple(_MethodCall.imported(call, _public(call.get("method"))) for call in calls)
        return cls(check_name("factory", parameters.get("factory")), _MethodCall.imported(parameters), steps)

    # -- where they run ------------------------------------------------------------------------------------------

    def execute(self) -> Any:
        factory = _FACTORIES.get(self._factory)
        if factory is None:
            known = ", ".join(sorted(_FACTORIES)) or "none"
            raise UnknownTask(
                f"no factory {self._factory!r} is registered here; known: {known}; "
                f"call FactoryMethodCommand.register({self._factory!r}, …) in the application that workers load"
            )
        owner, reached = None, self._made.on(factory)
        for call in self._calls:
            owner, reached = reached, call.on(_method(reached, call.method))
        return None if reached is owner else reached


def _public(method: object) -> str:
    if not isinstance(method, str) or not method.isidentifier() or method.startswith("_"):
        raise InvalidArguments(f"FactoryMethodCommand calls public methods by their names, not {method!r:.80}")
    return method


def _method(reached: object, name: str) -> Callable[..., Any]:
    """The method of this object; InvalidArguments if jobs may not call it."""
    kind = type(reached)
    if isinstance(reached, str | bytes | PurePath | type) or kind.__module__ == "builtins":
        raise InvalidArguments(f"the chain reached a {kind.__name__} and cannot call {name!r} on it, only on objects")
    method = inspect.getattr_static(kind, _public(name), None)
    if not isinstance(method, _METHODS):
        raise InvalidArguments(f"the chain reached a {kind.__name__}, which has no method {name!r}")
    found: Callable[..., Any] = method.__get__(reached, kind)
    return found
