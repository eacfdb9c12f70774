"""What commands print: tables that fit, progress of a long search, attempts in words."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from recruiter.cli import job
from recruiter.cli.output import Column, table_of
from recruiter.cli.records import _attempts, _events
from recruiter.domain.job import Execution, Job
from recruiter.domain.search.filter import JobFilter, Page
from tests.samples import a_job

COLUMNS = (
    Column("id", fair=10, whole=True),
    Column("task", fair=10),
    Column("note", rank=1, fair=10),
    Column("owner", rank=2),
)
ROWS: list[dict[str, Any]] = [
    {"id": "short", "task": "a-task-with-a-long-name", "note": "something to be said at length", "owner": "ada"},
    {"id": "an-id-of-20-letters-", "task": "x", "note": None, "owner": "bob"},
]


def drawn(width: int, columns: tuple[Column | str, ...] = COLUMNS) -> list[str]:
    console = Console(width=width, highlight=False, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(table_of(ROWS, columns, width))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_narrow_table_drops_the_least_important_columns_first() -> None:
    heads = {width: drawn(width)[0].split() for width in (100, 41, 35, 25)}

    assert heads == {
        100: ["id", "task", "note", "owner"],
        41: ["id", "task", "note", "owner"],
        35: ["id", "task", "note"],
        25: ["id", "task"],
    }


def test_what_is_cut_says_so_and_ids_are_not() -> None:
    lines = drawn(25)

    assert lines[1].endswith("…")
    assert "an-id-of-20-letters-" in "".join(line.split("  ")[0] for line in lines)
    assert max(map(len, lines)) <= 25


def test_however_narrow_it_is_it_does_not_fail() -> None:
    for width in range(1, 60):
        assert drawn(width)


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


NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"snoozes": 1}, "0, deferred once"),
        ({"snoozes": 5, "conflicts": 2}, "0, deferred 3 times, deferred because of conflicting transactions twice"),
        ({"attempts": 2, "crashes": 2}, "2, its process died twice"),
        ({"attempts": 1, "locked_by": "w1"}, "1 ended, 1 running"),
    ],
)
def test_a_job_counts_its_attempts_in_words(counts: dict[str, object], words: str) -> None:
    assert _attempts(Job("j", "send", {}, NOW, NOW, **counts)) == words  # type: ignore[arg-type]


def test_an_attempt_after_the_death_of_a_worker_has_a_number_of_its_own() -> None:
    died = Execution(NOW, NOW, "w1", crashed=True, message="worker w1 died")
    job = Job("j", "send", {}, NOW, NOW, executions=(died,), worker_deaths=1, locked_by="w2", locked_at=NOW)

    started = [event for _, event in _events(job) if "started" in event]

    assert started == ["attempt 1 started on w1", "attempt 2 started on w2"]


def test_a_listing_of_all_jobs_goes_on_after_a_page_without_a_match() -> None:
    """A page is empty if no job among the documents that it may read matches."""
    pages: dict[str | None, Page[Job]] = {None: Page((), next="more"), "more": Page((a_job(),))}
    listed = SimpleNamespace(jobs=SimpleNamespace(list=lambda *_, after, **__: pages[after]))

    found = [page.jobs for page in job._pages(cast(Any, listed), JobFilter(), 0, None, full=True)]

    assert [len(jobs) for jobs in found] == [0, 1]
