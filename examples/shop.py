"""A small shop: the application that the demo runs."""

import os
import time
from pathlib import Path

from recruiter import Recruiter, RetryManyTimes, Workable

recruiter = Recruiter()


@recruiter.task(group="mail")
def send_welcome(to: str, name: str) -> str:
    return f"Dear {name}, welcome! (sent to {to})"


@recruiter.task(retry=RetryManyTimes(5, "200ms"), only=[ConnectionError])
def charge(order: int, euros: float, bank: str) -> str:
    """A bank that answers the third time; it keeps its count in a file, for attempts run in different processes."""
    with Path(bank).open("a+") as calls:
        calls.write("x")
    if Path(bank).stat().st_size < 3:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {euros:.2f} € charged"


@recruiter.task
async def resize(picture: str, width: int) -> str:
    return f"{picture} is {width} pixels wide"


@recruiter.task
def remind(customer: str) -> str:
    return f"{customer} was reminded"


@recruiter.task
def divide(a: int, b: int) -> float:
    return a / b


@recruiter.task
def crash() -> None:
    """Takes its whole process down with it."""
    os._exit(9)


@recruiter.task
def build_report(seconds: float) -> str:
    time.sleep(seconds)
    return "the report of the day"


@recruiter.every("1 second", urn="stock")
def count_stock() -> str:
    return "7 cats left"


class HttpRequest(Workable):
    def __init__(self, url: str, body: dict[str, int]) -> None:
        self.url = url
        self.body = body

    def execute(self) -> str:
        return f"POST {self.url} {self.body}"

    def ping(self) -> str:
        return f"HEAD {self.url}"
