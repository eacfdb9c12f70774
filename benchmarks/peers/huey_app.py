"""Huey on Redis.

One consumer with two worker processes: about twice as fast as eight threads with jobs that do nothing. Jobs that
wait: two consumers with 50 threads each. It waits for jobs with a blocking read (default). A job is taken off the queue
before it begins, so it is lost with its worker.
"""

import os
import sys
import time
from collections.abc import Iterable

import kinds
from huey import RedisHuey
from stamps import find_stamps

huey = RedisHuey("benchmark", url=os.environ["PEERS_REDIS"])

CONSUMER = [sys.executable, "-m", "huey.bin.huey_consumer", "huey_app.huey"]
ENDED = find_stamps()
if kinds.waits():
    THREADS = ["--workers", str(kinds.SLOTS_PER_PROCESS), "--worker-type", "thread"]
    WORKERS = [[*CONSUMER, *THREADS, "--quiet"]] * 2
else:
    WORKERS = [[*CONSUMER, "--workers", "2", "--worker-type", "process", "--quiet"]]


@huey.task()
def noop(number: int, text: str) -> None:
    del text
    kinds.run()
    ENDED[number] = time.time()


def enqueue(numbers: Iterable[int]) -> None:
    for number in numbers:
        noop(number, "x")
