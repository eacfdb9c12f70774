"""Checks the arguments of a job where it is made, and rebuilds them where it runs.

    send.enqueue("a@b.c", name="Ada")
        bind(("a@b.c",), {"name": "Ada"})         ──▶ {"to": "a@b.c", "name": "Ada"}         stored
        unbind({"to": "a@b.c", "name": "Ada"})    ──▶ (), {"to": "a@b.c", "name": "Ada"}     to call with
        unbind(["a@b.c", "Ada"])                  ──▶ the same: another program may write a list

Parameters that were not passed are not stored: the defaults of the code that runs the job apply. `*args` is
stored as a list and `**kwargs` as a document, each under its own name. A producer that does not know the function
writes the names of `**kwargs` next to the others, as in a call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, is_dataclass
from functools import partial
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, get_type_hints

from recruiter.domain.arguments import results
from recruiter.domain.arguments.results import HasResult, SubFlowResults, Unfilled, WithResults, contains_results
from recruiter.domain.arguments.typed import Mismatch, Slot, spelled
from recruiter.domain.arguments.values import KEYS_THAT_CHANGE, Refused, type_name
from recruiter.errors import InvalidArguments, UnsupportedValue
from recruiter.first_use import cached_property

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_EMPTY = Parameter.empty


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The parameters of a function, read once."""

    signature: inspect.Signature
    slots: dict[str, Slot]
    plain: dict[str, frozenset[Any]]
    positional: tuple[str, ...]
    required: frozenset[str]
    rest: str | None
    options: str | None
    simple: bool
    """Every parameter can be given by name, so that `unbind` need not put them in order."""


class Signature:
    """The parameters of a function or class. Annotations are read on first use.

    `skip_first` leaves out `self`. For the constructor of a dataclass, `owner` is the dataclass: the annotations of its
    fields may come from other modules.
    """

    def __init__(self, function: Callable[..., Any], *, skip_first: bool = False, owner: type | None = None) -> None:
        self._function = function
        self._owner = owner
        self._skip_first = skip_first
        self._unresolved: list[str] = []

    @property
    def name(self) -> str:
        return getattr(self._function, "__qualname__", None) or repr(self._function)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parameters.slots)

    @property
    def notes(self) -> tuple[str, ...]:
        """The annotations that cannot be resolved or understood, with the reason."""
        slots = self._parameters.slots.items()
        return (*self._unresolved, *(f"{name}: {slot.note}" for name, slot in slots if slot.note))

    @cached_property
    def returns(self) -> Any:
        """The annotation of the result; Any if there is none."""
        return self._annotation("return", self._parameters.signature.return_annotation)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The document of these arguments; InvalidArguments if they do not fit, UnsupportedValue if they
        fit and cannot travel. It is `WithResults` if results of a flow's steps are among them."""
        parameters = self._parameters
        try:
            bound = parameters.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{self.name}(): {error}; {self._takes()}") from None
        document = {name: self._store_argument(name, value) for name, value in bound.arguments.items()}
        variadic = (document.get(parameters.rest or "", ()), document.get(parameters.options or "", {}).values())
        unfilled = any(isinstance(value, Unfilled) for value in (*document.values(), *variadic[0], *variadic[1]))
        return WithResults(document) if unfilled else document

    def bind_kept(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The document of the arguments that a Workable exports, by name, including `*args` and `**kwargs`."""
        parameters, named = self._parameters, dict(values)
        rest = named.pop(parameters.rest, ()) if parameters.rest is not None else ()
        options = named.pop(parameters.options, {}) if parameters.options is not None else {}
        if not rest:
            return self.bind((), {**named, **options})
        positional = [named.pop(name) for name in parameters.positional]
        return self.bind((*positional, *rest), {**named, **options})

    def unbind(self, document: Mapping[str, Any] | list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call with, rebuilt from a document of names or a list of positions."""
        parameters = self._parameters
        if isinstance(document, list):
            document = self._by_name(document)
        elif not isinstance(document, dict | Mapping):
            raise InvalidArguments(f"{self.name}(): arguments are a document or a list, not {document!r:.80}")
        plain, arguments = parameters.plain, dict(document)
        if parameters.options is not None and not document.keys() <= plain.keys():
            document = arguments = self._gather_options(document, parameters.options)
        for name, value in document.items():
            if name not in plain:
                raise InvalidArguments(f"{self.name}() has no parameter {name!r:.80}; {self._takes()}")
            if type(value) not in plain[name]:
                arguments[name] = self._restore_argument(name, value)
        if not parameters.required <= arguments.keys():
            missing = ", ".join(name for name in parameters.slots if name in parameters.required - arguments.keys())
            raise InvalidArguments(f"{self.name}(): missing {missing}; {self._takes()}")
        return ((), arguments) if parameters.simple else self._call_arguments(arguments)

    def flat(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """The document in the form of a producer that does not know the function: `**kwargs` next to the others."""
        options = document.get(self._parameters.options or "")
        if not isinstance(options, Mapping) or not document.keys().isdisjoint(options):
            return document
        return {**{name: value for name, value in document.items() if name != self._parameters.options}, **options}

    @cached_property
    def _parameters(self) -> _Parameters:
        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(f"the parameters of {self.name} cannot be read: {error}") from None
        parameters = list(signature.parameters.values())[1 if self._skip_first else 0 :]
        slots = {p.name: Slot(self._annotation(p.name, p.annotation)) for p in parameters}
        named = [p for p in parameters if p.kind not in _VARIADIC]
        kinds = {p.kind: p.name for p in parameters if p.kind in _VARIADIC}
        return _Parameters(
            signature=signature.replace(parameters=parameters),
            slots=slots,
            plain={p.name: slots[p.name].plain if p in named else frozenset() for p in parameters},
            positional=tuple(p.name for p in parameters if p.kind in _POSITIONAL),
            required=frozenset(p.name for p in named if p.default is _EMPTY),
            rest=kinds.get(Parameter.VAR_POSITIONAL),
            options=kinds.get(Parameter.VAR_KEYWORD),
            simple=all(p.kind in _NAMED for p in parameters),
        )

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """The resolved annotations. If they cannot be resolved together, each is resolved separately."""
        function = _annotated(self._function)
        try:
            if self._owner is not None and is_dataclass(self._owner):
                return get_type_hints(self._owner, include_extras=True)
            return get_type_hints(function, include_extras=True)
        except Exception:
            return self._hints_one_by_one(function)

    def _hints_one_by_one(self, function: Any) -> dict[str, Any]:
        """The annotations that can be resolved. Each of the others is noted: it is not checked."""
        hints: dict[str, Any] = {}
        names = getattr(inspect.unwrap(function), "__globals__", {})
        for name, annotation in getattr(function, "__annotations__", {}).items():
            alone = SimpleNamespace(__annotations__={name: annotation})
            try:
                hints |= get_type_hints(alone, names, include_extras=True)
            except Exception as error:
                self._unresolved.append(f"{name}: {annotation!r} is not checked: {error}")
        return hints

    def _annotation(self, name: str, written: Any) -> Any:
        found = self._hints.get(name, written)
        if isinstance(found, InitVar):
            found = found.type
        return Any if found is _EMPTY or isinstance(found, str) else found

    def _store_argument(self, name: str, value: Any) -> Any:
        parameters = self._parameters
        slot = parameters.slots[name]
        if name == parameters.rest:
            return [self._store_value(slot, item, f"{name}[{index}]") for index, item in enumerate(value)]
        if name == parameters.options:
            for key in value:
                if not key.isprintable() or key in KEYS_THAT_CHANGE:
                    raise InvalidArguments(f"{self.name}(): {name}: {key!r} cannot be a name")
            return {key: self._store_value(slot, item, f"{name}.{key}") for key, item in value.items()}
        return self._store_value(slot, value, name)

    def _store_value(self, slot: Slot, value: Any, place: str) -> Any:
        """The stored form of a value for this slot. Results of steps in it are stored as places to fill."""
        try:
            try:
                if isinstance(value, SubFlowResults):  # which may be empty, and then looks like any other list
                    return results.stored(value, slot.annotation)
                return slot.store(value)
            except (Mismatch, Refused):
                if contains_results(value, HasResult):
                    raise Mismatch("a step of a flow is no argument; its result is: give step.result") from None
                if not contains_results(value):
                    raise
                return results.stored(value, slot.annotation)
        except Mismatch as mismatch:
            raise InvalidArguments(f"{self.name}(): {place}: {mismatch}") from None
        except Refused as refused:
            raise refused.named(f"args.{place}") from None

    def _restore_argument(self, name: str, stored: Any) -> Any:
        parameters = self._parameters
        slot = parameters.slots[name]
        if name == parameters.rest and isinstance(stored, list):
            return [self._restore_value(slot, item, f"{name}[{index}]") for index, item in enumerate(stored)]
        if name == parameters.options and isinstance(stored, Mapping):
            return {key: self._restore_value(slot, item, f"{name}.{key}") for key, item in stored.items()}
        if name in (parameters.rest, parameters.options):
            needed = "a list" if name == parameters.rest else "a document"
            raise InvalidArguments(f"{self.name}(): {name}: expected {needed}, got {type_name(stored)}")
        return self._restore_value(slot, stored, name)

    def _restore_value(self, slot: Slot, stored: Any, place: str) -> Any:
        try:
            return slot.restore(stored)
        except (Mismatch, UnsupportedValue) as problem:
            raise InvalidArguments(f"{self.name}(): {place}: {problem}") from None

    def _by_name(self, values: list[Any]) -> dict[str, Any]:
        """The document of arguments that are given by their positions."""
        parameters = self._parameters
        document = dict(zip(parameters.positional, values, strict=False))
        beyond = values[len(parameters.positional) :]
        if beyond and parameters.rest is None:
            raise InvalidArguments(f"{self.name}(): {len(values)} arguments are too many; {self._takes()}")
        if beyond and parameters.rest is not None:
            document[parameters.rest] = beyond
        return document

    def _gather_options(self, document: Mapping[str, Any], options: str) -> dict[str, Any]:
        """Moves the names that are no parameters into `**kwargs`."""
        plain = self._parameters.plain
        found = document.get(options, {})
        if not isinstance(found, Mapping):
            raise InvalidArguments(f"{self.name}(): {options}: expected a document, got {found!r:.80}")
        others = {name: value for name, value in document.items() if name not in plain}
        return {**{name: value for name, value in document.items() if name in plain}, options: {**found, **others}}

    def _call_arguments(self, arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call with: by name, or by position where a name is impossible, with defaults in the gaps."""
        parameters = self._parameters
        rest = arguments.pop(parameters.rest, []) if parameters.rest else []
        options = arguments.pop(parameters.options, {}) if parameters.options else {}
        signature = parameters.signature.parameters
        clash = next((name for name in options if name in signature and signature[name].kind in _NAMED), None)
        if clash is not None:
            raise InvalidArguments(f"{self.name}(): {parameters.options}: {clash} is a parameter of its own")
        ordered = [name for name in parameters.positional if rest or signature[name].kind is Parameter.POSITIONAL_ONLY]
        while ordered and not rest and ordered[-1] not in arguments:
            ordered.pop()
        values = [arguments.pop(name) if name in arguments else signature[name].default for name in ordered]
        return (*values, *rest), {**arguments, **options}

    def _takes(self) -> str:
        parameters = self._parameters.signature.parameters.values()
        return f"it takes ({', '.join(_described(p, self._parameters.slots[p.name]) for p in parameters)})"


def _described(parameter: Parameter, slot: Slot) -> str:
    stars = "*" if parameter.kind is Parameter.VAR_POSITIONAL else ""
    stars = "**" if parameter.kind is Parameter.VAR_KEYWORD else stars
    optional = "" if parameter.default is _EMPTY else " = …"
    return f"{stars}{parameter.name}: {spelled(slot.annotation)}{optional}"


def _annotated(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, type):
        return function.__init__  # type: ignore[misc]
    return function if hasattr(function, "__annotations__") else type(function).__call__
