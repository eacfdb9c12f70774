"""Every mutant still fits the source: a rule that has moved must not lose its mutant in silence."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS, SIMULATOR, Mutant

ROOT = Path(__file__).parents[2]


def test_each_can_be_applied(tmp_path: Path) -> None:
    for mutant in MUTANTS:
        path = tmp_path / "src" / "recruiter" / mutant.file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "src" / "recruiter" / mutant.file, path)

        mutant.apply(tmp_path)  # which says what does not fit

        ast.parse(path.read_text(), mutant.name)


def test_the_check_of_each_exists() -> None:
    checks = [(mutant.name, place) for mutant in MUTANTS if mutant.check != SIMULATOR for place in mutant.check.split()]
    for mutant, place in checks:
        file, *names = place.split("::")
        body = ast.parse((ROOT / file).read_text()).body
        for name in names:
            found = [node for node in body if getattr(node, "name", None) == name.partition("[")[0]]
            assert found, (mutant, place)
            body = getattr(found[0], "body", [])


def test_one_that_does_not_fit_says_so(tmp_path: Path) -> None:
    path = tmp_path / "src" / "recruiter" / "one.py"
    path.parent.mkdir(parents=True)
    path.write_text("twice\ntwice\n")
    with pytest.raises(LookupError, match="occurs 2 times"):
        Mutant("odd", "none", "one.py", "twice", "once").apply(tmp_path)


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
