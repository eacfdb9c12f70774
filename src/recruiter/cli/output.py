"""The output of commands: tables for people, JSON for scripts; and questions.

All output passes through this module, which makes it harmless: ids, names and messages come from other people, and
could otherwise control the terminal. So no other module of `cli` calls `print` or creates a `Console` (a linter checks
it), and markup in square brackets is never interpreted.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from recruiter.domain.duration import humanize
from recruiter.domain.text import json_safe, mask, one_line, printable
from recruiter.errors import (
    ApplicationError,
    InvalidDuration,
    InvalidFilter,
    InvalidName,
    InvalidTarget,
    RecruiterError,
    SettingsError,
    StoreError,
)

Output = Annotated[
    Literal["table", "json", "jsonl"], Parameter(help="A table, one JSON document, or one JSON document per line.")
]

Row = Mapping[str, Any]

_CONTINUED = "\n    "
_BLANKS = re.compile(r" +((?:\x1b\[[0-9;]*m)*)\n")


class SafeConsole(Console):
    """A console that writes out whatever a terminal would obey, and knows no markup."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def console(*, stderr: bool = False) -> SafeConsole:
    """A console without colours if it is not a terminal, or NO_COLOR is set. Then 160 characters are one line."""
    stream = sys.stderr if stderr else sys.stdout
    fixed = None if stream.isatty() or os.environ.get("COLUMNS", "").isdigit() else 160
    return SafeConsole(file=stream, highlight=False, markup=False, emoji=False, width=fixed)


def write_anything() -> None:
    """Characters that the terminal's encoding does not have are written out, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: object, *, stderr: bool = False) -> None:
    """Prints a sentence. Further lines are indented, so that none looks like output of the command."""
    print(_CONTINUED.join(printable(str(text)).splitlines()), file=sys.stderr if stderr else sys.stdout)


def write_script(text: str) -> None:
    print(text)


def say_json(value: Any, output: Output) -> None:
    print(as_json(value, output))


def show(rows: Sequence[Row], columns: Sequence[str | Column], output: Output, *, empty: str) -> None:
    """Prints the rows: all of each as JSON, or these columns of them as a table that fits the terminal."""
    if output == "json":
        say_json(list(rows), output)
    elif output == "jsonl":
        for row in rows:
            say_json(row, output)
    elif not rows:
        say(empty)
    else:
        page = console()
        write(page, table_of(rows, columns, page.width))


def write(page: Console, *parts: RenderableType, soft_wrap: bool = False) -> None:
    """Prints without trailing blanks."""
    with page.capture() as captured:
        page.print(*parts, sep="\n", soft_wrap=soft_wrap)
    page.file.write(_BLANKS.sub(r"\1\n", captured.get()))


def ask(question: str, yes: bool) -> bool:
    """Asks for confirmation, unless `yes`. The default is no."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RecruiterError(f"{question} There is no terminal to answer on; add --yes to skip the question")
    return input(f"{printable(question)} [y/N] ").strip().lower() in ("y", "yes")


def choose(question: str, names: Sequence[str]) -> str | None:
    """Asks for a name from the list, by number or name; None without an answer."""
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
        say(f"{one_line(answer)} is not in the list.")


def as_text(value: Any) -> str:
    """A value for people: times in UTC to the second, durations in words; nothing that a terminal would obey."""
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
    return ", ".join(as_text(item) for item in value) if isinstance(value, Iterable) else one_line(str(value))


def as_json(value: Any, output: Output = "json") -> str:
    """Over several lines, or in one."""
    return json_safe(json.dumps(value, default=_plain, indent=None if output == "jsonl" else 2, ensure_ascii=False))


def as_iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    """The form of a value that JSON does not know."""
    if isinstance(value, datetime):
        return as_iso(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


def print_error(error: RecruiterError) -> None:
    """On standard error, without secrets. An application that cannot be loaded is shown the place in its own code."""
    # Imported here: `recruiter --help` must not wait for it.
    is_application = isinstance(error, ApplicationError)
    text = import_module("recruiter.application").account(error) if is_application else str(error)
    say(mask(f"recruiter: {text}"), stderr=True)


def exit_code(error: RecruiterError) -> int:
    match error:
        case SettingsError() | InvalidFilter() | InvalidTarget() | InvalidDuration() | InvalidName():
            return 2
        case ApplicationError():
            return 3
        case StoreError():
            return 4
        case _:
            return 1


# -- tables that fit, and figures as people read them: 12,034, 3.2 ms, ▁▃▇ -------------------------------------------

_GAP_CELLS = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Rank 0 is always shown; the highest rank is left out first."""

    name: str
    rank: int = 0
    fair: int | None = None
    """The width to which it may be cut; None for no cut."""
    whole: bool = False
    """It is wrapped, never cut."""
    right: bool = False
    title: str | None = None

    @property
    def header(self) -> str:
        return self.name.replace("_", " ") if self.title is None else self.title

    @property
    def justify(self) -> Literal["left", "right"]:
        return "right" if self.right else "left"


def table_of(rows: Sequence[Row], columns: Iterable[str | Column], width: int) -> Table:
    """A table of as many columns as fit, in their order. Columns with the highest rank are left out first, and empty
    columns unless their rank is 0. Cut text ends with `…`."""
    candidates = [Column(column) if isinstance(column, str) else column for column in columns]
    texts = {column: [as_text(row.get(column.name)) for row in rows] for column in candidates}
    full = {column: max(map(cell_len, (column.header, *texts[column]))) for column in candidates}
    kept = [column for column in candidates if column.rank == 0 or any(texts[column])]
    while len(kept) > 1 and _room(kept, full) > width and max(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP_CELLS, 0, 0))
    for column, size in _widths(kept, full, width).items():
        table.add_column(
            column.header,
            justify=column.justify,
            width=size,
            no_wrap=not _folds(column),
            overflow="fold" if _folds(column) else "ellipsis",
        )
    for place in range(len(rows)):
        table.add_row(*(Text(texts[column][place]) for column in kept))
    return table


def _folds(column: Column) -> bool:
    return column.whole or column.fair is None


def _fair(column: Column, full: int) -> int:
    return full if column.fair is None else min(full, max(column.fair, cell_len(column.header)))


def _room(columns: Sequence[Column], full: Mapping[Column, int]) -> int:
    return sum(_fair(column, full[column]) for column in columns) + _GAP_CELLS * (len(columns) - 1)


def _widths(columns: Sequence[Column], full: Mapping[Column, int], width: int) -> dict[Column, int]:
    """The width of each column: its fair width, and the rest for columns that need more, the lowest rank first. Without
    room, the longest text shrinks first, then the longest number; no column becomes narrower than its header."""
    widths = {column: _fair(column, full[column]) for column in columns}
    left = width - _room(columns, full)
    for column in sorted(columns, key=lambda column: column.rank):
        more = max(0, min(left, full[column] - widths[column]))
        widths[column] += more
        left -= more
    while left < 0:
        wider = [column for column in columns if widths[column] > max(8, cell_len(column.header))]
        if not wider:
            break
        widths[max(wider, key=lambda column: (column.fair is not None, widths[column]))] -= 1
        left += 1
    return widths


_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.:-=+*#"


def number(value: float) -> str:
    """With thousands apart; a fraction only where it matters."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}" if value >= 1 else f"{value:.2f}"


def sparkline(values: Sequence[float], *, plain: bool = False) -> str:
    """One bar for each; the highest is full, and nothing has none."""
    bars, most = (_PLAIN_BARS if plain else _BARS), max(values, default=0)
    return "".join(bars[min(7, int(value / most * 8))] if value else " " for value in values) if most else ""


def bar(part: float, width: int, *, plain: bool = False) -> str:
    """How far: ████░░░░."""
    full = round(max(0.0, min(1.0, part)) * width)
    done, left = ("#", ".") if plain else ("█", "░")
    return done * full + left * (width - full)
