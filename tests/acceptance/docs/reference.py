"""What the reference says, in a form that can be compared with the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.acceptance.docs.pages import Page

Parameters = list[tuple[str, inspect._ParameterKind, bool]]
"""Name, kind, and whether it may be left out."""

SAME_AS_ITS_TWIN = "…"

_CALL = re.compile(r"`([A-Za-z_]+(?:\.[a-z_]+)?)\(([^`]*)\)`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def documented_calls(page: Page) -> dict[str, str]:
    """Every `Name.method(parameters)` on the page, with what stands between the parentheses."""
    return {match[1]: " ".join(match[2].split()) for match in _CALL.finditer(page.prose)}


def as_written(parameters: str) -> Parameters:
    """Of a call as it is documented."""
    (function,) = ast.parse(f"def f({parameters}): pass").body
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    optional = len(plain) - len(given.defaults)
    found: Parameters = [
        (each.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, place >= optional) for place, each in enumerate(plain)
    ]
    if given.vararg:
        found.append((given.vararg.arg, inspect.Parameter.VAR_POSITIONAL, False))
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append((each.arg, inspect.Parameter.KEYWORD_ONLY, default is not None))
    if given.kwarg:
        found.append((given.kwarg.arg, inspect.Parameter.VAR_KEYWORD, False))
    return found


def as_defined(call: Callable[..., Any]) -> Parameters:
    """Of the same in the code."""
    parameters = [each for each in inspect.signature(call).parameters.values() if each.name != "self"]
    return [(each.name, each.kind, each.default is not each.empty) for each in parameters]


def public_members(cls: type, root: type = object) -> Iterator[tuple[str, Any]]:
    """What a class offers that its `root` does not have already."""
    for name in dir(cls):
        defined = inspect.getattr_static(cls, name)
        if not name.startswith("_") and inspect.getattr_static(root, name, None) is not defined:
            yield name, defined


def tree(text: str) -> dict[str, str | None]:
    """Of a drawing such as that of the errors: each name with the one it hangs on."""
    parents: dict[str, str | None] = {}
    line_of: list[str] = []
    for line in text.splitlines():
        match = re.match(r"([│├└─ ]*)(\w+)", line)
        assert match, line
        depth = len(match[1]) // 4
        line_of[depth:] = [match[2]]
        parents[match[2]] = line_of[depth - 1] if depth else None
    return parents


def links(page: Page) -> Iterator[tuple[str, Path, str]]:
    """The links to other files, each with its file and its anchor."""
    for link in _LINK.findall(page.prose):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            yield link, (page.path.parent / file).resolve() if file else page.path, anchor


def anchors(path: Path) -> set[str]:
    """The headings of a file as they are linked to."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}
