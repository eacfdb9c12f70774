"""What commands print: tables for people, JSON for scripts; and questions before something is lost."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console, RenderableType

from recruiter.cli.columns import Column, table_of
from recruiter.domain.duration import humanize
from recruiter.errors import RecruiterError

Output = Annotated[
    Literal["table", "json", "jsonl"], Parameter(help="A table for people; one JSON document; or one in each line.")
]

Row = Mapping[str, Any]

PIPED_WIDTH = 160
"""What goes to a file or another program looks the same on every terminal."""

_BLANKS = re.compile(r" +((?:\x1b\[[0-9;]*m)*)\n")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def console(*, stderr: bool = False) -> Console:
    """Where people read. Without colours if it is no terminal, or NO_COLOR is set."""
    stream = sys.stderr if stderr else sys.stdout
    fixed = None if stream.isatty() or os.environ.get("COLUMNS", "").isdigit() else PIPED_WIDTH
    return Console(file=stream, highlight=False, width=fixed)


def show(rows: Sequence[Row], columns: Sequence[str | Column], output: Output, *, empty: str) -> None:
    """The rows: all of each as JSON, or these columns of them as a table that fits the terminal."""
    if output == "json":
        print(as_json(list(rows)))
    elif output == "jsonl":
        for row in rows:
            print(as_json(row, output))
    elif not rows:
        print(empty)
    else:
        page = console()
        write(page, table_of(rows, columns, page.width, as_text))


def write(page: Console, *parts: RenderableType, soft_wrap: bool = False) -> None:
    """Prints without the blanks that fill lines up to the width: nobody needs them in a file."""
    with page.capture() as captured:
        page.print(*parts, sep="\n", soft_wrap=soft_wrap)
    page.file.write(_BLANKS.sub(r"\1\n", captured.get()))


def show_one(row: Row, output: Output) -> None:
    """One thing as JSON."""
    print(as_json(row, output))


def ask(question: str, yes: bool) -> bool:
    """Whether to go on: said already, or said now. The answer is no unless somebody says yes."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RecruiterError(f"{question} Nobody is there to answer; say --yes to do it without asking")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def choose(question: str, names: Sequence[str]) -> str | None:
    """One of these, by its number or its name; None when the person gives no answer."""
    if not sys.stdin.isatty():
        raise RecruiterError(f"{question} Nobody is there to answer; name one of: {harmless(', '.join(names))}")
    for number, name in enumerate(names, 1):
        print(f"{number:4}  {harmless(name)}")
    while True:
        answer = input(f"{question} [1-{len(names)}, or nothing to leave] ").strip()
        if not answer:
            return None
        if answer in names:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        print(f"{harmless(answer)} is none of them.")


def as_text(value: Any) -> str:
    """For people: times in UTC to the second, durations in words; nothing that a terminal would obey."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, timedelta):
        return humanize(value)
    if isinstance(value, str | int | float):
        return harmless(str(value))
    if isinstance(value, Mapping):
        return harmless(json.dumps(value, default=_plain, ensure_ascii=False))
    return ", ".join(as_text(each) for each in value) if isinstance(value, Iterable) else harmless(str(value))


def harmless(text: str) -> str:
    """With control characters written out: a job's message or log could otherwise take over the terminal."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def as_json(value: Any, output: Output = "json") -> str:
    """Over several lines, or in one."""
    return json.dumps(value, default=_plain, indent=None if output == "jsonl" else 2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
