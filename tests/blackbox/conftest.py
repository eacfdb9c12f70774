"""What black-box tests share: applications in files of their own, and the database as another program sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.collection import Collection

from recruiter import Recruiter
from recruiter.embedded import EmbeddedServer
from recruiter.store.database import Store
from recruiter.testing import Sandbox
from tests.applications import mission
from tests.cli_here import here
from tests.conftest import Process, Starter, starting

GROUPS = ("--work-on", "generic", "--work-on", "defaults", "--work-on", "shared")
Written = Callable[[str], str]


@pytest.fixture
def scheduled(target: str, recruiter: Recruiter) -> Iterator[Collection[dict[str, Any]]]:
    """The collection of waiting jobs, through a client of its own."""
    client: MongoClient[dict[str, Any]]
    with MongoClient(target, tz_aware=True) as client:
        yield client.get_default_database()[recruiter.store.scheduled.collection.name]


@pytest.fixture
def local(target: str, store: Store) -> Iterator[Recruiter]:
    """An application whose jobs this test runs itself."""
    with Recruiter(target) as recruiter:
        yield recruiter


@pytest.fixture
def application(tmp_path: Path) -> Written:
    """Writes an application to a file, and returns its path for `--bootstrap`."""

    def written(source: str) -> str:
        path = tmp_path / "application.py"
        path.write_text(dedent(source))
        return str(path)

    return written


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest, application: Written) -> str:
    """The path of the application that the test's file has as `APPLICATION`."""
    return application(request.module.APPLICATION)


@pytest.fixture
def jobs(local: Recruiter, target: str) -> Iterator[Sandbox]:
    """A clock that can be moved."""
    sandbox = Sandbox(local, target)
    yield sandbox
    sandbox.close()


@dataclass(frozen=True)
class Fleet:
    """A recruiter, a cleaner and a worker with two processes, on a database that the tests of one file share.

    The worker takes jobs of the groups `generic`, `defaults` and `shared`; a test that starts its own worker uses a
    group of its own."""

    recruiter: Recruiter
    target: str
    folder: Path
    start: Starter
    worker: Process

    def command(self, *arguments: str) -> Any:
        """The JSON that this command prints."""
        code, printed = here(self.target, *arguments, "--output", "json")
        assert code == 0, printed
        return json.loads(printed)

    def over(self, name: str) -> None:
        """Lets the job that holds a slot with this name end."""
        (self.folder / f"{name}.over").touch()


@pytest.fixture(scope="module")
def fleet_at_work(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    target = server.uri.replace("/?", f"/mission_{ObjectId()}?")
    folder = tmp_path_factory.mktemp("mission")
    mission.recruiter.point_at(target)
    bootstrap = str(Path(mission.__file__))
    with starting(target, folder) as start:
        start("start", "recruiter", "--bootstrap", bootstrap, MISSION_HOOKS=str(folder))
        start("start", "cleaner")
        worker = start("start", "worker", "--bootstrap", bootstrap, "--processes", "2", *GROUPS)
        worker.says("joined the roster")
        yield Fleet(mission.recruiter, target, folder, start, worker)
    mission.recruiter.close()
    client: MongoClient[dict[str, Any]]
    with MongoClient(target) as client:
        client.drop_database(client.get_default_database())
