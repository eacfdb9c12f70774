"""A doorbell rings while it is armed, and costs the server nothing while its owner has hung up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from pymongo import MongoClient

from recruiter.store.codec import Document
from recruiter.store.database import Store
from recruiter.store.doorbell import Doorbell
from tests.conftest import eventually


@pytest.fixture
def trouble() -> list[str]:
    return []


@pytest.fixture(params=["collection", "database"])
def bell(request: pytest.FixtureRequest, store: Store, trouble: list[str]) -> Iterator[Doorbell]:
    place = store.database["door"] if request.param == "collection" else store.database
    rung = threading.Event()
    bell = Doorbell(place, {"operationType": "insert"}, lambda _: rung.set(), trouble.append)
    bell.rung = rung  # type: ignore[attr-defined]
    yield bell
    bell.hang_up()
    bell.close()


def listens(bell: Doorbell) -> None:
    """Until it waits for something new."""
    bell.arm()
    eventually(lambda: bell.listening)
    bell.rung.clear()  # type: ignore[attr-defined]


def rings(bell: Doorbell, store: Store, name: str) -> None:
    store.database["door"].insert_one({"_id": name})
    assert bell.rung.wait(10)  # type: ignore[attr-defined]


def questions(store: Store, target: str) -> list[Document]:
    """What the server reads its history for."""
    with closing(MongoClient[Document](target)) as client:
        found = client.admin.aggregate([{"$currentOp": {"allUsers": True, "idleCursors": True}}])
        cursors = [operation.get("cursor", {}).get("originatingCommand", {}) for operation in found]
        ours = store.target.database
        return [c for c in cursors if c.get("$db") == ours and "$changeStream" in str(c.get("pipeline"))]


def test_it_rings_once_for_each_time_it_is_armed(bell: Doorbell, store: Store) -> None:
    listens(bell)
    rings(bell, store, "one")

    bell.rung.clear()  # type: ignore[attr-defined]
    bell.arm()

    rings(bell, store, "two")


def test_whoever_hangs_up_costs_nothing_and_listens_again_later(
    bell: Doorbell, store: Store, target: str, trouble: list[str]
) -> None:
    """Given a stream that waits for what never comes, when its owner hangs up, then the server forgets it with the next
    write; and what happens after it is armed again is told."""
    listens(bell)
    eventually(lambda: questions(store, target))

    bell.hang_up()

    def gone_with_the_next_write() -> bool:
        store.client.admin.command("appendOplogNote", data={"anything": True})
        return not questions(store, target)

    eventually(gone_with_the_next_write, within=5.0)  # by itself it would wait for ten seconds
    listens(bell)
    rings(bell, store, "later")
    assert trouble == []


@pytest.mark.parametrize("bell", ["collection"], indirect=True)
def test_a_stream_that_ends_is_opened_again(bell: Doorbell, store: Store, trouble: list[str]) -> None:
    store.database["door"].insert_one({})
    listens(bell)
    store.database["door"].drop()
    eventually(lambda: bell.rung.is_set())  # type: ignore[attr-defined]

    listens(bell)

    rings(bell, store, "another")
    assert trouble == []
