"""A class name has one meaning in the whole source."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def test_no_two_modules_define_a_class_of_the_same_name() -> None:
    modules = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path.relative_to(SOURCE)))

    assert {name: where for name, where in modules.items() if len(where) > 1} == {}
