"""What the source says beside what Python keeps: docstrings of attributes, and the `# -- sections --` of a class."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from types import ModuleType
from typing import Any

_SECTION = re.compile(r"^    # -- (.+?) -+$")


@dataclass(frozen=True)
class ClassSource:
    attributes: dict[str, str] = field(default_factory=dict)
    """Docstrings of fields and of what `__init__` sets, by name."""
    lines: dict[str, int] = field(default_factory=dict)
    """Where each member is defined."""
    sections: dict[int, str] = field(default_factory=dict)
    """The title that begins at a line."""

    def section_of(self, member: str) -> str:
        before = [line for line in self.sections if line < self.lines.get(member, 0)]
        return self.sections[max(before)] if before else ""


@lru_cache
def class_source(cls: type) -> ClassSource:
    try:
        text = inspect.getsource(cls)
    except (OSError, TypeError):
        return ClassSource()
    (tree,) = ast.parse(inspect.cleandoc(text) if text.startswith(" ") else text).body
    assert isinstance(tree, ast.ClassDef)
    attributes = _documented(tree.body)
    lines: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines[node.name] = node.lineno
            if node.name == "__init__":
                attributes |= _documented(node.body)
                lines |= {target: each.lineno for each in node.body for target in _targets(each)}
        for target in _targets(node):
            lines[target] = node.lineno
    found = ((number, _SECTION.match(line)) for number, line in enumerate(text.splitlines(), 1))
    return ClassSource(attributes, lines, {number: match[1] for number, match in found if match})


@lru_cache
def imported_names(module: ModuleType) -> dict[str, str]:
    """Where a module imports its names from, those for type checkers too."""
    imports = (node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom))
    return {alias.name: node.module for node in imports for alias in node.names if node.module is not None}


@lru_cache
def module_source(module: ModuleType) -> dict[str, tuple[str, str]]:
    """What is assigned in a module and has a docstring: its source and that docstring, by name."""
    text = inspect.getsource(module)
    tree = ast.parse(text)
    documented = _documented(tree.body)
    nodes = {target: node for node in tree.body for target in _targets(node)}
    return {name: (ast.get_source_segment(text, nodes[name]) or "", told) for name, told in documented.items()}


def _documented(body: list[ast.stmt]) -> dict[str, str]:
    """Of each assignment that is followed by a text."""
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
