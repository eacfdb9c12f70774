"""What is stored is data: nothing in the source can turn it into code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import recruiter

SOURCE = Path(recruiter.__file__).parent
FORMATS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "jsonpickle"}
"""Formats whose readers make objects of any class, or run code."""
RUNS_CODE = {"eval", "exec", "__import__"}
KNOWN = {
    "domain/migration.py": "reads the pickles of another scheduler; its reader knows no class but dates",
    "cli/dev.py": "runs what a person types into the shell",
    "application.py": "imports the application that a person names when a process starts",
    "cli/web.py": "imports a part of this package, which may not be installed",
    "contrib/django/backend.py": "imports a part of Django",
    "contrib/django/console.py": "imports the sessions that the settings of Django name",
    "first_use.py": "imports what the source names",
}
"""Files that do one of these things, and why it is none of the database's business."""


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text()))


def modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [(node.module or "").partition(".")[0]] if isinstance(node, ast.ImportFrom) and not node.level else []


def called(node: ast.AST) -> str:
    """The name of what is called, after a dot if it is of something."""
    called = node.func if isinstance(node, ast.Call) else None
    return called.id if isinstance(called, ast.Name) else f".{called.attr}" if isinstance(called, ast.Attribute) else ""


FILES = sorted(SOURCE.rglob("*.py"))


def test_nothing_reads_a_format_that_runs_code() -> None:
    """What is stored is looked up among what is loaded: it is never imported, nor read by what can run code."""
    assert [path for path in FILES if str(path.relative_to(SOURCE)) not in KNOWN and _can_run_code(path)] == []


def _can_run_code(path: Path) -> bool:
    found = list(nodes(path))
    reads = FORMATS.intersection(module for node in found for module in modules(node))
    runs = RUNS_CODE.intersection(map(called, found))
    imports = any(called(node).endswith("import_module") and not _names_it(node) for node in found)
    return bool(reads or runs or imports)


def _names_it(node: ast.AST) -> bool:
    """Whether the name of the module is written there."""
    return isinstance(node, ast.Call) and bool(node.args) and isinstance(node.args[0], ast.Constant)
