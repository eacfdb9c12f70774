"""What people see while a command takes its time."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from recruiter.cli import job


@pytest.fixture(params=[True, False], ids=["a terminal", "a file"])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, io.StringIO]:
    said = io.StringIO()
    console = Console(file=said, force_terminal=request.param, width=80)
    monkeypatch.setattr(job, "console", lambda **_: console)
    return request.param, said


def test_a_long_search_shows_its_progress_on_a_terminal(
    terminal: tuple[bool, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_QUIET_SECONDS", 0.0)
    watched, said = terminal

    with job.looking() as tell:
        tell(120_000, 3)

    assert ("read 120,000 jobs, found 3" in said.getvalue()) == watched
