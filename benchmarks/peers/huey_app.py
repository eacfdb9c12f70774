"""Huey on Redis.

One consumer with two worker processes: about twice as fast as eight threads with jobs that do nothing. It waits for
jobs with a blocking read (default). A job is taken off the queue before it begins, so it is lost with its worker.
"""

import os
import sys
import time
from collections.abc import Iterable

from huey import RedisHuey
from stamps import find_stamps

huey = RedisHuey("benchmark", url=os.environ["PEERS_REDIS"])

CONSUMER = [sys.executable, "-m", "huey.bin.huey_consumer", "huey_app.huey"]
BEGAN = find_stamps()
WORKERS = [[*CONSUMER, "--workers", "2", "--worker-type", "process", "--quiet"]]


@huey.task()
def noop(number: int, text: str) -> None:
    del text
    BEGAN[number] = time.time()


def enqueue(numbers: Iterable[int]) -> None:
    for number in numbers:
        noop(number, "x")
