"""Redaction: stored values become JSON-compatible with secrets hidden, and no text shows the password of an address."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from bson import ObjectId

from recruiter.domain.arguments.values import TAG
from recruiter.domain.search.filter import JobFilter
from recruiter.domain.text import is_secret_name, mask
from recruiter.errors import InvalidFilter, SettingsError

R = TypeVar("R")

HIDDEN = "••••••"  # Shown instead of a secret
IDS = ("id", "key", "origin", "recovered_from", "recovered_as", "flow")
_UNMASKED = (*IDS, "args")  # Links need ids, and arguments are redacted already
_LONGEST_LINE = 160
_DEEPEST = 60
_PAIR = 2


class Redaction:
    """Hides the values of keys that resemble a secret, at any depth, and refuses filters that would reveal them.

    `more` is a regular expression for additional keys. `only` replaces the built-in list; an empty text hides nothing.
    In a pair such as `["Authorization", "Bearer …"]`, the first text is the key. Only keys decide: a password in a
    positional argument, a message or a log is shown.
    """

    def __init__(self, more: str | None = None, only: str | None = None) -> None:
        if more and only is not None:
            raise SettingsError("redact adds to the list of secrets and redact_only replaces it; choose one")
        self._has_defaults = only is None
        pattern = more if only is None else only
        try:
            self._pattern = re.compile(pattern, re.IGNORECASE) if pattern else None
        except re.error as error:
            raise SettingsError(f"{pattern!r} is no regular expression: {error}") from None

    def hides(self, key: str) -> bool:
        """Whether the value of this key is a secret."""
        if self._has_defaults and is_secret_name(key):
            return True
        return self._pattern is not None and self._pattern.search(key) is not None

    def check(self, filter: JobFilter) -> JobFilter:
        """The filter. Raises InvalidFilter if it asks for a hidden value: the number of jobs would reveal it."""
        for path, values in filter.args:
            parts = path.split(".")
            for key in [path, *parts, *_keys(values)]:
                if self.hides(key):
                    name = repr(key[:100])
                    raise InvalidFilter(f"the argument {name} is not shown here, so it cannot be asked for either")
            if any(part.isdigit() for part in parts[1:]):
                raise InvalidFilter(
                    f"{path[:100]!r} selects by a position in a list, where names of secrets are not known; "
                    "use the name of an argument"
                )
        return filter

    def plain(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return mask(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if depth > _DEEPEST:
            return "…"
        if isinstance(value, Mapping):
            return {
                str(key): HIDDEN if self.hides(str(key)) else self.plain(inner, depth + 1)
                for key, inner in value.items()
            }
        if hasattr(value, "_asdict"):
            return self.plain(value._asdict(), depth)
        if isinstance(value, list | tuple | set | frozenset):
            found = [self.plain(inner, depth + 1) for inner in value]
            return [found[0], HIDDEN] if depth and _is_pair(value) and self.hides(found[0]) else found
        if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return f"{len(value):,} bytes" if isinstance(value, bytes) else str(value)

    def scalars(self, args: Any) -> dict[str, Any]:
        """Arguments that are texts and numbers and no secrets, by name or position. Sealed arguments have none."""
        plain = self.plain(args)
        items = plain if isinstance(plain, dict) else dict(enumerate(plain if isinstance(plain, list) else ()))
        given = items.items() if TAG not in items else ()
        return {str(key): value for key, value in given if isinstance(value, str | int | float) and value != HIDDEN}

    def line(self, args: Any) -> str:
        """Arguments in one line, like a call: `to="ada@b.c", order=7`."""
        plain = self.plain(args)
        if isinstance(plain, dict):
            parts = [f"{key}={_short(value)}" for key, value in list(plain.items())[:20]]
        elif isinstance(plain, list):
            parts = [_short(value) for value in plain[:20]]
        else:
            parts = [] if plain is None else [_short(plain)]
        text = ", ".join(parts)
        return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"


def masks_texts(*unmasked: str) -> Callable[[type[R]], type[R]]:
    """For a class: all public methods return their texts masked, except for the methods of these names."""

    def masking(method: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(method)(lambda *args, **kwargs: masked(method(*args, **kwargs)))

    def decorated(reader: type[R]) -> type[R]:
        for name, method in list(vars(reader).items()):
            if not name.startswith("_") and inspect.isfunction(method) and name not in unmasked:
                setattr(reader, name, masking(method))
        return reader

    return decorated


def masked(value: Any) -> Any:
    """The same value with the passwords of addresses masked in every text."""
    match value:
        case str():
            text = mask(value)
            return value if text == value else text
        case Mapping():
            items = value.items()
            return {key: it if key in _UNMASKED and isinstance(it, str) else masked(it) for key, it in items}
        case list():
            return [masked(inner) for inner in value]
        case ObjectId() | UUID():
            return str(value)
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*map(masked, value))
        case tuple():
            return tuple(map(masked, value))
        case _ if is_dataclass(value) and not isinstance(value, JobFilter | type):
            before = {each.name: getattr(value, each.name) for each in fields(value)}
            after = masked(before)
            changed = {name: after[name] for name, old in before.items() if after[name] != old}
            return replace(value, **changed) if changed else value
    return value


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == _PAIR and isinstance(value[0], str)


def _keys(value: Any) -> list[str]:
    """Every text in a value that names another value, at any depth: the keys of mappings, and the first text of a pair
    such as `["Authorization", "Bearer …"]`. `check` refuses a filter that asks about a secret one."""
    if isinstance(value, Mapping):
        return [*map(str, value), *(key for inner in value.values() for key in _keys(inner))]
    if isinstance(value, list | tuple):
        first = [value[0]] if _is_pair(value) else []
        return [*first, *(key for inner in value for key in _keys(inner))]
    return []


def _short(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value[:_LONGEST_LINE]}"' if value != HIDDEN else HIDDEN
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(inner)}" for key, inner in list(value.items())[:8]) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_short(inner) for inner in value[:8]) + (", …]" if len(value) > 8 else "]")
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
