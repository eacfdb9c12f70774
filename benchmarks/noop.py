"""The application of the benchmarks: a job that does nothing, with two small arguments."""

from recruiter import Recruiter

recruiter = Recruiter()


@recruiter.task
def noop(number: int, text: str) -> None:
    del number, text
