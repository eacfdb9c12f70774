"""A value with a type annotation (a parameter or a result): how it is checked, stored and rebuilt.

    call site                 store                    another process
    check(value) ──▶ store(value) ──▶ document ──▶ restore(document) ──▶ a value equal to the first

The check is strict (the string "5" is not an int); restoring is lenient, because another language wrote
"2030-01-01" or 5.0 where we would have written a date or an int. Dataclasses, models and enums are rebuilt by
the annotation. They are rebuilt once when they are stored: a value that would come back different (a subclass,
two classes with the same fields in a union, a serializer that drops a field) is refused.
"""

from __future__ import annotations

import collections.abc
import inspect
import math
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NewType,
    NotRequired,
    Required,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from bson import ObjectId

from recruiter.domain.arguments.values import PLAIN, Refused, encode, from_bson, tagged, type_name
from recruiter.domain.text import shown
from recruiter.errors import UnsupportedValue

if TYPE_CHECKING:
    from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError

_CONTAINERS = frozenset({list, tuple, set, frozenset, collections.abc.Sequence})
_MAPPINGS = frozenset({dict, collections.abc.Mapping})
_LEAVES = frozenset({Any, Decimal, ObjectId, Path, UUID, date, datetime, time, timedelta})
_SELF_DESCRIBING = PLAIN | _LEAVES | _CONTAINERS | _MAPPINGS
_KEPT = _SELF_DESCRIBING | {NoneType}
_ITERABLES = frozenset({collections.abc.Iterable, collections.abc.Collection})
_UNIONS = frozenset({Union, UnionType})
_UNTYPED = (Any, object, inspect.Parameter.empty)
_MODEL_PARTS = ("__dict__", "__pydantic_extra__", "__pydantic_private__")
RESULT_TAG = "untyped"


class Mismatch(Exception):
    """The value does not fit the annotation. The message names the expected and the given type."""


class Slot:
    """A place with an annotation. Cheap to make: pydantic's part waits for a value that needs it."""

    __slots__ = ("_adapter", "_drops_keys", "_keeps", "_self_describing", "annotation", "note", "plain")

    def __init__(self, annotation: Any) -> None:
        self.annotation = Any if annotation in _UNTYPED else _concrete(annotation)
        self.note: str | None = None
        """Why values are not checked, if they are not."""
        self.plain = _plain_types(self.annotation)
        """The types of values that need no check."""
        self._self_describing = _describes_itself(self.annotation)
        """`encode` alone brings every value back."""
        self._keeps = _keeps_values(self.annotation)
        """A valid value arrives unchanged."""
        self._drops_keys = _has_typed_dict(self.annotation)
        """pydantic would drop unknown keys silently."""
        self._adapter: TypeAdapter[Any] | None = None

    def store(self, value: Any) -> Any:
        """The value in the form in which BSON stores it. Raises Mismatch if it does not fit the annotation, and Refused
        if it fits but would not come back equal."""
        if type(value) in self.plain or (adapter := self.adapter) is None:
            return encode(value)
        try:
            checked = adapter.validate_python(value, strict=True)
        except Exception as error:
            raise self._mismatch(error, value) from None
        # Pydantic may convert a value: then the job would get another value than the caller gave.
        if self._keeps and not (checked == value or same(value, checked)):
            raise Mismatch(f"{_changes(value, 'arrive', checked)}; expected {spelled(self.annotation)}")
        return encode(checked) if self._self_describing else self._stored_by_annotation(checked, adapter)

    def restore(self, stored: Any) -> Any:
        """The value in another process; raises Mismatch, or UnsupportedValue for a tag without sense."""
        value = from_bson(stored)
        if type(value) in self.plain or (adapter := self.adapter) is None:
            return value
        try:
            restored = adapter.validate_python(value)
        except Exception as error:  # a __post_init__ or a validator may raise anything
            raise self._mismatch(error, value) from None
        if self._drops_keys and (lost := _lost_key(value, restored)) is not None:
            key = shown(lost) if isinstance(lost, str) else f"of type {type_name(lost)}"
            raise Mismatch(f"expected {spelled(self.annotation)}, which has no key {key}")
        return restored

    @property
    def adapter(self) -> TypeAdapter[Any] | None:
        """The adapter of pydantic, made on first use. None if values are not checked (see `note`)."""
        if self._adapter is None and self.annotation is not Any:
            try:
                self._adapter = adapter_of(self.annotation)
            except Exception as error:  # pydantic refuses it, or user code in a metaclass raised
                if "TypedDict" in str(error):  # before Python 3.12 pydantic knows only that of typing_extensions
                    raise Mismatch(f"{spelled(self.annotation)} cannot be checked: {_first_line(error)}") from None
                self.note = f"{spelled(self.annotation)} is not checked: {_first_line(error)}"
                self.annotation, self.plain, self._self_describing = Any, PLAIN, True
        return self._adapter

    def _stored_by_annotation(self, value: Any, adapter: TypeAdapter[Any]) -> Any:
        """The stored form of a value that only its annotation can rebuild. Refused if it would come back different."""
        try:
            dumped = adapter.dump_python(value, round_trip=True, by_alias=True, warnings=False)
            stored = encode(dumped, typed=True)
        except Refused as refused:
            stored = _stored_as_json(value, adapter, refused)
        except Exception as error:  # a serializer may raise anything
            raise Refused(f"a value of type {type_name(value)} could not be exported: {error}") from None
        try:
            restored = self.restore(stored)
        except Mismatch as mismatch:
            raise Refused(f"a value of type {type_name(value)} could not be rebuilt: {mismatch}") from None
        if not same(value, restored):
            raise Refused(_changes(value, "come back", restored))
        return stored

    def _mismatch(self, error: Exception, value: Any) -> Mismatch:
        place, got, message = "", value, f"{type(error).__name__}: {error}"
        if is_validation_error(error):
            first = error.errors(include_url=False)[0]
            got, message = first["input"], first["msg"]
            if got is not value or first["type"] == "missing":
                steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
                place = f" in {''.join(steps).lstrip('.')}"
        expected = spelled(self.annotation)
        return Mismatch(f"expected {expected}, got {type_name(got)}{place}: {message}")


@lru_cache(maxsize=1024)
def _slot(annotation: Any) -> Slot:
    return Slot(annotation)


def slot_of(annotation: Any) -> Slot:
    """The slot for an annotation; the same one for the same annotation."""
    try:
        return _slot(annotation)
    except TypeError:  # an annotation that cannot be hashed
        return Slot(annotation)


def encode_result(value: Any, annotation: Any = Any) -> Any:
    """A result as BSON takes it; UnsupportedValue if it cannot travel.

    A function that returns something else than it promised has still done its work: that travels untyped.
    """
    slot = slot_of(annotation)
    try:
        return slot.store(value)
    except Mismatch:
        pass  # it travels untyped, below
    except Refused as refused:
        raise refused.named("result") from None
    try:
        return tagged(RESULT_TAG, encode(value))
    except Refused as refused:
        raise refused.named("result") from None


def decode_result(document: Any, annotation: Any = Any) -> Any:
    """What `encode_result` was given; UnsupportedValue if the document holds something else."""
    if isinstance(document, dict) and document.get("__recruiter__") == RESULT_TAG:
        return from_bson(document.get("value"))
    try:
        return slot_of(annotation).restore(document)
    except Mismatch as mismatch:
        raise UnsupportedValue(f"result: {mismatch}") from None


def lost_fields(document: Any, again: Any) -> Iterator[str]:
    """The fields of a stored result that are missing when the decoded result is stored again: its type had them."""
    if isinstance(document, dict) and isinstance(again, dict):
        for name, value in document.items():
            if name in again:
                yield from (f"{name}.{inner}" for inner in lost_fields(value, again[name]))
            else:
                yield str(name)
    elif isinstance(document, list) and isinstance(again, list):
        yield from (name for pair in zip(document, again, strict=False) for name in lost_fields(*pair))


def _changes(value: Any, how: str, other: Any) -> str:
    kind = "a different" if type(other) is type(value) else "a value of type"
    return f"a value of type {type_name(value)} would {how} as {kind} {type_name(other)}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def spelled(annotation: Any) -> str:
    """The annotation as people write it."""
    name = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    return name.replace("typing.", "").replace("NoneType", "None")


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down; NaN is the same as NaN, and 5 as 5.0."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if type(one) is not type(other):
        return _same_but_for_the_class(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if is_model(type(one)):
        return all(same(getattr(one, part), getattr(other, part)) for part in _MODEL_PARTS)
    if is_dataclass(one) and not isinstance(one, type):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return bool(one == other)


def _same_but_for_the_class(one: Any, other: Any) -> bool:
    if isinstance(one, Enum | bool) or isinstance(other, bool):
        return False
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    return isinstance(one, type(other)) and type(other) in (str, bytes, list, datetime, date) and one == other


def _concrete(annotation: Any) -> Any:
    """The annotation to check. For an Iterable pydantic would hand out a generator, so it is spelled out."""
    if annotation is None:
        return NoneType
    while isinstance(annotation, NewType):
        annotation = annotation.__supertype__
    origin = get_origin(annotation) or annotation
    if isinstance(origin, collections.abc.Hashable) and origin in _ITERABLES:
        item = (*get_args(annotation), Any)[0]
        return list[item] | tuple[item, ...] | set[item] | frozenset[item]  # type: ignore[valid-type]
    return annotation


def _plain_types(annotation: Any) -> frozenset[Any]:
    """The exact types that fit and travel with no further check, for speed."""
    if annotation is Any:
        return PLAIN
    members = get_args(annotation) if get_origin(annotation) in _UNIONS else (annotation,)
    return frozenset(member for member in members if isinstance(member, type) and member in PLAIN)


def _describes_itself(annotation: Any) -> bool:
    """Does `encode` alone bring every value of this annotation back?"""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in _UNIONS or origin in _CONTAINERS:
        return all(item is Ellipsis or _describes_itself(item) for item in inner)
    if origin in _MAPPINGS:
        return inner[0] is str and _describes_itself(inner[1])
    return origin is None and isinstance(annotation, collections.abc.Hashable) and annotation in _SELF_DESCRIBING


def _keeps_values(annotation: Any, inside: tuple[Any, ...] = ()) -> bool:
    """Does every value of this annotation arrive unchanged? Not if a document becomes a model or a dataclass, or if the
    user's validator may change it. In a union with a mapping a document stays a document."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if _is_typed_dict(annotation):
        hints = {} if annotation in inside else get_type_hints(annotation, include_extras=True)
        return all(_keeps_values(hint, (*inside, annotation)) for hint in hints.values())
    if origin in _UNIONS and any((get_origin(item) or item) in _MAPPINGS for item in inner):
        inner = tuple(item for item in inner if not (isinstance(item, type) and (is_model(item) or is_dataclass(item))))
    if origin in _UNIONS or origin in _CONTAINERS or origin in _MAPPINGS or origin in (Required, NotRequired):
        return all(item is Ellipsis or _keeps_values(item, inside) for item in inner)
    if origin is Literal:
        return True
    return origin is None and isinstance(annotation, collections.abc.Hashable) and annotation in _KEPT


def _has_typed_dict(annotation: Any) -> bool:
    return _is_typed_dict(annotation) or any(map(_has_typed_dict, get_args(annotation)))


def _is_typed_dict(annotation: Any) -> bool:
    """Of `typing` or of `typing_extensions`: `typing.is_typeddict` knows the first only."""
    return isinstance(annotation, type) and hasattr(annotation, "__required_keys__")


def _lost_key(given: Any, restored: Any) -> Any:
    """A key of a document that a TypedDict has dropped; None if there is none."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(given, dict) and isinstance(restored, dict):
        if len(restored) < len(given):
            return next((key for key in given if key not in restored), None)
        pairs = [(given[key], restored[key]) for key in given if key in restored]
    elif isinstance(given, list) and isinstance(restored, list):
        pairs = list(zip(given, restored, strict=False))
    return next((lost for pair in pairs if (lost := _lost_key(*pair)) is not None), None)


def _stored_as_json(value: Any, adapter: TypeAdapter[Any], refused: Refused) -> Any:
    """For types that only pydantic can write: URLs, IP addresses, patterns."""
    try:
        return encode(adapter.dump_python(value, mode="json", round_trip=True, by_alias=True))
    except Exception:
        raise refused from None


# -- pydantic, imported when a value needs it ----------------------------------------------------------------------

# Most values are plain, and importing pydantic takes a third as long as importing pymongo. A program that has defined a
# model has imported pydantic, so asking whether a class is one imports nothing.


def load_pydantic() -> None:
    """Imports it now; for a process from which others are forked."""
    import_module("pydantic")


def is_model(cls: type) -> TypeGuard[type[BaseModel]]:
    known = sys.modules.get("pydantic.main")
    return known is not None and issubclass(cls, known.BaseModel)


def is_root_model(cls: type) -> TypeGuard[type[RootModel[Any]]]:
    """Whether it is a model that is one value and not a document of several."""
    # Importing RootModel would define a model, and then pydantic searches all installed packages for plugins.
    known = sys.modules.get("pydantic.root_model")
    return known is not None and issubclass(cls, known.RootModel)


def is_validation_error(error: Exception) -> TypeGuard[ValidationError]:
    return isinstance(error, import_module("pydantic").ValidationError)


def adapter_of(annotation: Any) -> TypeAdapter[Any]:
    pydantic = import_module("pydantic")
    adapter: TypeAdapter[Any]
    try:
        adapter = pydantic.TypeAdapter(annotation, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
    except pydantic.PydanticUserError:  # a dataclass or model, which has its own configuration
        adapter = pydantic.TypeAdapter(annotation)
    return adapter
