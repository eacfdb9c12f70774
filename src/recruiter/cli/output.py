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
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from recruiter.first_use import ImportedOnUse

if TYPE_CHECKING:
    from recruiter import application
else:
    application = ImportedOnUse("recruiter.application")

Output = Annotated[
    Literal["table", "json", "jsonl"], Parameter(help="A table, one JSON document, or one JSON document per line.")
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


def report(text: str, facts: Mapping[str, Any], output: Output) -> None:
    """The result of a command that changes something: a sentence for people, the facts for scripts."""
    if output == "table":
        say(text)
    else:
        say_json(facts, output)


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
        write(page, table_of(rows, columns, page.width))


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
        say(f"{one_line(answer)} is not in the list.")


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
    """On standard error, without secrets. An application that cannot be loaded is shown the place in its own code."""
    told = application.account(error) if isinstance(error, ApplicationError) else str(error)
    say(mask(f"recruiter: {told}"), stderr=True)


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

_GAP = 2
_LEAST_WIDTH = 8


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `rank` says how much it matters: 0 is always shown, the highest is the first to go."""

    name: str
    rank: int = 0
    fair: int | None = None
    """The width in which it can be read; where there is no room for more, it is cut to that. None: for all of it."""
    whole: bool = False
    """It is never cut, but goes on in the next line."""
    right: bool = False
    title: str | None = None

    @property
    def header(self) -> str:
        return self.name.replace("_", " ") if self.title is None else self.title

    @property
    def justify(self) -> Literal["left", "right"]:
        return "right" if self.right else "left"


def table_of(rows: Sequence[Row], columns: Iterable[str | Column], width: int) -> Table:
    """As many of the columns as fit, in their order. Columns that matter least are left out where there is no room, and
    one that is empty in every row, unless its rank is 0. Text that is cut ends with `…`."""
    all_ = [Column(column) if isinstance(column, str) else column for column in columns]
    texts = {column: [as_text(row.get(column.name)) for row in rows] for column in all_}
    full = {column: max(map(cell_len, (column.header, *texts[column]))) for column in all_}
    kept = [column for column in all_ if column.rank == 0 or any(texts[column])]
    while len(kept) > 1 and _room(kept, full) > width and max(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
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
    return sum(_fair(column, full[column]) for column in columns) + _GAP * (len(columns) - 1)


def _widths(columns: Sequence[Column], full: Mapping[Column, int], width: int) -> dict[Column, int]:
    """What each needs to be read; what is left goes to those that need more, the most important first. Where even that
    is too much, the longest text gives way, then the longest number; no column becomes narrower than its header."""
    widths = {column: _fair(column, full[column]) for column in columns}
    left = width - _room(columns, full)
    for column in sorted(columns, key=lambda column: column.rank):
        more = max(0, min(left, full[column] - widths[column]))
        widths[column] += more
        left -= more
    while left < 0:
        wider = [column for column in columns if widths[column] > max(_LEAST_WIDTH, cell_len(column.header))]
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
    done, rest = ("#", ".") if plain else ("█", "░")
    return done * full + rest * (width - full)
