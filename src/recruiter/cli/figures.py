"""Figures as people read them: 12,034, 3.2 ms, ▁▃▇."""

from __future__ import annotations

from collections.abc import Sequence

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
