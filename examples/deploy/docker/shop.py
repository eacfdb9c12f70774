"""The application that the image runs; put yours here."""

from recruiter import Recruiter

recruiter = Recruiter()  # RECRUITER_TARGET contains the address of MongoDB


@recruiter.task
def hello(name: str) -> str:
    return f"Hello, {name}!"
