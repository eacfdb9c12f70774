"""The application of the benchmarks: a job that does nothing, with two small arguments, and one that does not end."""

import time

from recruiter import Recruiter

recruiter = Recruiter()


@recruiter.task
def noop(number: int, text: str) -> None:
    del number, text


@recruiter.task(priority=1)
def endless() -> None:
    while True:
        time.sleep(0.1)
