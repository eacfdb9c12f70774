"""Celery on Redis.

The prefork pool with two children. Four jobs are prefetched for each (default); 64 were no faster. No result backend:
nobody asks for results. A message is acknowledged when its job begins (default), so a job is lost with its worker.
"""

import os
import sys
import time
from collections.abc import Iterable

from celery import Celery
from stamps import find_stamps

app = Celery("celery_app", broker=os.environ["PEERS_REDIS"])
app.conf.task_ignore_result = True

CELERY = [sys.executable, "-m", "celery", "--app", "celery_app", "--quiet"]
BEGAN = find_stamps()
WORKERS = [[*CELERY, "worker", "--pool", "prefork", "--concurrency", "2", "--loglevel", "WARNING"]]


@app.task
def noop(number: int, text: str) -> None:
    del text
    BEGAN[number] = time.time()


def enqueue(numbers: Iterable[int]) -> None:
    for number in numbers:
        noop.delay(number, "x")
