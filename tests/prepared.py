"""One prepared database for a folder of tests, emptied before each: making indexes every time costs more than the test.

Imported by the conftest of the folders that need it; there these fixtures stand in for the ones in `tests/conftest.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bson import ObjectId

from recruiter.embedded import EmbeddedServer
from recruiter.store.connection import Target
from recruiter.store.database import Store


@pytest.fixture(scope="session")
def prepared(server: EmbeddedServer) -> Iterator[Store]:
    """The database itself, through a connection that no test uses."""
    name = f"test_{ObjectId()}"
    prepared = Store(Target.parse(server.uri.replace("/?", f"/{name}?")))
    prepared.prepare()
    yield prepared
    prepared.client.drop_database(name)
    prepared.close()


@pytest.fixture
def target(prepared: Store) -> str:
    """The address of a database with nothing in it."""
    for name in prepared.database.list_collection_names():
        prepared.database[name].delete_many({})
    return prepared.target.uri


@pytest.fixture
def store(target: str) -> Iterator[Store]:
    store = Store(Target.parse(target))
    store.check()
    yield store
    store.close()
