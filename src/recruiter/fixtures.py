"""What the fixtures of `pytest_plugin.py` do; imported when a test asks for the first of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from datetime import datetime

from recruiter.app import Recruiter
from recruiter.embedded import EmbeddedServer
from recruiter.store.codec import new_id
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.testing import Sandbox

TARGET_VARIABLE = "RECRUITER_TEST_TARGET"


def server() -> Iterator[str]:
    """The address of the MongoDB for tests."""
    named = os.environ.get(TARGET_VARIABLE)
    with nullcontext() if named else EmbeddedServer() as server:
        yield named or server.uri  # type: ignore[union-attr]


def target(server: str) -> Iterator[str]:
    """The address of a database that only this run knows; removed at its end."""
    target = Target.parse(server).in_database(f"recruiter_test_{new_id()}")
    yield target.uri
    with closing(Store(target)) as store:
        store.drop()


def sandboxes(target: str) -> Iterator[Callable[..., Sandbox]]:
    """Puts applications on a private, empty database."""
    opened: list[Sandbox] = []

    def sandbox(recruiter: Recruiter, *, now: datetime | None = None) -> Sandbox:
        opened.append(Sandbox(recruiter, target, now=now))
        return opened[-1]

    yield sandbox
    for each in reversed(opened):
        each.close()
