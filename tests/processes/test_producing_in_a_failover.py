"""Producers while MongoDB gets another primary: a call succeeds within its time, or says that its job may exist."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from recruiter import Recruiter
from recruiter.errors import JobsRefused, StoreUnreachable
from tests.replica_set import EmbeddedReplicaSet

TIMEOUT = 20.0
THREADS = COROUTINES = 6


@pytest.fixture(scope="module")
def replica_set() -> Iterator[EmbeddedReplicaSet]:
    with EmbeddedReplicaSet(nodes=3) as replica_set:
        yield replica_set


@pytest.fixture
def producer(replica_set: EmbeddedReplicaSet) -> Iterator[Recruiter]:
    with Recruiter(replica_set.uri.replace("/?", f"/test_{ObjectId()}?")) as recruiter:
        recruiter.store.prepare()
        yield recruiter


@dataclass
class Sent:
    """The ledger of all producers, which no database can forget."""

    acknowledged: list[Any] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    longest: float = 0.0

    def note(self, began: float, id: Any = None, error: StoreUnreachable | None = None) -> None:
        self.longest = max(self.longest, time.monotonic() - began)
        if error is not None:
            self.unanswered.append(str(error))
        else:
            self.acknowledged.append(id)

    def exceeds(self, count: int) -> bool:
        return len(self.acknowledged) > count

    def check(self, recruiter: Recruiter) -> None:
        """Compares the ledger with what is stored."""
        stored = [str(document["_id"]) for document in recruiter.store.scheduled.collection.find({}, {"_id": 1})]
        assert len(stored) == len(set(stored))
        assert {str(id) for id in self.acknowledged} <= set(stored), "an acknowledged job is lost"
        assert all("it is not known whether job" in error for error in self.unanswered), self.unanswered
        named = {match.group(1) for error in self.unanswered for match in re.finditer(r"whether job (\w+) is", error)}
        assert set(stored) - {str(id) for id in self.acknowledged} <= named, "a job exists that nobody was told of"


def step_down(replica_set: EmbeddedReplicaSet) -> None:
    node = replica_set.primary()
    client: MongoClient[Any] = MongoClient(node.address, directConnection=True)
    with suppress(PyMongoError), client:
        client.admin.command("replSetStepDown", 2, secondaryCatchUpPeriodSecs=1, force=True)
    replica_set.primary()


def from_threads(task: Any, sent: Sent, stop: threading.Event) -> None:
    def produce(n: int) -> None:
        while not stop.is_set():
            began = time.monotonic()
            try:
                sent.note(began, task.job(n).enqueue(server_timeout=TIMEOUT).id)
            except StoreUnreachable as error:
                sent.note(began, error=error)

    with ThreadPoolExecutor(THREADS) as threads:
        for each in [threads.submit(produce, n) for n in range(THREADS)]:
            each.result()


def from_asyncio(task: Any, sent: Sent, stop: threading.Event) -> None:
    async def produce(n: int) -> None:
        while not stop.is_set():
            began = time.monotonic()
            try:
                sent.note(began, (await task.job(n).aenqueue(server_timeout=TIMEOUT)).id)
            except StoreUnreachable as error:
                sent.note(began, error=error)

    async def all_of_them() -> None:
        await asyncio.gather(*(produce(n) for n in range(COROUTINES)))

    asyncio.run(all_of_them())


@pytest.mark.parametrize("produce", [from_threads, from_asyncio])
def test_a_step_down_under_load_costs_time_and_no_job(
    replica_set: EmbeddedReplicaSet, producer: Recruiter, produce: Any
) -> None:
    # given producers that enqueue as fast as they can
    task = producer.task(_double)
    sent, stop = Sent(), threading.Event()
    load = threading.Thread(target=produce, args=(task, sent, stop))
    load.start()
    try:
        # when the primary steps down twice under them
        for _ in range(2):
            before = len(sent.acknowledged)
            _until(partial(sent.exceeds, before + 20))
            step_down(replica_set)
        before = len(sent.acknowledged)
        _until(partial(sent.exceeds, before + 20))
    finally:
        stop.set()
        load.join()
    # then each call has ended in time, and what it said is true
    assert sent.longest < TIMEOUT + 2
    assert not sent.unanswered, "an election takes a few seconds, and a call waits for longer"
    sent.check(producer)


def test_without_a_primary_a_call_says_that_its_job_may_exist(
    replica_set: EmbeddedReplicaSet, producer: Recruiter
) -> None:
    # given producers of all kinds, and a set that cannot elect anybody
    task = producer.task(_double)
    sent = Sent()
    sent.note(time.monotonic(), task.enqueue(1).id)
    others = [node for node in replica_set.nodes if node is not replica_set.primary()]
    for node in others:
        replica_set.kill(node)
    try:
        # when each waits for no longer than two seconds
        calls: list[Any] = [
            lambda: task.job(2).enqueue(server_timeout=2),
            lambda: asyncio.run(task.job(3).aenqueue(server_timeout=2)),
        ]
        for call in calls:
            began = time.monotonic()
            with pytest.raises(StoreUnreachable) as raised:
                call()
            sent.note(began, error=raised.value)
        with pytest.raises((StoreUnreachable, JobsRefused), match="it is not known which of these 2 jobs are stored"):
            task.enqueue_many([(4,), (5,)], server_timeout=2)
    finally:
        for node in others:
            replica_set.restart(node)
    # then each has said so in time, and nothing is there that nobody was told of
    assert sent.longest < 5
    _until(lambda: _is_writable(producer))
    producer.store.scheduled.collection.delete_many({"args.n": {"$in": [4, 5]}})
    sent.check(producer)


def _double(n: int) -> int:
    return 2 * n


def _is_writable(recruiter: Recruiter) -> bool:
    with suppress(StoreUnreachable):
        recruiter.store.limits.read()
        return True
    return False


def _until(fact: Any, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not fact():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)
