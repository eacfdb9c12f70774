"""One producer: enqueues jobs one by one and in bulk, and writes down which were acknowledged.

It waits while many jobs are on their way: faults must meet jobs at work, not jobs in a queue.

python -m tests.chaos.producer FIRST COUNT PER_SECOND SEED
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bson import ObjectId
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError

from recruiter.errors import JobNotFound, RecruiterError, StoreUnreachable
from tests.chaos import application
from tests.chaos.ledger import Ledger

_LARGEST_BULK = 200
_MOST_WAITING = 300
"""Jobs that wait in MongoDB, next to which no further job is enqueued."""


_LOOKS_EVERY, _WAITS_AT_LAST = 0.3, 30.0
"""Seconds between two looks for results, and how long a producer waits for them when it has sent everything."""


class Results(threading.Thread):
    """Notes when the result of each job was there for its producer."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(name="results", daemon=True)
        self._ledger = ledger
        self._missing: dict[str, ObjectId] = {}
        self._sent_all = threading.Event()

    def expect(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            self._missing[job] = ObjectId(job)

    def finish(self) -> None:
        self._sent_all.set()
        self.join(_WAITS_AT_LAST)

    def run(self) -> None:
        archived = application.recruiter.store.archived.collection
        while self._missing or not self._sent_all.is_set():
            time.sleep(_LOOKS_EVERY)
            with suppress(RecruiterError, PyMongoError):  # MongoDB is away
                ids = [*self._missing.values()]
                there = [str(document["_id"]) for document in archived.find({"_id": {"$in": ids}}, {"_id": 1})]
                if there:
                    self._ledger.write("seen", jobs=there)
                for job in there:
                    del self._missing[job]


def produce(first: int, count: int, per_second: float, seed: int) -> None:
    ledger = Ledger(Path(os.environ["CHAOS_LEDGER"]), "sent")
    chance, results = random.Random(seed), Results(ledger)
    results.start()
    began, n, end = time.monotonic(), first, first + count
    while n < end:
        size = min(end - n, chance.choice((1, 1, 1, 20, _LARGEST_BULK)))
        _wait_for_the_fleet()
        # A flow or a burst may reach beyond the end.
        ledger.write("asked", first=n, count=size + application.BURST)
        try:
            for task, numbers in _by_task(range(n, n + size)).items():
                for jobs, facts in _SENDERS.get(task, _send)(task, numbers):
                    ledger.write("acknowledged", jobs=jobs, **facts)
                    results.expect([*jobs.values(), *([facts["keyed"]] if "keyed" in facts else [])])
        except RecruiterError as error:  # whether these exist, nobody knows
            ledger.write("unknown", first=n, count=size, error=f"{type(error).__name__}: {error}"[:300])
        n += size
        time.sleep(max(0.0, began + (n - first) / per_second - time.monotonic()))
    results.finish()
    ledger.write("done", first=first)


def _wait_for_the_fleet() -> None:
    while True:
        with suppress(RecruiterError, PyMongoError):  # MongoDB is away
            if application.recruiter.store.scheduled.collection.estimated_document_count() < _MOST_WAITING:
                return
        time.sleep(0.05)


def _by_task(numbers: Sequence[int]) -> dict[str, list[int]]:
    sorted_out: dict[str, list[int]] = {}
    for number in numbers:
        sorted_out.setdefault(application.task_of(number), []).append(number)
    return sorted_out


Sent = Iterator[tuple[dict[int, str], dict[str, Any]]]
"""The ids by their numbers, and what else is to be known of them."""


def _send(name: str, numbers: list[int]) -> Sent:
    task = getattr(application, name)
    if len(numbers) == 1:
        yield {numbers[0]: str(task.enqueue(numbers[0]).id)}, {}
    else:
        handles = task.enqueue_many([(number,) for number in numbers])
        yield {number: str(handle.id) for number, handle in zip(numbers, handles, strict=True)}, {}


def _send_flows(_: str, numbers: list[int]) -> Sent:
    for first in (number for number in numbers if number == application.flow_of(number)):
        flow = application.recruiter.flow(application.UNCHANGED)
        one = flow.add(application.part, first)
        two = [flow.add(application.part, first + 1, one.result), flow.add(application.part, first + 2, after=one)]
        steps = [one, *two, flow.add(application.part, first + 3, after=two)]
        flow.start()
        yield {first + place: str(step.id) for place, step in enumerate(steps)}, {}


def _send_bursts(_: str, numbers: list[int]) -> Sent:
    """All jobs of a burst are due at the same time."""
    for first in (number for number in numbers if number == application.burst_of(number)):
        due = application.recruiter.clock.now() + application.BURST_DUE_AFTER
        burst = range(first, first + application.BURST)
        for tenant, members in itertools.groupby(burst, application.tenant_of):
            calls = {number: (number,) for number in members}
            handles = application.fair.enqueue_many([*calls.values()], owner=tenant, schedule_at=due)
            yield {number: str(handle.id) for number, handle in zip(calls, handles, strict=True)}, {}


def _send_unique(_: str, numbers: list[int]) -> Sent:
    for number in numbers:
        asked_at, key = time.monotonic(), application.key_of(number)
        handle = application.alone.job(number).unique(key).enqueue()
        yield {number: str(handle.id)}, {"key": key, "new": handle.created, "asked_at": asked_at}


def _send_slow(_: str, numbers: list[int]) -> Sent:
    """Every second one is cancelled, while it waits or while it runs."""
    for number in numbers:
        handle = application.slow.enqueue(number)
        yield {number: str(handle.id)}, {}
        if application.to_be_cancelled(number):
            time.sleep(number // 1000 % 5 / 10)
            with suppress(JobNotFound):  # it has ended
                application.recruiter.cancel(handle.id)


def _send_durable(_: str, numbers: list[int]) -> Sent:
    for number in numbers:
        handle = application.durable.enqueue(number)
        yield {number: str(handle.id)}, {}
        application.recruiter.signal(handle.id, application.SIGNAL)
        yield {}, {"signalled": str(handle.id)}


def _send_ordered(_: str, numbers: list[int]) -> Sent:
    """Each with a document of the application, in one transaction; every third transaction is given up."""
    client = application.recruiter.store.client
    orders = client[application.recruiter.store.target.database][application.ORDERS]
    for number in numbers:

        def write(session: ClientSession, number: int = number) -> str:
            orders.insert_one({"_id": number}, session=session)
            id = application.ordered.job(number).enqueue(session=session).id
            if number % 3 == 0:
                session.abort_transaction()
            return str(id)

        try:
            with client.start_session() as session:
                id = session.with_transaction(write)
        except PyMongoError as error:
            raise StoreUnreachable(str(error)) from error
        if number % 3:
            yield {number: id}, {}


def _send_keyed(name: str, numbers: list[int]) -> Sent:
    for number in numbers:
        asked_at, key, job = time.monotonic(), application.key_of(number), getattr(application, name).job(number)
        if name == "latest":
            handle = job.debounce(application.DEBOUNCED_SECONDS, key).enqueue()
        else:
            handle = job.throttle(application.THROTTLED_SECONDS, key).enqueue()
        facts = {"key": key, "new": handle.created, "asked_at": asked_at, "task": name, "number": number}
        yield {}, {"keyed": str(handle.id), **facts}


_SENDERS = {
    "slow": _send_slow,
    "part": _send_flows,
    "fair": _send_bursts,
    "alone": _send_unique,
    "durable": _send_durable,
    "ordered": _send_ordered,
    "latest": _send_keyed,
    "throttled": _send_keyed,
}


if __name__ == "__main__":
    produce(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
