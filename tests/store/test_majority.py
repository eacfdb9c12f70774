"""A worker starts only what a majority of the nodes holds: what is on the primary alone can be rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest
from pymongo import WriteConcern

from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.conftest import eventually
from tests.replica_set import EmbeddedReplicaSet
from tests.samples import on_the_roster


@pytest.fixture
def replica_set() -> Iterator[EmbeddedReplicaSet]:
    with EmbeddedReplicaSet(nodes=3) as replica_set:
        yield replica_set


def test_an_assignment_that_only_the_primary_knows_is_not_seen(replica_set: EmbeddedReplicaSet) -> None:
    # given a worker, and a primary whose writes reach nobody else
    with closing(Store(Target.parse(replica_set.uri.replace("/?", "/majority?")))) as store:
        store.prepare()
        on_the_roster(store, "w1")
        primary = replica_set.primary()
        others = [psutil.Process(node.pid) for node in replica_set.nodes if node is not primary and node.pid]
        for node in others:
            node.suspend()

        # when the leader's assignment is written there
        alone = store.roster.collection.with_options(write_concern=WriteConcern(1))
        alone.update_one({"_id": "w1"}, {"$push": {"assigned": "a"}, "$inc": {"given": 1}})
        assert store.roster.held() == {"a"}

        # then the worker does not learn of it
        holding = store.roster.holding("w1")
        assert holding is not None
        assert holding.assigned == []
        assert store.roster.holds_any("w1")

        # until the others have it too
        for node in others:
            node.resume()
        eventually(lambda: (found := store.roster.holding("w1")) is not None and found.assigned == ["a"])
