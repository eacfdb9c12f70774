"""The reference in the repository is what the code says today; pages about frameworks show parts of the examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.acceptance.docs.pages import DOCS, ROOT, page


def test_the_generated_pages_are_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "_site" / "reference.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)

    assert (checked.returncode, checked.stdout.strip()) == (0, ""), f"run `make reference`: {checked.stdout}"


def test_they_can_be_read_without_building_anything() -> None:
    assert "recruiter job list" in (DOCS / "reference" / "cli.md").read_text()
    assert "RECRUITER_LOG_CONFIG" in (DOCS / "reference" / "settings.md").read_text()
    assert (
        "def enqueue" in (DOCS / "reference" / "api" / "Task.md").read_text()
        or "enqueue(" in (DOCS / "reference" / "api" / "Task.md").read_text()
    )


EXAMPLES = ROOT / "examples"


def code_of(place: Path) -> str:
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return "\n\n".join(file.read_text() for file in files)


@pytest.mark.parametrize(
    ("name", "example"), [("fastapi", "fastapi_orders.py"), ("flask", "flask_orders.py"), ("django", "django_orders")]
)
def test_what_a_page_shows_is_in_its_example(name: str, example: str) -> None:
    shown = page(f"how-to/{name}.md")
    code = code_of(EXAMPLES / example)
    parts = [
        part.strip("\n") for block in shown.blocks if block.language == "py" for part in block.text.split("\n\n\n")
    ]

    assert len(parts) >= 3
    assert f"examples/{example.removesuffix('.py')}" in shown.text
    assert [part for part in parts if part not in code] == []


@pytest.mark.parametrize("name", ["fastapi", "flask"])
def test_a_page_can_be_pasted_as_printed(name: str) -> None:
    code = "\n".join(block.text for block in page(f"how-to/{name}.md").blocks if block.language == "py")
    pasted = ModuleType(f"pasted_{name}")
    sys.modules[pasted.__name__] = pasted  # where FastAPI looks up the names in annotations
    try:
        exec(compile(code, f"{name}.md", "exec"), vars(pasted))
        app = pasted.app if name == "fastapi" else pasted.create_app()
    finally:
        del sys.modules[pasted.__name__]

    assert "/receipts/" in str(app.routes if name == "fastapi" else app.url_map)
