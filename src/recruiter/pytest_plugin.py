"""Fixtures for the tests of applications; installed with the package, active wherever pytest runs.

The private MongoDB is started when the first test asks for it. To use one of your own instead, name it in
RECRUITER_TEST_TARGET, e.g. `mongodb://localhost:27017/?replicaSet=rs0`: each run makes, and removes, databases of its
own there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from datetime import datetime

import pytest

from recruiter.app import Recruiter
from recruiter.embedded import EmbeddedServer
from recruiter.store.codec import new_id
from recruiter.store.database import Store
from recruiter.store.target import Target
from recruiter.testing import Sandbox

TARGET_VARIABLE = "RECRUITER_TEST_TARGET"


@pytest.fixture(scope="session")
def recruiter_server() -> Iterator[str]:
    """The address of the MongoDB for tests."""
    named = os.environ.get(TARGET_VARIABLE)
    with nullcontext() if named else EmbeddedServer() as server:
        yield named or server.uri  # type: ignore[union-attr]


@pytest.fixture(scope="session")
def recruiter_target(recruiter_server: str) -> Iterator[str]:
    """The address of a database that only this run knows; removed at its end."""
    target = Target.parse(recruiter_server).in_database(f"recruiter_test_{new_id()}")
    yield target.uri
    with closing(Store(target)) as store:
        store.drop()


@pytest.fixture
def recruiter_sandbox(recruiter_target: str) -> Iterator[Callable[..., Sandbox]]:
    """Puts an application on a private, empty database for one test: `jobs = recruiter_sandbox(shop.recruiter)`."""
    opened: list[Sandbox] = []

    def sandbox(recruiter: Recruiter, *, now: datetime | None = None) -> Sandbox:
        opened.append(Sandbox(recruiter, recruiter_target, now=now))
        return opened[-1]

    yield sandbox
    for each in reversed(opened):
        each.close()
