"""What commands print: tables for people, JSON for scripts; and questions before something is lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from recruiter.domain.duration import humanize
from recruiter.errors import RecruiterError

Output = Literal["table", "json"]

Row = Mapping[str, Any]


def show(rows: Sequence[Row], columns: Sequence[str], output: Output, *, empty: str) -> None:
    """The rows: all of each as JSON, or these columns of them as a table."""
    if output == "json":
        print(as_json(list(rows)))
        return
    console = Console(highlight=False)
    if not rows:
        console.print(empty)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text(as_text(row.get(column))) for column in columns))
    console.print(table)


def show_one(row: Row, output: Output) -> None:
    """One thing, a line for each of its facts."""
    if output == "json":
        print(as_json(row))
        return
    console = Console(highlight=False)
    width = max(map(len, row), default=0)
    for name, value in row.items():
        if value not in (None, (), [], {}):
            console.print(
                f"[bold]{name.replace('_', ' '):<{width}}[/bold]  ", Text(as_text(value)), soft_wrap=True, sep=""
            )


def ask(question: str, yes: bool) -> bool:
    """Whether to go on: said already, or said now. The answer is no unless somebody says yes."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RecruiterError(f"{question} Nobody is there to answer; say --yes to do it without asking")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def as_text(value: Any) -> str:
    """For people: times in UTC to the second, durations in words."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, timedelta):
        return humanize(value)
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, Mapping):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    return ", ".join(as_text(each) for each in value) if isinstance(value, Iterable) else str(value)


def as_json(value: Any) -> str:
    return json.dumps(value, default=_plain, indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
