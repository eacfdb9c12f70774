"""The glossary defines the words that users meet; ARCHITECTURE.md is true to the tree."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "recruiter"
DOCS = ROOT / "docs"


def glossary() -> list[str]:
    """The terms, in the order of the page."""
    text = (DOCS / "glossary.md").read_text()
    return [term for line in re.findall(r"^([a-z][\w ,]+)\n: ", text, re.MULTILINE) for term in line.split(", ")]


def test_the_glossary_defines_each_term_once() -> None:
    terms = glossary()

    assert 30 <= len(terms) <= 50
    assert sorted(set(terms)) == sorted(terms)


def test_every_term_is_used_on_another_page() -> None:
    pages = [page for page in DOCS.rglob("*.md") if page.name != "glossary.md"]
    text = " ".join(" ".join(page.read_text().lower().split()) for page in pages)

    assert [term for term in glossary() if term not in text] == []


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
