"""One producer: enqueues jobs one by one and in bulk, and writes down which were acknowledged.

python -m tests.chaos.producer FIRST COUNT PER_SECOND SEED
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from recruiter.errors import RecruiterError
from tests.chaos import application
from tests.chaos.ledger import Ledger

_LARGEST_BULK = 300


def produce(first: int, count: int, per_second: float, seed: int) -> None:
    ledger = Ledger(Path(os.environ["CHAOS_LEDGER"]), "sent")
    chance = random.Random(seed)
    began, n, end = time.monotonic(), first, first + count
    while n < end:
        size = min(end - n, chance.choice((1, 1, 1, 20, _LARGEST_BULK)))
        wanted = range(n, n + size)
        ledger.write("asked", first=n, count=size)
        try:
            for task, numbers in _by_task(wanted).items():
                handles = _send(task, numbers)
                ledger.write("acknowledged", jobs=dict(zip(numbers, handles, strict=True)))
        except RecruiterError as error:  # whether these exist, nobody knows
            ledger.write("unknown", first=n, count=size, error=f"{type(error).__name__}: {error}"[:300])
        n += size
        time.sleep(max(0.0, began + (n - first) / per_second - time.monotonic()))
    ledger.write("done", first=first)


def _by_task(numbers: Sequence[int]) -> dict[str, list[int]]:
    sorted_out: dict[str, list[int]] = {}
    for number in numbers:
        sorted_out.setdefault(application.task_of(number), []).append(number)
    return sorted_out


def _send(name: str, numbers: list[int]) -> list[str]:
    task = getattr(application, name)
    if len(numbers) == 1:
        return [str(task.enqueue(numbers[0]).id)]
    return [str(handle.id) for handle in task.enqueue_many([(number,) for number in numbers])]


if __name__ == "__main__":
    produce(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
