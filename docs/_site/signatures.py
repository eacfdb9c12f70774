"""Formats signatures as in the source, with readable defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from inspect import Parameter
from typing import Any

from recruiter.domain.duration import humanize

WIDTH = 88

_STARS: dict[object, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}


def signature(call: Callable[..., Any], name: str) -> str:
    """`name(…) -> …` on one line if it fits, otherwise with one parameter per line."""
    found = inspect.signature(call)
    parameters = _parameters([each for each in found.parameters.values() if each.name not in ("self", "cls")])
    returns = "" if found.return_annotation in (found.empty, "None", None) else f" -> {found.return_annotation}"
    on_one_line = f"{name}({', '.join(parameters)}){returns}"
    if len(on_one_line) <= WIDTH:
        return on_one_line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){returns}"


def shown(default: Any) -> str:
    """A default value as in the source."""
    match default:
        case Enum(value=str() as text) | (str() as text):
            return f'"{text}"'
        case timedelta():
            return f'"{humanize(default)}"'
        case Mapping():
            return repr(dict(default))
        case _:
            return str(default) if repr(default).startswith("<") else repr(default).removeprefix("typing.")


def _parameters(given: list[Parameter]) -> list[str]:
    """The parameters, with the separators `*` and `/`."""
    told: list[str] = []
    for before, each, after in zip([None, *given], given, [*given[1:], None], strict=False):
        if each.kind is each.KEYWORD_ONLY and (before is None or before.kind < each.VAR_POSITIONAL):
            told.append("*")
        told.append(_parameter(each))
        if each.kind is each.POSITIONAL_ONLY and (after is None or after.kind is not each.POSITIONAL_ONLY):
            told.append("/")
    return told


def _parameter(each: Parameter) -> str:
    typed = "" if each.annotation is each.empty else f": {each.annotation}"
    equals = " = " if typed else "="
    default = "" if each.default is each.empty else f"{equals}{shown(each.default)}"
    return f"{_STARS.get(each.kind, '')}{each.name}{typed}{default}"
