"""The work of a benchmark job: nothing, computing or waiting. The same code for Recruiter and every peer.

The kind is in the environment: `noop`, `cpu:N` (N milliseconds of CPU time) or `io:N` (waits N milliseconds).
"""

from __future__ import annotations

import asyncio
import os
import time

KIND = "PEERS_KIND"
SLOTS_PER_PROCESS = 50
"""Threads or coroutines in each of the two processes, for jobs that wait."""


def kind() -> tuple[str, float]:
    """The name of the kind, and its seconds."""
    name, _, milliseconds = os.environ.get(KIND, "noop").partition(":")
    return name, float(milliseconds or 0) / 1000


def run() -> None:
    name, seconds = kind()
    if name == "cpu":
        compute(seconds)
    elif name == "io":
        time.sleep(seconds)


async def arun() -> None:
    name, seconds = kind()
    if name == "cpu":
        compute(seconds)
    elif name == "io":
        await asyncio.sleep(seconds)


def compute(seconds: float) -> None:
    """Uses this much CPU time of its thread, regardless of other load on the machine."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def waits() -> bool:
    return kind()[0] == "io"
