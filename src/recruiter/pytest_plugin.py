"""Fixtures for the tests of applications; installed with the package, active in every run of pytest.

The private MongoDB is started when the first test asks for it. To use another MongoDB, name it in
RECRUITER_TEST_TARGET, e.g. `mongodb://localhost:27017/?replicaSet=rs0`. Each run creates and removes its own databases
there.

pytest imports this module in every project of an environment in which Recruiter is installed. So it imports nothing
until a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from recruiter.testing import Sandbox


def _testing() -> Any:
    return import_module("recruiter.testing")


@pytest.fixture(scope="session")
def recruiter_server() -> Iterator[str]:
    """The address of the MongoDB for tests."""
    yield from _testing().server()


@pytest.fixture(scope="session")
def recruiter_target(recruiter_server: str) -> Iterator[str]:
    """The address of a database that only this run knows; removed at its end."""
    yield from _testing().target(recruiter_server)


@pytest.fixture
def recruiter_sandbox(recruiter_target: str) -> Iterator[Callable[..., Sandbox]]:
    """Puts an application on a private, empty database for one test: `jobs = recruiter_sandbox(shop.recruiter)`."""
    yield from _testing().sandboxes(recruiter_target)
