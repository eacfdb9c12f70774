"""What is imported when, and that names which are imported on first use are the ones that type checkers see."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest

import recruiter
from recruiter import errors
from recruiter.cli.main import COMMANDS, app

ROOT = Path(__file__).parents[2]

HEAVY = {"pymongo", "bson", "pydantic", "pydantic_settings", "psutil", "rich", "cyclopts", "fastapi", "asyncio", "yaml"}
"""Modules that take long to import, or that not everybody has."""


def imported_by(statement: str) -> set[str]:
    """The top-level modules that a fresh Python has after this statement, besides what it starts with."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return set(printed.split())


@pytest.mark.parametrize(
    ("statement", "not_imported"),
    [
        ("import recruiter", HEAVY),
        ("import recruiter.pytest_plugin", HEAVY - {"rich", "asyncio"}),  # which pytest may have imported
        ("import recruiter.cli.main", HEAVY - {"rich", "cyclopts", "asyncio"}),
        ("from recruiter import Recruiter", HEAVY - {"pymongo", "bson", "asyncio", "psutil", "pydantic"}),
    ],
)
def test_what_an_import_does_not_bring_along(statement: str, not_imported: set[str]) -> None:
    assert imported_by(statement) & not_imported == set()


def test_every_public_name_is_there_and_is_what_it_says() -> None:
    for name in recruiter.__all__:
        found = getattr(recruiter, name)
        assert getattr(found, "__name__", name) == name
        assert name in dir(recruiter)
    with pytest.raises(AttributeError, match="has no attribute 'Recruter'"):
        _ = recruiter.Recruter


def test_the_names_of_packages_are_imported_under_type_checking_too() -> None:
    for package in (recruiter, import_module("recruiter.processes.inline")):
        source = inspect.getsource(package)
        block = source[source.index("if TYPE_CHECKING:") :].partition("\n\n")[0]
        names = set(package.__all__) - set(vars(errors)["__all__"])
        assert [name for name in names if not re.search(rf"\b{name}$", block, re.MULTILINE)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_of_commands_says(name: str) -> None:
    module, _, attribute = COMMANDS[name][0].partition(":")

    assert hasattr(import_module(f"recruiter.cli.{module}"), attribute)
    assert name in list(app)


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert recruiter.__version__ == project["version"]


SOURCE = Path(__file__).parents[2] / "src"


def test_no_two_modules_define_a_class_of_the_same_name() -> None:
    modules = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path.relative_to(SOURCE)))

    assert {name: where for name, where in modules.items() if len(where) > 1} == {}
