"""Wrong arguments, types and results are errors in the user's editor, and right ones are not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = Path(__file__).with_name("editor.py")


CACHE = ROOT / ".mypy_cache" / "editor"
"""Of its own, because the flags are others; and kept, because everything that we import is checked too."""


def marked() -> set[tuple[int, str]]:
    """The lines of the file that are wrong, each with the kind of error."""
    lines = enumerate(CODE.read_text().splitlines(), 1)
    return {(number, kind) for number, line in lines for kind in re.findall(r"# E: (\S+)", line)}


def test_a_type_checker_sees_what_is_wrong_and_nothing_else() -> None:
    # given a file of right and wrong uses, where the wrong ones are marked with the kind of error
    expected = marked()

    # when mypy looks at it as it would in an editor
    check = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(CACHE), str(CODE)]
    output = subprocess.run(check, cwd=ROOT, capture_output=True, text=True).stdout

    # then it complains about exactly these
    found = {(int(line), kind) for line, kind in re.findall(r"editor\.py:(\d+): error: .*\[(\S+)\]", output)}
    assert found == expected, output
    assert len(expected) > 25


def test_pyright_reports_the_same_lines() -> None:
    pytest.importorskip("pyright")
    check = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(CODE)]
    output = subprocess.run(check, cwd=ROOT, capture_output=True, text=True).stdout

    found = {int(line) for line in re.findall(r"editor\.py:(\d+):\d+ - error", output)}
    assert found == {line for line, _ in marked()}, output
