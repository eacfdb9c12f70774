"""The primary of a real three-node replica set is killed in the middle of the work: nothing lost, nothing doubled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from bson import ObjectId
from pymongo import WriteConcern
from pymongo.errors import PyMongoError

from recruiter.embedded.server import EmbeddedServer
from recruiter.errors import StoreError
from recruiter.store import server as admin
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Starter, eventually
from tests.replica_set import EmbeddedReplicaSet

JOBS = jobs.__file__


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedReplicaSet]:
    with EmbeddedReplicaSet(nodes=3) as replica_set:
        yield replica_set


@pytest.fixture
def replica_set(three: EmbeddedReplicaSet) -> EmbeddedReplicaSet:
    """All of its nodes, whatever a test before has killed."""
    for node in three.nodes:
        if not node.running:
            three.restart(node)
    return three


@pytest.fixture
def target(replica_set: EmbeddedReplicaSet) -> str:
    """Instead of the suite's single node."""
    return replica_set.uri.replace("/?", f"/failover_{ObjectId()}?")


def test_a_killed_primary_loses_and_doubles_nothing(
    start: Starter, replica_set: EmbeddedReplicaSet, target: str
) -> None:
    # given a fleet in the middle of many jobs, on three nodes
    start("start", "recruiter", "--bootstrap", JOBS, "--considered-dead-after", "60s")
    worker = start("start", "worker", "--bootstrap", JOBS, "--processes", "2", "--considered-dead-after", "60s")
    worker.says("joined the roster")
    store = Store(Target.parse(target))
    sent = jobs.add.enqueue_many([(number, 1) for number in range(3000)])
    eventually(lambda: store.archived.collection.count_documents({}) > 300)

    # when the primary dies while jobs are assigned, run and settled
    replica_set.kill(replica_set.primary())
    late = jobs.add.enqueue(40, 2)

    # then every job ends once, with the result it should have
    assert late.result(timeout=60) == 42
    eventually(lambda: store.archived.collection.count_documents({}) >= 3001, within=60)
    assert store.scheduled.collection.count_documents({}) == 0
    results = sorted(d["result"] for d in store.archived.collection.find({}, {"result": 1}))
    assert results == sorted([number + 1 for number in range(len(sent))] + [42])
    assert store.archived.collection.count_documents({"attempts": {"$ne": 1}}) == 0
    store.close()


def test_work_goes_on_soon_after_a_primary_vanished_without_a_word(
    start: Starter, replica_set: EmbeddedReplicaSet
) -> None:
    """A frozen process keeps its sockets: nobody is told, and a call would wait for a socket timeout of 20 s."""
    # given a fleet that works, on three nodes that all have the data
    start("start", "recruiter", "--bootstrap", JOBS)
    worker = start("start", "worker", "--bootstrap", JOBS)
    worker.says("joined the roster")
    assert jobs.add.enqueue(1, 1).result(timeout=60) == 2
    frozen = replica_set.primary()
    assert frozen.pid is not None

    # when the primary freezes while somebody enqueues
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        frozen_at = time.monotonic()
        with ThreadPoolExecutor(1) as threads:
            enqueued = threads.submit(jobs.add.enqueue, 40, 2)
            others = [node for node in replica_set.nodes if node is not frozen]
            eventually(lambda: any(is_primary(node) for node in others), within=40)
            elected_at = time.monotonic()
            eventually(lambda: any(takes_majority_writes(node) for node in others), within=40)
            writable_at = time.monotonic()

            # then the call returns and the job ends soon after a majority takes writes again
            late = enqueued.result(timeout=60)
            stored_at = time.monotonic()
            assert late.result(timeout=60) == 42
            ended_at = time.monotonic()
        told = f"elected after {elected_at - frozen_at:.1f} s, writable {writable_at - elected_at:.1f} s later, "
        told += f"stored {stored_at - writable_at:.1f} s after that, ended {ended_at - stored_at:.1f} s later"
        assert ended_at - writable_at < 5, told
    finally:
        os.kill(frozen.pid, signal.SIGCONT)


def takes_majority_writes(node: EmbeddedServer) -> bool:
    """A new primary may not for seconds: until then the other node listens to the one that is frozen."""
    try:
        with admin.connected(node.address) as connection:
            majority = WriteConcern("majority", wtimeout=500)
            connection["failover"].get_collection("probe", write_concern=majority).insert_one({})
            return True
    except PyMongoError:
        return False


def is_primary(node: EmbeddedServer) -> bool:
    try:
        with admin.connected(node.address) as connection:
            return admin.hello(connection).writable_primary
    except StoreError:
        return False
