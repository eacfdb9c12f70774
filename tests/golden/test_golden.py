"""Every sentence of a surface stands in one transcript: a change of wording touches that file and no test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recruiter.store.database import Store
from tests.golden.names import NAMES
from tests.golden.transcript import FOLDER, SURFACES, answered
from tests.golden.world import names


@pytest.fixture
def known(target: str, store: Store) -> Iterator[dict[str, Any]]:
    with names(target) as known:
        yield known


def test_every_error_has_the_sentence_of_the_transcript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no settings of this folder
    compare("errors", NAMES, "")


@pytest.mark.parametrize("surface", SURFACES[1:])
def test_commands_and_explanations_have_the_sentences_of_the_transcript(
    known: dict[str, Any], target: str, surface: str
) -> None:
    compare(surface, known, target)


def compare(surface: str, known: dict[str, Any], target: str) -> None:
    text = (FOLDER / f"{surface}.txt").read_text()
    answer = answered(text, known, target, exact=surface == "errors")
    assert answer.splitlines() == text.splitlines(), "run `make golden` and review the difference"
