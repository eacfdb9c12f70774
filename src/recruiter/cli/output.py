"""What commands print: tables for people, JSON for scripts; and questions before something is lost.

Everything that is printed passes here, and is made harmless here: ids, names and messages are other people's texts, and
could otherwise take over the terminal. So nothing else in `cli` calls `print` or makes a `Console` (the linter holds
it), and markup in square brackets is never interpreted.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from recruiter.cli.columns import Column, table_of
from recruiter.domain.duration import humanize
from recruiter.domain.text import json_safe, mask, one_line, printable
from recruiter.errors import ApplicationError, InvalidFilter, RecruiterError, SettingsError, StoreError

Output = Annotated[
    Literal["table", "json", "jsonl"], Parameter(help="A table for people; one JSON document; or one in each line.")
]

Row = Mapping[str, Any]

PIPED_WIDTH = 160
"""What goes to a file or another program looks the same on every terminal."""

_CONTINUED = "\n    "
_BLANKS = re.compile(r" +((?:\x1b\[[0-9;]*m)*)\n")


class Page(Console):
    """A console that writes out whatever a terminal would obey, and knows no markup."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def console(*, stderr: bool = False) -> Page:
    """Where people read. Without colours if it is no terminal, or NO_COLOR is set."""
    stream = sys.stderr if stderr else sys.stdout
    fixed = None if stream.isatty() or os.environ.get("COLUMNS", "").isdigit() else PIPED_WIDTH
    return Page(file=stream, highlight=False, markup=False, emoji=False, width=fixed)


def write_anything() -> None:
    """Characters that the terminal's encoding does not have are written out, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: object, *, stderr: bool = False) -> None:
    """A sentence. Further lines are indented, so that none can look like a sentence of ours."""
    print(_CONTINUED.join(printable(str(text)).splitlines()), file=sys.stderr if stderr else sys.stdout)


def write_script(text: str) -> None:
    """A text of ours for a program to read, as it is."""
    print(text)


def say_json(value: Any, output: Output) -> None:
    """One thing as JSON."""
    print(as_json(value, output))


def show(rows: Sequence[Row], columns: Sequence[str | Column], output: Output, *, empty: str) -> None:
    """The rows: all of each as JSON, or these columns of them as a table that fits the terminal."""
    if output == "json":
        say_json(list(rows), output)
    elif output == "jsonl":
        for row in rows:
            say_json(row, output)
    elif not rows:
        say(empty)
    else:
        page = console()
        write(page, table_of(rows, columns, page.width, as_text))


def write(page: Console, *parts: RenderableType, soft_wrap: bool = False) -> None:
    """Prints without the blanks that fill lines up to the width: nobody needs them in a file."""
    with page.capture() as captured:
        page.print(*parts, sep="\n", soft_wrap=soft_wrap)
    page.file.write(_BLANKS.sub(r"\1\n", captured.get()))


def ask(question: str, yes: bool) -> bool:
    """Whether to go on: said already, or said now. The answer is no unless somebody says yes."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RecruiterError(f"{question} There is no terminal to answer on; add --yes to skip the question")
    return input(f"{printable(question)} [y/N] ").strip().lower() in ("y", "yes")


def choose(question: str, names: Sequence[str]) -> str | None:
    """One of these, by its number or its name; None when the person gives no answer."""
    if not sys.stdin.isatty():
        raise RecruiterError(
            f"{question} There is no terminal to answer on; name one of: {', '.join(map(one_line, names))}"
        )
    for number, name in enumerate(names, 1):
        say(f"{number:4}  {one_line(name)}")
    while True:
        answer = input(f"{question} [1-{len(names)}, or nothing to leave] ").strip()
        if not answer:
            return None
        if answer in names:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        say(f"{one_line(answer)} is none of them.")


def as_text(value: Any) -> str:
    """For people: times in UTC to the second, durations in words; nothing that a terminal would obey."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, timedelta):
        return humanize(value)
    if isinstance(value, str | int | float):
        return one_line(str(value))
    if isinstance(value, Mapping):
        return one_line(json.dumps(value, default=_plain, ensure_ascii=False))
    return ", ".join(as_text(each) for each in value) if isinstance(value, Iterable) else one_line(str(value))


def as_json(value: Any, output: Output = "json") -> str:
    """Over several lines, or in one."""
    return json_safe(json.dumps(value, default=_plain, indent=None if output == "jsonl" else 2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


def print_error(error: RecruiterError) -> None:
    """On standard error, without secrets."""
    say(mask(f"recruiter: {error}"), stderr=True)


def exit_code(error: RecruiterError) -> int:
    match error:
        case SettingsError() | InvalidFilter():
            return 2
        case ApplicationError():
            return 3
        case StoreError():
            return 4
        case _:
            return 1
