"""Finds the public names: the exports of `recruiter` and its modules, and the classes that their methods return."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import EnumMeta
from types import ModuleType
from typing import Any, is_typeddict

from source import class_source, imported_names, module_source

import recruiter
from recruiter import RetryPolicy, SchedulePolicy
from recruiter.first_use import cached_property

FOR_BUILDERS = "for extensions"
"""The section of a class for members that only the package itself needs; the index does not link to it."""

_IDENTIFIER = re.compile(r"\b[A-Z]\w+\b")


@dataclass(frozen=True)
class Public:
    """A public name and the module that exports it; None for a class that is only returned by other names."""

    name: str
    value: Any
    module: str | None

    @property
    def cls(self) -> type | None:
        """The class to describe: the value itself, or the class of an object such as `current_job`."""
        if inspect.isclass(self.value):
            return self.value
        cls = type(self.value)
        return cls if cls.__module__.startswith("recruiter") and not inspect.isroutine(self.value) else None

    @cached_property
    def kind(self) -> str:
        cls = self.cls
        if cls is None:
            return "functions" if inspect.isroutine(self.value) else "aliases"
        if issubclass(cls, BaseException):
            return "exceptions"
        if isinstance(cls, EnumMeta):
            return "words"
        if issubclass(cls, RetryPolicy | SchedulePolicy):
            return "policies"
        return "values" if fields(cls) else "classes"


@dataclass(frozen=True)
class Member:
    name: str
    value: Any
    """The definition: a function, a property or a class method; None for an attribute."""
    told: str
    section: str
    async_name: str | None = None
    """The name of its async form."""


def public_names() -> dict[str, Public]:
    """All public names: `Recruiter` first, then in alphabetical order."""
    found = {public.name: public for public in _exported()}
    waiting = list(found.values())
    while waiting:
        for cls in _answers(waiting.pop(0)):
            if all(cls is not public.cls for public in found.values()):
                taken = cls.__name__ in found
                name = f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}" if taken else cls.__name__
                found[name] = Public(name, cls, None)
                waiting.append(found[name])
    return dict(sorted(found.items(), key=lambda item: (item[0] != "Recruiter", item[0].lower())))


def members(cls: type, known: Collection[type] = ()) -> list[Member]:
    """The public members of a class in source order, without unchanged members of the `known` base classes."""
    names = [name for name in dir(cls) if not name.startswith("_") and _owner(cls, name) is not None]
    told: list[Member] = []
    for name in names:
        value = inspect.getattr_static(cls, name)
        if name.startswith("a") and name[1:] in names and inspect.iscoroutinefunction(value):
            continue  # shown with its plain call
        if _is_call(value) and not _as_before(cls, name, known):
            async_name = f"a{name}" if inspect.iscoroutinefunction(getattr(cls, f"a{name}", None)) else None
            told.append(Member(name, value, inspect.getdoc(getattr(cls, name)) or "", _section(cls, name), async_name))
    if not isinstance(cls, EnumMeta):
        told += _attributes(cls, known)
    return sorted(told, key=lambda member: _place(cls, member.name))


def _attributes(cls: type, known: Collection[type]) -> list[Member]:
    """The attributes with a docstring."""
    shown = {field for field, _, _ in fields(cls)}
    owners = [owner for owner in cls.__mro__ if owner.__module__.startswith("recruiter") and owner not in known]
    return [
        Member(name, None, told, _section(cls, name))
        for owner in owners
        for name, told in class_source(owner).attributes.items()
        if not name.startswith("_") and name not in shown
    ]


def fields(cls: type) -> list[tuple[str, str, Any]]:
    """The fields of a dataclass, named tuple or typed dict: name, type and default (`...` if there is none)."""
    if dataclasses.is_dataclass(cls):
        public = [each for each in dataclasses.fields(cls) if not each.name.startswith("_")]
        return [(each.name, str(each.type), _default(each)) for each in public]
    if is_typeddict(cls):
        return [(name, _annotation(told), ...) for name, told in inspect.get_annotations(cls).items()]
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        types, defaults = inspect.get_annotations(cls), cls._field_defaults  # type: ignore[attr-defined]
        return [(name, _annotation(types.get(name, "")), defaults.get(name, ...)) for name in cls._fields]
    return []


def descriptions(cls: type) -> dict[str, str]:
    """The descriptions in the metadata of dataclass fields."""
    said = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return {each.name: each.metadata["means"] for each in said if "means" in each.metadata}


def _annotation(annotation: Any) -> str:
    return str(getattr(annotation, "__forward_arg__", annotation))


def _exported() -> Iterator[Public]:
    """The exports of `recruiter`, and of its modules that have `__all__`."""
    for name in recruiter.__all__:
        yield Public(name, getattr(recruiter, name), "recruiter")
    for info in pkgutil.iter_modules(recruiter.__path__, "recruiter."):
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", ()):
            yield Public(name, getattr(module, name), info.name)


def _answers(public: Public) -> Iterator[type]:
    """The Recruiter classes that its members return or its fields contain."""
    cls = public.cls
    if cls is None or public.kind in ("exceptions", "words"):
        return
    annotations = [annotation for _, annotation, _ in fields(cls)]
    for member in members(cls):
        value = member.value.fget if isinstance(member.value, property) else member.value
        value = getattr(value, "func", value)
        if member.section != FOR_BUILDERS and inspect.isfunction(value):
            annotations.append(str(value.__annotations__.get("return", "")))
    for annotation in annotations:
        yield from classes_in(annotation, cls)


def classes_in(annotation: str, where: type) -> Iterator[type]:
    """The Recruiter classes that an annotation in this class names."""
    for name in _IDENTIFIER.findall(annotation):
        found = _meant(sys.modules[where.__module__], name)
        if inspect.isclass(found) and found.__module__.startswith("recruiter."):
            yield found


def _meant(module: ModuleType, name: str) -> Any:
    """The object that a name in an annotation refers to, even if the module imports it only for type checkers."""
    if hasattr(module, name) or name not in imported_names(module):
        return getattr(module, name, None)
    return getattr(importlib.import_module(imported_names(module)[name]), name)


def alias(public: Public) -> tuple[str, str]:
    """The source and the docstring of a type alias."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith("recruiter.domain") and isinstance(module, ModuleType):
            found = module_source(module).get(public.name)
            if found is not None:
                return found
    return public.name, ""


def _owner(cls: type, name: str) -> type | None:
    """The Recruiter class that defines the member."""
    owner = next((each for each in cls.__mro__ if name in vars(each) or name in class_source(each).lines), None)
    return owner if owner is not None and owner.__module__.startswith("recruiter") else None


def _is_call(value: Any) -> bool:
    return inspect.isroutine(value) or isinstance(value, property | cached_property | classmethod | staticmethod)


def _as_before(cls: type, name: str, known: Collection[type]) -> bool:
    """Whether a class with its own page has the same member, and this class adds no docstring."""
    owner = _owner(cls, name)
    says_more = owner is cls and bool(getattr(vars(cls)[name], "__doc__", None))
    return not says_more and any(base is not cls and base in known and hasattr(base, name) for base in cls.__mro__)


def _section(cls: type, name: str) -> str:
    owner = _owner(cls, name)
    return "" if owner is None else class_source(owner).section_of(name)


def _place(cls: type, name: str) -> tuple[bool, bool, int, int]:
    """The sort key: members without a section first, members for builders last, otherwise by class and source line."""
    owner, section = _owner(cls, name) or cls, _section(cls, name)
    line = class_source(owner).lines.get(name, 0)
    return section == FOR_BUILDERS, bool(section), cls.__mro__.index(owner), line


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else ...
