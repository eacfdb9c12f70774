"""RQ on Redis.

Two SimpleWorkers, which run jobs in their own process: its ordinary worker forks for every job, and is several times
slower with jobs as small as these. Results are kept for 500 seconds (default). Quiet, or it logs each job.
"""

import os
import sys
import time
from collections.abc import Iterable

import kinds
from redis import Redis
from rq import Queue
from stamps import find_stamps

queue = Queue(connection=Redis.from_url(os.environ["PEERS_REDIS"]))

WORKER = [sys.executable, "-m", "rq.cli", "worker", "--worker-class", "rq.SimpleWorker", "--quiet"]
ENDED = find_stamps()
WORKERS = [[*WORKER, "--url", os.environ["PEERS_REDIS"]]] * 2


def noop(number: int, text: str) -> None:
    del text
    kinds.run()
    ENDED[number] = time.time()


def enqueue(numbers: Iterable[int]) -> None:
    for number in numbers:
        queue.enqueue(noop, number, "x")


def enqueue_many(numbers: Iterable[int]) -> None:
    queue.enqueue_many([Queue.prepare_data(noop, (number, "x")) for number in numbers])
