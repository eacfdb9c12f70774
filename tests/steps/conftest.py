"""These tests share one prepared database."""

from __future__ import annotations

import pytest

from recruiter import Recruiter
from tests.flows import Stage
from tests.prepared import prepared, store, target

__all__ = ["prepared", "store", "target"]


@pytest.fixture
def stage(recruiter: Recruiter) -> Stage:
    """A stage whose steps are of one task."""

    @recruiter.task
    def work(name: str) -> None: ...

    return Stage(recruiter)
