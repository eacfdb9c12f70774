"""Tables that fit."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from recruiter.cli.output import Column, table_of

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
