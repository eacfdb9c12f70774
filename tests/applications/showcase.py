"""The application that the web console is shown and tested with: mail, images, reports and payments of a shop."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from pathlib import Path

from recruiter import Recruiter, RetryManyTimes, current_job

recruiter = Recruiter()


class SmtpTimeout(Exception):
    """The mail server does not answer."""


class CardRefused(Exception):
    """The bank said no."""


@recruiter.task(group="mail", retry=RetryManyTimes(3, "20s"), only=[SmtpTimeout])
def send_welcome(to: str, name: str, password: str = "") -> str:
    if to.endswith("@slow.example"):
        raise SmtpTimeout(f"no answer from smtp.slow.example within 5 s for {to}")
    time.sleep(0.004)
    return f"Dear {name}, welcome!"


@recruiter.task(group="mail")
def send_newsletter(to: str, issue: int) -> int:
    return issue


@recruiter.task(group="billing")
def charge(order: int, amount: float, card_token: str = "") -> str:
    time.sleep(0.01)
    if order % 9 == 4:
        raise CardRefused(f"order {order}: the bank refused {amount:.2f} EUR")
    if order % 31 == 7:
        answer: Future[str] = Future()
        try:
            return answer.result(timeout=0.001)  # the trace goes through the library
        except TimeoutError as late:
            raise TimeoutError(f"order {order}: the bank did not answer") from late
    return f"receipt-{order}"


@recruiter.task(group="images")
def resize(picture: str, width: int) -> str:
    time.sleep(0.02)
    return f"{picture}@{width}"


@recruiter.task(group="images")
def align(sample: str, gate: str, steps: int = 40) -> int:
    """Works until somebody makes the file, telling how far it is."""
    stages = ("download", "index", "align", "sort")
    for step in range(steps):
        current_job.stage(stages[step * len(stages) // steps], progress=(step % (steps // 4) + 1) / (steps // 4))
        current_job.log(f"chunk {step + 1} of {steps}: {137 * (step + 3) % 991:,} reads of {sample}")
        time.sleep(0.05)
        if Path(gate).exists():
            return step
    current_job.stage("align", progress=0.62)
    while not Path(gate).exists():
        time.sleep(0.02)
    return steps


@recruiter.task(group="images")
def climb(gate: str) -> float:
    """Its progress is what the file says."""
    reached = 0.0
    while reached < 1.0:
        try:
            reached = float(Path(gate).read_text() or 0)
        except (OSError, ValueError):
            reached = 0.1
        current_job.stage("climbing", progress=reached)
        current_job.log(f"reached {reached:.2f}")
        time.sleep(0.05)
    return reached


@recruiter.task(group="reports")
def attack(text: str) -> str:
    """Says everything that a job can say in the words of somebody who means no good."""
    current_job.stage(text[:150], progress=0.5)
    current_job.log(text)
    raise RuntimeError(text)


@recruiter.every("0 6 * * *", tz="Europe/Rome", urn="report:daily")
@recruiter.task(group="reports")
def daily_report() -> str:
    return "42 pages"


@recruiter.every("*/15 * * * *", urn="stock:sync")
@recruiter.task(group="reports")
def sync_stock() -> int:
    return os.getpid()


@recruiter.every("2 hours", urn="invoices:remind")
@recruiter.task(group="mail")
def remind() -> None:
    """Nothing to do."""
