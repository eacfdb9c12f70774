"""The application that process tests run: jobs that do what jobs do in real life."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from recruiter import Recruiter, RetryManyTimes

recruiter = Recruiter()


@recruiter.task
def add(a: int, b: int) -> int:
    return a + b


@recruiter.task
def echo(text: str) -> str:
    return text


@recruiter.task
async def add_later(a: int, b: int) -> int:
    return a + b


@recruiter.task
def record(folder: str, name: str, wait: float = 0.0) -> str:
    """Leaves a line in a file for each run, before and after the wait."""
    path = Path(folder) / name
    with path.open("a") as file:
        file.write(f"started {os.getpid()}\n")
    time.sleep(wait)
    with path.open("a") as file:
        file.write(f"ended {os.getpid()}\n")
    return name


@recruiter.task
def mark(folder: str, name: str) -> None:
    """Leaves a line for each run, in one file for all."""
    with (Path(folder) / "marks").open("a") as file:
        file.write(f"{name} {os.getpid()}\n")


@recruiter.task
def nap(seconds: float) -> None:
    time.sleep(seconds)


@recruiter.task
def wait_for_file(path: str) -> str:
    """Runs until the file is there."""
    while not Path(path).exists():
        time.sleep(0.01)
    return "released"


@recruiter.task
def fail(message: str) -> None:
    raise ValueError(message)


@recruiter.task(retry=RetryManyTimes(3, 0))
def fail_until(folder: str, times: int) -> str:
    """Fails so many times, then succeeds."""
    count = Path(folder) / "failures"
    so_far = len(count.read_text()) if count.exists() else 0
    if so_far < times:
        count.write_text("x" * (so_far + 1))
        raise ConnectionError("not yet")
    return f"after {so_far} failures"


@recruiter.task
def leave() -> None:
    raise SystemExit(3)


@recruiter.task
def hold_the_interpreter(seconds: float) -> float:
    """Backtracks inside one C call, which no other thread of the process can interrupt, for at least so long."""
    length, took = 18, 0.0
    while took < seconds:
        started = time.monotonic()
        re.match(r"(a+)+$", "a" * length + "b")
        took = time.monotonic() - started
        length += 1
    return took


@recruiter.task
def my_pid() -> int:
    return os.getpid()


@recruiter.task
def environment() -> list[str]:
    """The names of its variables."""
    return sorted(os.environ)


@recruiter.task(at_most_once=True)
def once(folder: str, path: str) -> None:
    with (Path(folder) / "once").open("a") as file:
        file.write("started\n")
    while not Path(path).exists():
        time.sleep(0.01)
