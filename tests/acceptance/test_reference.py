"""The reference in the repository is what the code says today."""

from __future__ import annotations

import subprocess
import sys

from tests.acceptance.docs.pages import DOCS, ROOT


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
