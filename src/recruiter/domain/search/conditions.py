"""How each condition of a filter is checked: one function for each kind of condition, for the fields of `JobFilter`. It
gets the name of the condition and the given value, and returns the one form in which it is compared.

Nothing of it reaches MongoDB as a query: values are compared as values, and an operator among them is refused
here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from bson import ObjectId

from recruiter.domain.arguments.values import MAX_DEPTH, to_bson
from recruiter.domain.duration import to_timedelta
from recruiter.domain.job import JobId
from recruiter.domain.names import check_name, is_job_id, plain
from recruiter.domain.retry.decision import exception_names
from recruiter.domain.state import State
from recruiter.domain.text import is_unicode, shown
from recruiter.errors import InvalidDuration, InvalidFilter, InvalidName, UnsupportedValue

QUEUED, POSTPONED, BLOCKED = "queued", "postponed", "blocked"
STATES: tuple[str, ...] = (*(state.value for state in State), QUEUED, POSTPONED, BLOCKED)
"""`waiting` is `queued` (its time has come) or `postponed` (it has not)."""

Argument = tuple[str, tuple[Any, ...]]
"""A path into the arguments, and the wanted values in their stored form."""

_AS_PYTHON = re.compile(r"(?:ObjectId|UUID)\(['\"]([0-9a-fA-F-]{24,36})['\"]\)")
_MAX_CHARACTERS = 1_000
LARGEST_INTEGER = 2**63
"""BSON has no larger integers."""
_MAX_VALUES = 100


def states(name: str, value: object) -> frozenset[str]:
    states = frozenset(str(state) for state in texts(name, value))
    for state in sorted(states - set(STATES)):
        raise InvalidFilter(f"{shown(state)} is not a state; a job is {', '.join(STATES)}")
    return states


def names(name: str, value: object) -> tuple[str, ...]:
    try:
        return tuple(check_name(name, given) for given in texts(name, value))
    except InvalidName as error:
        raise InvalidFilter(str(error)) from None


def texts(name: str, value: object) -> tuple[str, ...]:
    texts = _values(name, value, str)
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= _MAX_CHARACTERS or "\0" in text:
            raise InvalidFilter(f"{name} is {shown(text)}; it must be a text of 1 to {_MAX_CHARACTERS:,} characters")
    return texts


def errors(name: str, value: object) -> tuple[str, ...]:
    """The names of exceptions, which may be given as classes."""
    given = _values(name, value, str | type)
    return texts(
        name,
        [
            exception_names(error)[0] if isinstance(error, type) and issubclass(error, BaseException) else error
            for error in given
        ],
    )


def ids_written(text: str) -> list[JobId]:
    """Every id that can be written like this: a string, an ObjectId, a number or a UUID, or the repr of one."""
    text = plain(text)
    ids: list[JobId] = [text]
    if shown_by_python := _AS_PYTHON.fullmatch(text):
        text = shown_by_python[1]
    if ObjectId.is_valid(text):
        ids.append(ObjectId(text))
    if len(text) <= 20 and text.isascii() and text.removeprefix("-").isdigit() and abs(int(text)) < LARGEST_INTEGER:
        ids.append(int(text))
    if len(text) in (32, 36):
        with suppress(ValueError):
            ids.append(UUID(text))
    return ids


def argument_written(text: str) -> tuple[str, Any]:
    """A condition on an argument, `customer.id=42`: the path, and every value that is written like this."""
    path, equals, value = text.partition("=")
    if not equals:
        raise InvalidFilter(f"the argument {shown(text)} has no value; write a path and a value: customer.id=42")
    return path, _values_written(value)


def _values_written(text: str) -> Any:
    """Every value that can be written like this: `42` is a number or a string. A mapping alone has one meaning."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, dict):
        return value
    values = [value, *(id for id in ids_written(text) if id != value)]
    try:
        moment = datetime.fromisoformat(text)
        values += [moment] if moment.tzinfo is not None else []
    except ValueError:
        pass
    return tuple(values)


def ids(name: str, value: object) -> tuple[JobId, ...]:
    """The ids that a condition selects. A string selects ids of other types too, if they can be written like this."""
    ids = _values(name, value, ObjectId | str | int | UUID)
    for id in ids:
        if not is_job_id(id) or id == "" or (isinstance(id, str) and not is_unicode(id)):
            raise InvalidFilter(
                f"{name} is {shown(id)}; an id is an ObjectId, a text of up to {_MAX_CHARACTERS:,} characters, "
                "an integer of 64 bits or a UUID"
            )
    return tuple(dict.fromkeys(written for id in ids for written in (ids_written(id) if isinstance(id, str) else [id])))


def _values(name: str, value: object, kind: Any) -> tuple[Any, ...]:
    """The value, or each of several values once."""
    if isinstance(value, kind) or not isinstance(value, Iterable) or isinstance(value, Mapping | bytes):
        return (value,)
    try:
        values = tuple(dict.fromkeys(value))
    except TypeError:
        raise InvalidFilter(f"{name} is {shown(value)}; give one value, or a list of plain ones") from None
    if not 0 < len(values) <= _MAX_VALUES:
        raise InvalidFilter(f"{name} has {len(values)} values; give 1 to {_MAX_VALUES}, or leave it out")
    return values


def arguments(name: str, value: object) -> tuple[Argument, ...]:
    if not isinstance(value, Mapping) or not value:
        raise InvalidFilter(f"{name} is {shown(value)}; write values by their path: {{'customer.id': 42}}")
    found = dict(_by_path((), value))
    if len(found) > _MAX_VALUES:
        raise InvalidFilter(f"{name} has {len(found)} values; give up to {_MAX_VALUES}")
    return tuple(sorted(found.items()))


def _by_path(path: tuple[str, ...], value: Any) -> Iterator[Argument]:
    """Each value in nested conditions on arguments, with its dotted path."""
    if not isinstance(value, Mapping) or (path and not value):
        values = value if isinstance(value, tuple) else (value,)
        yield ".".join(path), tuple(_stored(".".join(path), item) for item in values)
        return
    for key, inner in value.items():
        parts = key.split(".") if isinstance(key, str) else [""]
        for part in parts:
            _check_part(part, key)
        if len(path) + len(parts) > MAX_DEPTH:
            raise InvalidFilter(f"an argument more than {MAX_DEPTH} levels deep cannot be asked for")
        yield from _by_path((*path, *parts), inner)


def _check_part(part: str, key: object) -> None:
    if part.startswith("$"):
        raise InvalidFilter(f"args: {part[:100]!r} is an operator of MongoDB; only values can be compared")
    if not part or "\0" in part or len(part) > _MAX_CHARACTERS:
        raise InvalidFilter(f"args: {shown(key)} is not a path; write names with dots between: customer.id")


def _stored(path: str, value: Any) -> Any:
    """The stored form of the value. It is only compared, never executed."""
    _refuse_operators(value)
    try:
        return to_bson(value, f"args.{path}")
    except UnsupportedValue as error:
        raise InvalidFilter(f"{error}; no job has such an argument") from None


def _refuse_operators(value: Any, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise InvalidFilter(f"an argument more than {MAX_DEPTH} levels deep cannot be asked for")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_part(key if isinstance(key, str) else "", key)
            _refuse_operators(inner, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            _refuse_operators(inner, depth + 1)


def truth(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidFilter(f"{name} is {shown(value)}; it must be True or False")
    return value


def whole_number(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise InvalidFilter(f"{name} is {shown(value)}; it must be a whole number, 0 or more")
    return value


def length(name: str, value: object) -> timedelta:
    try:
        return to_timedelta(value)  # type: ignore[arg-type]  # it refuses whatever is none
    except InvalidDuration as error:
        raise InvalidFilter(f"{name}: {error}") from None
