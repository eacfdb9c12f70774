"""The pages about frameworks show parts of the example applications, which tests/contrib runs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.acceptance.docs.pages import ROOT, page

EXAMPLES = ROOT / "examples"


def code_of(place: Path) -> str:
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return "\n\n".join(file.read_text() for file in files)


@pytest.mark.parametrize(
    ("name", "example"),
    [("fastapi", "fastapi_orders.py"), ("flask", "flask_orders.py"), ("django", "django_orders")],
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
