"""taskiq on a Redis stream.

Two worker processes, which is its default, with uvloop, which it takes where it is installed; 100 coroutines in each
and 100 messages at a time, its defaults. Jobs that wait: 50 coroutines in each, like the other systems. No result
backend: no program reads results. A message is acknowledged when its job has ended (default), so a job is not lost with
its worker.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterable

import kinds
import uvloop
from stamps import find_stamps
from taskiq_redis import RedisStreamBroker

# "0": workers see messages from before the first worker began.
broker = RedisStreamBroker(os.environ["PEERS_REDIS"], consumer_id="0")

ENDED = find_stamps()
COMMAND = [sys.executable, "-m", "taskiq", "worker", "taskiq_app:broker", "--workers", "2", "--log-level", "WARNING"]
COROUTINES = ["--max-async-tasks", str(kinds.SLOTS_PER_PROCESS)] if kinds.waits() else []
WORKERS = [[*COMMAND, *COROUTINES]]


@broker.task
async def noop(number: int, text: str) -> None:
    del text
    await kinds.arun()
    ENDED[number] = time.time()


# One loop for all calls: a new one for each would have to connect again.
loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)


def enqueue(numbers: Iterable[int]) -> None:
    loop.run(_enqueue(numbers))


async def _enqueue(numbers: Iterable[int]) -> None:
    for number in numbers:
        await noop.kiq(number, "x")
