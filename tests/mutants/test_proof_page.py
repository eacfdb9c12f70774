"""The pages about the proof name checks: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.mutants.catalogue import MUTANTS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/explanation/proof.md", *sorted((ROOT / "docs/proof").glob("*.md"))]
PAGE = "\n".join(page.read_text() for page in PAGES)


def test_every_test_that_they_name_is_there() -> None:
    missing = []
    for line in PAGE.splitlines():
        file = ""
        for name in re.findall(r"`(tests/[\w/]+\.py|test_\w+)(?:\[[^`]*\])?`", line):
            if name.startswith("tests/"):
                file = name
                found = (ROOT / name).exists()
            else:
                found = f"def {name}(" in (ROOT / file).read_text() if file else _anywhere(name)
            if not found:
                missing.append(f"{file} {name}")
    assert missing == []


def _anywhere(name: str) -> bool:
    return any(f"def {name}(" in path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


def test_they_have_every_mutant_and_no_other() -> None:
    table = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| (?:yes)? *\|$", PAGE, re.MULTILINE)
    mentioned = set(re.findall(r"mutants? ((?:`\w+`(?:, )?)+)", PAGE))

    assert sorted(table) == sorted(mutant.name for mutant in MUTANTS)
    assert {name for names in mentioned for name in re.findall(r"\w+", names)} <= set(table)
