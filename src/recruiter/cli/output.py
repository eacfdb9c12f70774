"""What commands print: tables for people, JSON for scripts; and questions before something is lost.

A table fits the terminal: where it is narrow, the columns that matter least are left out, and what is cut ends with …
Where nobody watches (a pipe, a file), nothing is left out or cut.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from recruiter.domain.duration import humanize
from recruiter.errors import RecruiterError

Output = Literal["table", "json", "jsonl"]

Row = Mapping[str, Any]

_GAP = 2


def terminal() -> Console:
    """Where tables go. Its width is the terminal's, or what COLUMNS says; else there is no end to it."""
    watched = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if watched else 100_000)


def show(rows: Sequence[Row], columns: Sequence[str], output: Output, *, empty: str, least: Sequence[str] = ()) -> None:
    """The rows: all of each as JSON, or these columns of them as a table. Of the columns, those in `least` are left out
    first where they do not fit, from the first on."""
    if output != "table":
        print_json(list(rows), output)
        return
    console = terminal()
    if not rows:
        console.print(empty)
        return
    texts = {column: [as_line(row.get(column)) for row in rows] for column in columns}
    shown = _fitting(texts, least, console.width)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
    for column in shown:
        numbers = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(
            column.replace("_", " "), justify="right" if numbers else "left", overflow="ellipsis", no_wrap=True
        )
    for place in range(len(rows)):
        table.add_row(*(Text(texts[column][place]) for column in shown))
    console.print(table)


def show_one(row: Row, output: Output) -> None:
    """One thing, a line for each of its facts."""
    if output != "table":
        print_json(row, output)
        return
    console = terminal()
    print_facts(console, row)


def print_facts(console: Console, row: Row) -> None:
    """A line for each fact; what is empty is not told. Long ones go on beneath themselves."""
    facts = {name: text for name, value in row.items() if (text := as_text(value))}
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts.items():
        table.add_row(name.replace("_", " "), Text(text))
    console.print(table)


def print_json(value: Any, output: Output) -> None:
    """Indented for people who look, or one record a line for programs that read line by line."""
    if output == "json":
        print(as_json(value))
    else:
        for record in value if isinstance(value, list) else [value]:
            print(json.dumps(record, default=_plain, ensure_ascii=False))


def ask(question: str, yes: bool) -> bool:
    """Whether to go on: said already, or said now. The answer is no unless somebody says yes."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RecruiterError(f"{question} Nobody is there to answer; say --yes to do it without asking")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Any]:
    """A bar on stderr, if somebody watches; told how many are done."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


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
        return json.dumps(value, default=_plain, ensure_ascii=False) if value else ""
    return ", ".join(as_text(each) for each in value) if isinstance(value, Iterable) else str(value)


def as_line(value: Any) -> str:
    """The same on one line."""
    return " ".join(as_text(value).split())


def as_json(value: Any) -> str:
    return json.dumps(value, default=_plain, indent=2, ensure_ascii=False)


def _fitting(texts: Mapping[str, Sequence[str]], least: Sequence[str], width: int) -> list[str]:
    needed = {column: max(len(column), *map(len, lines)) for column, lines in texts.items()}
    shown = [column for column in texts if any(texts[column])]  # nobody misses a column with nothing in it
    shown = shown or list(texts)
    for column in least:
        if sum(needed[each] + _GAP for each in shown) - _GAP <= width:
            break
        if column in shown:
            shown.remove(column)
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
