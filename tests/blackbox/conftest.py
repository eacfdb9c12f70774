"""What black-box tests share: applications in files of their own, and the database as another program sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from recruiter import Recruiter

Written = Callable[[str], str]


@pytest.fixture
def scheduled(target: str, recruiter: Recruiter) -> Iterator[Collection[dict[str, Any]]]:
    """The collection of waiting jobs, through a client of its own."""
    client: MongoClient[dict[str, Any]]
    with MongoClient(target, tz_aware=True) as client:
        yield client.get_default_database()[recruiter.store.scheduled.collection.name]


@pytest.fixture
def application(tmp_path: Path) -> Written:
    """Writes an application to a file, and returns its path for `--bootstrap`."""

    def written(source: str) -> str:
        path = tmp_path / "application.py"
        path.write_text(dedent(source))
        return str(path)

    return written
