"""What process tests share: the application of `tests/applications/jobs.py`, on this test's database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recruiter.store.database import Store
from tests.applications import jobs


@pytest.fixture(autouse=True)
def application(target: str, store: Store) -> Iterator[None]:
    del store  # prepared
    jobs.recruiter.point_at(target)
    yield
    jobs.recruiter.close()
