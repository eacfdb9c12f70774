"""The glossary has every word that a module or a public class is named by; ARCHITECTURE.md is true to the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import recruiter

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "recruiter"

PLAIN = """
api app check dict first main name names one plugin pytest text type types use version versions
alone blocked cancelled did embedded exception exists failed forever found invalid large later locked not old only out
read refused select start stopped timed too unknown unreachable unsupported
"""
"""Words of every program; adjectives and verbs in the names of exceptions."""


def words_of_modules() -> set[str]:
    places = [p for p in SOURCE.rglob("*.py") if p.relative_to(SOURCE).parts[0] not in ("web", "contrib")]
    names = {place.parent.name if place.stem == "__init__" else place.stem for place in places}
    return {word for name in names for word in name.split("_") if word}


def words_of_classes() -> set[str]:
    classes = [name for name in recruiter.__all__ if name[:1].isupper()]
    return {word.lower() for name in classes for word in re.findall(r"[A-Z][a-z]+", name)}


def glossary() -> set[str]:
    return set(re.findall(r"[a-z]+", (ROOT / "docs" / "glossary.md").read_text().lower()))


def is_explained(word: str, known: set[str]) -> bool:
    return word in PLAIN.split() or not known.isdisjoint({word, f"{word}s", word.removesuffix("s"), f"{word[:-3]}y"})


@pytest.mark.parametrize("words", [words_of_modules, words_of_classes], ids=["modules", "public classes"])
def test_every_noun_is_in_the_glossary(words: object) -> None:
    assert callable(words)
    known = glossary()

    assert sorted(word for word in words() if not is_explained(word, known)) == [], "add it to docs/glossary.md"


def test_the_architecture_names_files_and_folders_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text)) | set(
        re.findall(r"\b(\w+\.py)\b", text.split("## The tree")[1])
    )
    files = [f"/{place.relative_to(ROOT)}" for place in (*SOURCE.rglob("*"), *(ROOT / "tests").rglob("*.py"))]

    missing = [name for name in named if not any(file.endswith(f"/{name.rstrip('/')}") for file in files)]

    assert sorted(missing) == [], "ARCHITECTURE.md names what is not there"


def test_the_architecture_names_every_module_at_the_top_every_step_and_every_view() -> None:
    tree = (ROOT / "ARCHITECTURE.md").read_text().split("## The tree")[1]
    folders = {f"{place.parent.name}/" for place in SOURCE.glob("*/__init__.py")}
    modules = {place.name for place in SOURCE.glob("[a-z]*.py")}
    verbs = {place.stem for folder in ("steps", "views") for place in (SOURCE / folder).glob("[a-z]*.py")}

    missing = [name for name in folders | modules | verbs if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", tree)]

    assert sorted(missing) == [], "ARCHITECTURE.md does not name what is there"
