"""The application of the benchmarks: a job that does nothing, with two small arguments, one that works for a while, one
that notes how long it took to start, and one that does not end."""

import os
import time

from recruiter import Recruiter

STARTS = "BENCHMARK_STARTS"
"""The variable that names the file for starts."""

recruiter = Recruiter()


@recruiter.task
def noop(number: int, text: str) -> None:
    del number, text


@recruiter.task
def work(number: int, milliseconds: float) -> None:
    """Keeps a processor busy for so long."""
    del number
    until = time.thread_time() + milliseconds / 1000
    while time.thread_time() < until:
        pass


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
