"""Celery on Redis.

The prefork pool with two children. Four jobs are prefetched for each (default); 64 were no faster. Jobs that wait: two
workers with 50 threads each. No result backend: no program reads results. A message is acknowledged when its job begins
(default), so a job is lost with its worker.
"""

import os
import sys
import time
from collections.abc import Iterable

import kinds
from celery import Celery
from stamps import find_stamps

app = Celery("celery_app", broker=os.environ["PEERS_REDIS"])
app.conf.task_ignore_result = True

CELERY = [sys.executable, "-m", "celery", "--app", "celery_app", "--quiet"]
ENDED = find_stamps()
WORKER = [*CELERY, "worker", "--loglevel", "WARNING"]
THREADS = [*WORKER, "--pool", "threads", "--concurrency", str(kinds.SLOTS_PER_PROCESS)]
if kinds.waits():
    WORKERS = [[*THREADS, "--hostname", f"{number}@%h"] for number in range(2)]
else:
    WORKERS = [[*WORKER, "--pool", "prefork", "--concurrency", "2"]]


@app.task
def noop(number: int, text: str) -> None:
    del text
    kinds.run()
    ENDED[number] = time.time()


def enqueue(numbers: Iterable[int]) -> None:
    for number in numbers:
        noop.delay(number, "x")
