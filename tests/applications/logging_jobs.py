"""Jobs that log and print, each in its own way."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import warnings

from recruiter import Recruiter

recruiter = Recruiter()
log = logging.getLogger("shop.mail")


@recruiter.task
def says(text: str) -> None:
    log.debug("debug %s", text)
    log.info("info %s", text, extra={"customer": 42})
    logging.warning("warning %s", text)
    warnings.warn(f"careful {text}", stacklevel=1)
    print("printed", text)
    print("complained", text, file=sys.stderr)
    print("no line break", text, end="")


@recruiter.task
def fails() -> None:
    log.exception("caught %s", _caught())
    raise ValueError("no good\n2026-01-01 00:00:00.000 host[1] worker ERROR forged")


@recruiter.task
def crashes() -> None:
    os._exit(3)


def _caught() -> str:
    return "nothing"


@recruiter.task
async def says_slowly(number: int) -> None:
    for step in range(5):
        log.info("async step %d of %d", step, number)
        print("printed by", number, end="")
        await asyncio.sleep(0.01)
        print(" and on")


@recruiter.task
def says_in_threads(number: int) -> None:
    for step in range(5):
        log.info("thread step %d of %d", step, number)
        time.sleep(0.005)


@recruiter.task
def floods(lines: int, length: int) -> None:
    line = "x" * length
    for _ in range(lines):
        log.info(line)


@recruiter.task
def floods_one_line(characters: int) -> None:
    for _ in range(characters // 1000):
        print("y" * 1000, end="")


@recruiter.task
def who() -> tuple[int, int]:
    return os.getpid(), threading.active_count()
