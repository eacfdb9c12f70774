"""Tables that fit, and figures as people read them: 12,034, 3.2 ms, ▁▃▇.

Columns that matter least are left out where there is no room, and what is cut ends with a `…`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

_GAP = 2


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


def table_of(
    rows: Sequence[Mapping[str, Any]], columns: Iterable[str | Column], width: int, as_text: Callable[[Any], str]
) -> Table:
    """As many of the columns as fit, in their order. One that is empty in every row is left out too, unless its rank
    is 0."""
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
    is too much, the longest gives way."""
    widths = {column: _fair(column, full[column]) for column in columns}
    left = width - _room(columns, full)
    for column in sorted(columns, key=lambda column: column.rank):
        more = max(0, min(left, full[column] - widths[column]))
        widths[column] += more
        left -= more
    while left < 0:
        longest = max(widths, key=lambda column: widths[column])
        if widths[longest] <= 8:
            break
        widths[longest] -= 1
        left += 1
    return widths


_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.:-=+*#"


def number(value: float) -> str:
    """With thousands apart; a fraction only where it matters."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}" if value >= 1 else f"{value:.2f}"


def seconds(value: float | None) -> str:
    """A duration in the unit that fits it; nothing where nothing was measured."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.1f} ms" if value < 0.01 else f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    told = [f"{amount}{unit}" for amount, unit in parts if amount]
    return " ".join(told[:2])


def sparkline(values: Sequence[float], *, plain: bool = False) -> str:
    """One bar for each; the highest is full, and nothing has none."""
    bars, most = (_PLAIN_BARS if plain else _BARS), max(values, default=0)
    return "".join(bars[min(7, int(value / most * 8))] if value else " " for value in values) if most else ""


def bar(part: float, width: int, *, plain: bool = False) -> str:
    """How far: ████░░░░."""
    full = round(max(0.0, min(1.0, part)) * width)
    done, rest = ("#", ".") if plain else ("█", "░")
    return done * full + rest * (width - full)
