"""Dramatiq on Redis.

Two processes with 8 threads each, its default for two cores, and its default middleware (retries, time limits). Jobs
that wait: 50 threads each. A message is acknowledged when its job has ended.
"""

import os
import sys
import time
from collections.abc import Iterable

import dramatiq
import kinds
from dramatiq.brokers.redis import RedisBroker
from stamps import find_stamps

dramatiq.set_broker(RedisBroker(url=os.environ["PEERS_REDIS"]))

ENDED = find_stamps()
COMMAND = [sys.executable, "-m", "dramatiq", "dramatiq_app"]
THREADS = kinds.SLOTS_PER_PROCESS if kinds.waits() else 8
WORKERS = [[*COMMAND, "--processes", "2", "--threads", str(THREADS)]]


@dramatiq.actor
def noop(number: int, text: str) -> None:
    del text
    kinds.run()
    ENDED[number] = time.time()


def enqueue(numbers: Iterable[int]) -> None:
    for number in numbers:
        noop.send(number, "x")
