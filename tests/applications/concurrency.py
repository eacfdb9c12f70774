"""The application of the concurrency tests: jobs that meet in one child, and some that do not behave."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recruiter import JobTimedOut, Recruiter

recruiter = Recruiter()

LONGEST = 60.0
"""Seconds after which whatever waits here gives up, so that a test that fails leaves nothing running."""

_lock = threading.Lock()
_inside = 0
_most = 0


@contextmanager
def _counted() -> Iterator[int]:
    """How many are inside, this one included."""
    global _inside, _most
    with _lock:
        _inside += 1
        _most = max(_most, _inside)
        count = _inside
    try:
        yield count
    finally:
        with _lock:
            _inside -= 1


@recruiter.task
async def sleep_async(seconds: float) -> int:
    """Returns how many were asleep in this process when it began."""
    with _counted() as count:
        await asyncio.sleep(seconds)
    return count


@recruiter.task
def meet(others: int) -> int:
    """Stays until so many have been inside at once, itself included; returns the most there ever were."""
    deadline = time.monotonic() + LONGEST
    with _counted():
        while _most < others and time.monotonic() < deadline:
            time.sleep(0.01)
        return _most


@recruiter.task
def my_pid() -> int:
    return os.getpid()


@recruiter.task
async def wait_async(folder: str, name: str) -> str:
    """Leaves a line for each start, and runs until the file `gate` is there."""
    _note(folder, name)
    deadline = time.monotonic() + LONGEST
    while not _is_open(folder) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return name


@recruiter.task
def wait_in_a_thread(folder: str, name: str) -> str:
    """The same, in a thread."""
    _note(folder, name)
    deadline = time.monotonic() + LONGEST
    while not _is_open(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    return name


@recruiter.task
async def wait_at_first_async(folder: str, name: str) -> str:
    """The same, but only in its first run; from then on it has nothing to wait for."""
    return await wait_async(folder, name) if not (Path(folder) / name).exists() else _note(folder, name)


@recruiter.task
def wait_at_first_in_a_thread(folder: str, name: str) -> str:
    return wait_in_a_thread(folder, name) if not (Path(folder) / name).exists() else _note(folder, name)


@recruiter.task
async def block_the_loop(folder: str, name: str) -> str:
    """An `async def` that does not await: nothing else in the loop goes on."""
    return wait_in_a_thread(folder, name)


@recruiter.task
def hold_the_interpreter(folder: str) -> None:
    """One C call that takes hours, and lets no other thread of the process run."""
    _note(folder, "held")
    re.match(r"(a+)+$", "a" * 60 + "b")


@recruiter.task
def swallow_in_a_thread(folder: str) -> None:
    """Is told that its time is over, and stays."""
    _note(folder, "swallowed")
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        try:
            time.sleep(0.01)
        except JobTimedOut:
            _note(folder, "told")


@recruiter.task
async def swallow_async(folder: str) -> None:
    _note(folder, "swallowed")
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            _note(folder, "told")


def _is_open(folder: str) -> bool:
    return (Path(folder) / "gate").exists()


def _note(folder: str, name: str) -> str:
    with (Path(folder) / name).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return name
