"""The smallest application. Run it with:  recruiter dev examples/hello.py"""

from recruiter import Recruiter

recruiter = Recruiter()


@recruiter.task
def hello(name: str) -> str:
    return f"Hello, {name}!"
