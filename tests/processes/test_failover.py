"""The primary of a real three-node replica set is killed in the middle of the work: nothing lost, nothing doubled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recruiter.embedded import EmbeddedReplicaSet
from recruiter.store.database import Store
from recruiter.store.target import Target
from tests.applications import jobs
from tests.conftest import Starter, eventually

JOBS = jobs.__file__


@pytest.fixture
def replica_set() -> Iterator[EmbeddedReplicaSet]:
    with EmbeddedReplicaSet(nodes=3) as replica_set:
        yield replica_set


@pytest.fixture
def target(replica_set: EmbeddedReplicaSet) -> str:
    """Instead of the suite's single node."""
    return replica_set.uri.replace("/?", "/failover?")


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
