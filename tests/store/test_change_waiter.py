"""A change waiter rings while it is armed, and costs the server nothing while its owner has hung up."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from bson.binary import UUID_SUBTYPE, Binary
from pymongo import MongoClient

from recruiter.store.change_stream import LANE_CHANGES, Change, ChangeWaiter
from recruiter.store.codec import Document
from recruiter.store.database import Store
from tests.conftest import eventually


class Listener:
    """Somebody who opens when it rings."""

    def __init__(self) -> None:
        self.heard: list[Sequence[Change]] = []
        self.rung = threading.Event()

    def hear(self, changes: Sequence[Change]) -> None:
        self.heard.append(changes)
        self.rung.set()


Pair = tuple[ChangeWaiter, Listener]


@pytest.fixture
def trouble() -> list[str | None]:
    return []


@pytest.fixture(params=["collection", "database"])
def bell(request: pytest.FixtureRequest, store: Store, trouble: list[str | None]) -> Iterator[Pair]:
    place = store.database["door"] if request.param == "collection" else store.database
    listener = Listener()
    bell = ChangeWaiter(place, {"operationType": "insert"}, listener.hear, trouble.append)
    yield bell, listener
    bell.hang_up()
    bell.close()


def listens(bell: Pair) -> None:
    """Until it waits for something new."""
    bell[0].arm()
    eventually(lambda: bell[0].listening)
    bell[1].rung.clear()


def happens(store: Store, *lanes: str | None) -> None:
    store.database["door"].insert_many([{"lane": lane} for lane in lanes])


def questions(store: Store, target: str) -> list[Document]:
    """What the server reads its history for."""
    with closing(MongoClient[Document](target)) as client:
        found = client.admin.aggregate([{"$currentOp": {"allUsers": True, "idleCursors": True}}])
        cursors = [operation.get("cursor", {}).get("originatingCommand", {}) for operation in found]
        ours = store.target.database
        return [c for c in cursors if c.get("$db") == ours and "$changeStream" in str(c.get("pipeline"))]


def test_of_a_change_it_tells_the_lane_if_it_is_asked_to(store: Store, trouble: list[str | None]) -> None:
    """A leader that has released a step need not look for what other programs have written."""
    listener = Listener()
    bell = ChangeWaiter(store.database, {"operationType": "update"}, listener.hear, trouble.append, LANE_CHANGES)
    try:
        happens(store, "before")
        listens((bell, listener))
        for change in ({"lane": "after"}, {"other": 1}):
            store.database["door"].update_one({}, {"$set": change})
            eventually(listener.rung.is_set)
            listens((bell, listener))

        assert [heard for heard in listener.heard if heard] == [[Change("door", "after")], [Change("door", None)]]
    finally:
        bell.close()


def test_a_closed_stream_costs_nothing_and_can_be_opened_again(
    bell: Pair, store: Store, target: str, trouble: list[str | None]
) -> None:
    """Given a stream that waits for what never comes, when its owner hangs up, then the server forgets it with the next
    write; and what happens after it is armed again is told."""
    listens(bell)
    eventually(lambda: questions(store, target))

    bell[0].hang_up()

    def gone_with_the_next_write() -> bool:
        store.client.admin.command("appendOplogNote", data={"anything": True})
        return not questions(store, target)

    eventually(gone_with_the_next_write, within=5.0)  # by itself it would wait for ten seconds
    listens(bell)
    happens(store, "later")
    eventually(lambda: bell[1].heard[-1] == [Change("door", "later")])
    assert trouble == []


def test_an_event_that_cannot_be_read_rings_and_the_stream_stays(
    bell: Pair, store: Store, trouble: list[str | None]
) -> None:
    """Given a document that was written by hand, when its event arrives, then the owner polls, and hears later ones."""
    listens(bell)

    store.database["door"].insert_one({"lane": "hostile", "scheduled_at": Binary(b"abc", UUID_SUBTYPE)})

    eventually(bell[1].rung.is_set)
    listens(bell)
    happens(store, "later")
    eventually(lambda: bell[1].heard[-1] == [Change("door", "later")])
    assert trouble == []


@pytest.mark.parametrize("bell", ["collection"], indirect=True)
def test_a_stream_that_ends_is_opened_again(bell: Pair, store: Store, trouble: list[str | None]) -> None:
    happens(store, "before")
    listens(bell)
    store.database["door"].drop()
    eventually(lambda: not bell[1].heard[-1] and bell[1].rung.is_set())

    listens(bell)

    happens(store, "another")
    eventually(lambda: bell[1].heard[-1] == [Change("door", "another")])
    assert trouble == []


@pytest.mark.parametrize("bell", ["collection"], indirect=True)
def test_a_stream_that_is_lost_is_opened_again_without_a_word(
    bell: Pair, store: Store, trouble: list[str | None]
) -> None:
    """Given somebody who listens, when the server forgets the stream, as a new primary does, then what happens later is
    told, and nobody was bothered."""
    happens(store, "before")
    listens(bell)
    stream = bell[0]._stream
    assert stream is not None

    store.database.command({"killCursors": "door", "cursors": [stream[0]]})
    happens(store, "wakes the question that waits")
    eventually(lambda: bell[0]._stream not in (None, stream))
    listens(bell)
    happens(store, "after")

    eventually(lambda: Change("door", "after") in bell[1].heard[-1])
    assert trouble == []


@pytest.mark.parametrize("bell", ["collection"], indirect=True)
def test_a_lost_stream_is_logged_once_and_so_is_its_return(bell: Pair, store: Store, trouble: list[str | None]) -> None:
    # given a stream that the server refuses
    happens(store, "before")
    pipeline, bell[0]._watch["pipeline"] = bell[0]._watch["pipeline"], [{"$changeStream": {}}, {"$nonsense": {}}]
    bell[0].arm()
    eventually(lambda: trouble)

    # when it no longer does
    bell[0]._watch["pipeline"] = pipeline
    listens(bell)

    # then both were said, once each
    assert trouble[0] is not None
    assert "nonsense" in trouble[0]
    assert trouble[1:] == [None]
