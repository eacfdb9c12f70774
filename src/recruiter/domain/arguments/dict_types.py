"""`TypedDict` of `typing` before Python 3.12: pydantic checks only the one of `typing_extensions`, so it is made one.

Python 3.11 does not keep what pydantic needs to know of a TypedDict. What it does keep is enough to write the same type
down once more: its keys, which of them must be there, and their types, which may hold other TypedDicts.
"""

from __future__ import annotations

import functools
import operator
import sys
from types import GenericAlias, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import typing_extensions

_TypedDict: Any = typing_extensions.TypedDict
_FINE = sys.version_info >= (3, 12)


def checkable(annotation: Any) -> Any:
    """The same annotation, with each TypedDict in it as pydantic takes it. Raises TypeError for one within itself."""
    return annotation if _FINE else _checkable(annotation, ())


def _checkable(annotation: Any, inside: tuple[Any, ...]) -> Any:
    if is_typeddict(annotation):
        return _written_again(annotation, inside) if type(annotation).__module__ == "typing" else annotation
    origin, arguments = get_origin(annotation), get_args(annotation)
    if not arguments or origin is Literal:
        return annotation
    if origin is Annotated:
        inner = _checkable(arguments[0], inside)
        return annotation if inner is arguments[0] else Annotated[(inner, *annotation.__metadata__)]
    checked = tuple(_checkable(each, inside) for each in arguments)
    if all(one is other for one, other in zip(checked, arguments, strict=True)):
        return annotation
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, checked)
    if origin in (Required, NotRequired):
        return origin[checked[0]]
    return GenericAlias(origin, checked)


def _written_again(annotation: Any, inside: tuple[Any, ...]) -> Any:
    if annotation in inside:
        raise TypeError(
            f"{annotation.__name__} contains itself: take TypedDict from typing_extensions, not from typing"
        )
    keys: dict[str, Any] = {}
    for name, hint in get_type_hints(annotation, include_extras=True).items():
        inner = _checkable(hint, (*inside, annotation))
        said = get_origin(hint) in (Required, NotRequired)  # in a module with postponed annotations nobody else knows
        must = Required if name in annotation.__required_keys__ else NotRequired
        keys[name] = inner if said else must[inner]
    again: Any = _TypedDict(annotation.__name__, keys)
    again.__module__, again.__doc__ = annotation.__module__, annotation.__doc__
    return again
