"""The application that the image runs; put yours here."""

from recruiter import Recruiter

recruiter = Recruiter()  # where MongoDB is, RECRUITER_TARGET says


@recruiter.task
def hello(name: str) -> str:
    return f"Hello, {name}!"
