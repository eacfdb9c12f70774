"""The application of the benchmarks: jobs that do nothing, compute or wait, with two small arguments; a job that
records its start latency, and a job that never ends."""

import os
import sys
import time
from pathlib import Path

from recruiter import Recruiter

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import kinds

STARTS = "BENCHMARK_STARTS"
"""The variable that names the file for starts."""

recruiter = Recruiter()


@recruiter.task
def noop(number: int, text: str) -> None:
    del number, text


@recruiter.task
def work(number: int, milliseconds: float) -> None:
    """Keeps a processor busy for this long."""
    del number
    kinds.compute(milliseconds / 1000)


@recruiter.task
def of_kind(number: int, text: str) -> None:
    """The kind of job in `PEERS_KIND`; a job that waits occupies a thread."""
    del number, text
    kinds.run()


@recruiter.task
async def of_kind_async(number: int, text: str) -> None:
    del number, text
    await kinds.arun()


@recruiter.task
def stamp(called_at: float) -> None:
    """Seconds since the call; the monotonic clock of Linux is the same in all processes."""
    took = time.monotonic() - called_at
    with open(os.environ[STARTS], "a") as starts:
        starts.write(f"{took}\n")


@recruiter.task(priority=1)
def endless() -> None:
    while True:
        time.sleep(0.1)


@recruiter.task(priority=9)
def urgent() -> None:
    """Starts before the backlog."""


@recruiter.task(priority=9, max_running=1)
def one_at_a_time(number: int) -> None:
    del number


@recruiter.task(priority=9, unique=True)
def one_per_key(key: str) -> None:
    del key
