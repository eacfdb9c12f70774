"""The current calls of a process, as text: for a person who wants to know why a job still runs.

Only places in code, never values. A thread reads it while the job runs on; a job that holds the interpreter in C code
cannot be looked at until it lets go.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio import AbstractEventLoop
from traceback import format_stack

_LONGEST = 20_000
"""Characters."""


def stack_text(loop: AbstractEventLoop | None = None) -> str:
    """The calls of every task of the event loop and of every thread but this one, the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames, me, main = sys._current_frames(), threading.get_ident(), threading.main_thread().ident
    tasks = asyncio.all_tasks(loop) if loop is not None else ()
    parts = [
        _part(f"task {task.get_name()}", [format_stack(frame, limit=1)[0] for frame in task.get_stack()])
        for task in tasks
    ]
    for ident in sorted(frames, key=lambda ident: ident != main):
        if ident != me:
            parts.append(_part(f"thread {names.get(ident, ident)}", format_stack(frames[ident])))
    return "\n".join(parts)[:_LONGEST]


def _part(name: str, lines: list[str]) -> str:
    return f"{name}:\n{''.join(lines)}"
