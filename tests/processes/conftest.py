"""What process tests share: the application of `tests/applications/jobs.py`, on this test's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from recruiter import Recruiter
from recruiter.settings import Settings
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.applications import jobs
from tests.leading import leading

Lead = Callable[..., None]


@pytest.fixture(autouse=True)
def application(request: pytest.FixtureRequest, target: str, store: Store) -> Iterator[None]:
    """Points an application at this test's database: `jobs`, or the module that a file of tests names in `RUNS`."""
    recruiter: Recruiter = getattr(request.module, "RUNS", jobs).recruiter
    recruiter.point_at(target)
    yield
    recruiter.close()


@pytest.fixture
def lead(target: str) -> Iterator[Lead]:
    """Leads this test's database, from a thread of the test: for tests about workers, which need not wait until one
    more process is up."""
    with ExitStack() as stack:
        store = stack.enter_context(closing(Store(Target.parse(target))))

        def lead(lease_time: float = 5.0, dead_after: float = 15.0) -> None:
            store.prepare()
            settings = Settings(lease_time=lease_time, considered_dead_after=dead_after)
            stack.enter_context(leading(store, settings))

        yield lead
