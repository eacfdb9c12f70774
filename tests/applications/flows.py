"""Steps of flows for process tests: each leaves a line for every run."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from recruiter import Recruiter, RetryManyTimes, current_job

recruiter = Recruiter()


@recruiter.task
def begin(folder: str) -> int:
    _leave(folder, "begin")
    return 1


@recruiter.task
def part(folder: str, one: int, number: int, wait: float = 0.0) -> int:
    time.sleep(wait)
    _leave(folder, f"part {number}")
    return one * number


@recruiter.task
def total(folder: str, parts: list[int]) -> int:
    _leave(folder, "total")
    return sum(parts)


@recruiter.task
def end(folder: str) -> None:
    _leave(folder, "end")


@recruiter.task
def countdown(folder: str, number: int) -> None:
    """Adds the next step to its own flow."""
    _leave(folder, f"count {number}")
    if number:
        current_job.flow.add(countdown.job(folder, number - 1).with_id(f"{current_job.flow.id}:{number - 1}"))


@recruiter.task(retry=RetryManyTimes(1, "50ms"))
def try_luck(folder: str, name: str, fails: float, wait: float, results: list[str | None]) -> str:
    """Fails so often, by chance."""
    time.sleep(wait)
    _leave(folder, name)
    if random.random() < fails:
        raise ValueError(name)
    return name


def _leave(folder: str, line: str) -> None:
    descriptor = os.open(Path(folder) / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())  # one write, so that lines of several processes do not mix
    finally:
        os.close(descriptor)


def lines(folder: str | Path) -> list[str]:
    path = Path(folder) / "lines"
    return path.read_text().splitlines() if path.exists() else []
