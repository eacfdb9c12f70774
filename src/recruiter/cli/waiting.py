"""What people see while a command takes its time: on stderr, and only if somebody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

from recruiter.cli.output import console

_PATIENCE = 1.0
"""Seconds before anything is said."""


@contextmanager
def looking() -> Iterator[Callable[[int, int], None]]:
    """Tell it how many were looked at and how many found; after a second it is shown."""
    page = console(stderr=True)
    status = Status("", console=page, spinner="dots")
    began = time.monotonic()

    def tell(looked_at: int, found: int) -> None:
        if page.is_terminal and time.monotonic() - began > _PATIENCE:
            status.update(f"looked at {looked_at:,} jobs, found {found:,} …")
            status.start()

    try:
        yield tell
    finally:
        status.stop()


@contextmanager
def bar(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """Tell it how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    page = console(stderr=True)
    with Progress(*columns, console=page, transient=True, disable=not page.is_terminal) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda done: progress.update(task, completed=done)
