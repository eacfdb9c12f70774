"""Reads facts from the source that Python does not keep: attribute docstrings and the `# -- sections --` of a class."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

_SECTION = re.compile(r"^    # -- (.+?) -+$")


@dataclass(frozen=True)
class ClassSource:
    attributes: dict[str, str] = field(default_factory=dict)
    """Docstrings of fields and of attributes set in `__init__`, by name."""
    lines: dict[str, int] = field(default_factory=dict)
    """The line of each member's definition."""
    sections: dict[int, str] = field(default_factory=dict)
    """Section titles by the line on which they begin."""

    def section_of(self, member: str) -> str:
        before = [line for line in self.sections if line < self.lines.get(member, 0)]
        return self.sections[max(before)] if before else ""


@cache
def class_source(cls: type) -> ClassSource:
    try:
        text, tree = _parsed(sys.modules[cls.__module__])
    except (KeyError, OSError, TypeError):
        return ClassSource()
    inside: list[ast.stmt] = tree.body
    for name in cls.__qualname__.split("."):
        found = [node for node in inside if isinstance(node, ast.ClassDef) and node.name == name]
        if not found:
            return ClassSource()
        inside = found[-1].body
    attributes = _documented(inside)
    lines: dict[str, int] = {}
    for node in inside:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines[node.name] = node.lineno
            if node.name == "__init__":
                attributes |= _documented(node.body)
                lines |= {target: each.lineno for each in node.body for target in _targets(each)}
        for target in _targets(node):
            lines[target] = node.lineno
    numbers = range(found[-1].lineno, (found[-1].end_lineno or 0) + 1)
    titles = ((number, _SECTION.match(text[number - 1])) for number in numbers)
    return ClassSource(attributes, lines, {number: match[1] for number, match in titles if match})


@cache
def _parsed(module: ModuleType) -> tuple[list[str], ast.Module]:
    text = inspect.getsource(module)
    return text.splitlines(), ast.parse(text)


@cache
def imported_names(module: ModuleType) -> dict[str, str]:
    """The source module of each imported name, including imports for type checkers."""
    imports = (node for node in ast.walk(_parsed(module)[1]) if isinstance(node, ast.ImportFrom))
    return {alias.name: node.module for node in imports for alias in node.names if node.module is not None}


@cache
def module_source(module: ModuleType) -> dict[str, tuple[str, str]]:
    """The source and the docstring of each documented assignment in a module, by name."""
    text = inspect.getsource(module)
    tree = ast.parse(text)
    documented = _documented(tree.body)
    nodes = {target: node for node in tree.body for target in _targets(node)}
    return {name: (ast.get_source_segment(text, nodes[name]) or "", told) for name, told in documented.items()}


def _documented(body: list[ast.stmt]) -> dict[str, str]:
    """The docstrings of assignments: the string after each of them."""
    found = {}
    for node, following in pairwise(body):
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            told: Any = following.value.value
            if isinstance(told, str):
                found.update(dict.fromkeys(_targets(node), inspect.cleandoc(told)))
    return found


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names + [
        target.attr
        for target in targets
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    ]
