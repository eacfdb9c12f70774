"""The application of the chaos run: every run of every job leaves a line when it starts and one when it ends."""

from __future__ import annotations

import os
import time
from pathlib import Path

from recruiter import Recruiter, RetryManyTimes, current_job
from tests.chaos.ledger import Ledger

MOST_LIMITED = 3
"""How many jobs of `limited` may run at once."""
TICK = "chaos:tick"

recruiter = Recruiter(os.environ.get("RECRUITER_TARGET", "127.0.0.1:1"))
ledger = Ledger(Path(os.environ.get("CHAOS_LEDGER", "/nonexistent")), "runs")


def _run(n: int, seconds: float = 0.0) -> int:
    facts = {"job": str(current_job.id), "n": n, "attempt": current_job.attempt, "pid": os.getpid()}
    ledger.write("start", task=current_job.task, worker=current_job.worker, **facts)
    if seconds:
        time.sleep(seconds)
    return n


def _ended(n: int) -> int:
    ledger.write("end", job=str(current_job.id), n=n, pid=os.getpid())
    return n


@recruiter.task
def plain(n: int) -> int:
    return _ended(_run(n))


@recruiter.task(retry=RetryManyTimes(100, 0.1))
def flaky(n: int) -> int:
    _run(n)
    if current_job.attempt <= n % 3:
        ledger.write("end", job=str(current_job.id), n=n, pid=os.getpid())
        raise ConnectionError(f"attempt {current_job.attempt} of {n} fails on purpose")
    return _ended(n)


@recruiter.task(at_most_once=True)
def once(n: int) -> int:
    return _ended(_run(n, 0.005))


@recruiter.task
def limited(n: int) -> int:
    return _ended(_run(n, 0.02))


@recruiter.task
def slow(n: int) -> int:
    return _ended(_run(n, 0.2 + n % 1000 / 1000))


@recruiter.every("1 second", urn=TICK, late="all")
def tick() -> None:
    _ended(_run(0))


def task_of(n: int) -> str:
    """Which task job `n` is of: mostly plain ones."""
    rest = n % 200
    if rest == 0:
        return "slow"
    if rest < 20:
        return "once"
    if rest < 24:
        return "limited"
    return "flaky" if rest < 60 else "plain"
