"""Prepared databases that tests use one after the other: making the indexes of one costs more than most tests.

A database is emptied before each test. Process tests kill processes in the middle of a write, so theirs rests while
others are used (`Databases`). The folders `store` and `steps` kill none, and share a single one: their conftest imports
the fixtures below, which stand in for those in `tests/conftest.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from bson import ObjectId

from recruiter.embedded import EmbeddedServer
from recruiter.store import ownership
from recruiter.store.connection import Target
from recruiter.store.database import Store

RESTING = 2


class Databases:
    """The prepared databases of one server."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._resting: deque[tuple[Store, list[dict[str, Any]]]] = deque()
        self.in_use: Store | None = None
        """The one that a test has now: everything in it is prepared."""

    @contextmanager
    def one(self) -> Iterator[str]:
        """The address of a database with nothing in it, for one test."""
        if len(self._resting) < RESTING:
            store = Store(Target.parse(self._server.uri).in_database(f"test_{ObjectId()}"))
            store.prepare()
            made = catalog(store)
        else:
            store, made = self._resting.popleft()
            empty(store)
        self.in_use = store
        yield store.target.uri
        self.in_use = None
        store.client.admin.command("killAllSessions", [])  # processes that were killed in a transaction hold locks
        if catalog(store) != made:
            store.drop()  # the test changed indexes or validators
            store.close()
        else:
            self._resting.append((store, made))

    def close(self) -> None:
        for store, _ in self._resting:
            store.drop()
            store.close()


def catalog(store: Store) -> list[dict[str, Any]]:
    """The collections of Recruiter with their options and indexes, in one answer of the server."""
    ours = {"db": store.target.database, "name": {"$in": store.collections()}}
    said = {"$project": {"name": True, "md.options": True, "md.indexes.spec": True}}
    return list(store.client.admin.aggregate([{"$listCatalog": {}}, {"$match": ours}, {"$sort": {"name": 1}}, said]))


def empty(store: Store) -> None:
    """Leaves the collections of Recruiter with nothing in them, and no others. Most are empty already, and to ask costs
    less than to delete nothing."""
    for name in set(store.database.list_collection_names()) - set(store.collections()):
        store.database.drop_collection(name)
    first, *others = (name for name in store.collections() if name != store.name_of(ownership.NAME))
    union = [{"$unionWith": {"coll": name, "pipeline": _one_of(name)}} for name in others]
    for found in list(store.database.get_collection(first).aggregate([*_one_of(first), *union])):
        store.database.get_collection(found["collection"]).delete_many({})


def _one_of(collection: str) -> list[dict[str, Any]]:
    return [{"$limit": 1}, {"$project": {"_id": 0, "collection": {"$literal": collection}}}]


@pytest.fixture(scope="session")
def prepared(server: EmbeddedServer) -> Iterator[Store]:
    """The database itself."""
    with closing(Store(Target.parse(server.uri).in_database(f"test_{ObjectId()}"))) as prepared:
        prepared.prepare()
        yield prepared
        prepared.drop()


@pytest.fixture
def target(prepared: Store) -> str:
    """The address of a database with nothing in it."""
    empty(prepared)
    return prepared.target.uri


@pytest.fixture
def store(target: str, prepared: Store) -> Iterator[Store]:
    """This test's own, on a connection that all of them share: to make one costs more than most tests."""
    with closing(Store(Target.parse(target), application_client=prepared.client)) as store:
        store.check()
        yield store


@pytest.fixture(name="store")
def connected(target: str) -> Iterator[Store]:
    """For tests about the connection itself, which have one of their own."""
    with closing(Store(Target.parse(target))) as store:
        store.check()
        yield store
