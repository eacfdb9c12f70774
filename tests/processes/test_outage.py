"""MongoDB goes away and comes back: every process resumes by itself, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from recruiter.embedded import EmbeddedServer
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Starter, eventually
from tests.processes.conftest import Lead

JOBS = jobs.__file__
AWAY = 8.0
QUICK = {"RECRUITER_CONSIDERED_DEAD_AFTER": "5s", "RECRUITER_LEASE_TIME": "2s"}


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "mongodb") as server:
        yield server


@pytest.fixture
def target(own_server: EmbeddedServer) -> str:
    """Instead of the suite's: this one is taken away."""
    return own_server.uri.replace("/?", "/outage?")


def test_everything_resumes_after_a_while_without_mongodb(
    start: Starter, own_server: EmbeddedServer, target: str, tmp_path: Path
) -> None:
    # given a fleet at work, with one job in the middle
    recruiter = start("start", "recruiter", "--bootstrap", JOBS, **QUICK)
    cleaner = start("start", "cleaner", **QUICK)
    worker = start("start", "worker", "--bootstrap", JOBS, "--processes", "2", **QUICK)
    worker.says("joined the roster")
    handles = [jobs.record.enqueue(str(tmp_path), f"before-{number}", 0.2) for number in range(20)]
    short = jobs.record.enqueue(str(tmp_path), "during", 3.0)
    eventually(lambda: (tmp_path / "before-5").exists())

    # when MongoDB is away for longer than a worker may be silent
    own_server.stop()
    gone_at = time.monotonic()
    for process in (recruiter, worker):
        process.says("trying again")
    eventually(lambda: time.monotonic() - gone_at > AWAY, within=AWAY + 5)
    assert own_server.start()

    # then every process goes on by itself, and every job ends once
    fresh = jobs.add.enqueue(2, 3)
    assert fresh.result(timeout=60) == 5
    for handle in [*handles, short]:
        assert handle.wait(timeout=60).done
    for process in (recruiter, worker, cleaner):
        assert process.popen.poll() is None
    worker.says("answers again")
    store = Store(Target.parse(target))
    assert store.scheduled.collection.count_documents({}) == 0
    assert store.archived.collection.count_documents({}) == 22
    # nobody was declared dead for MongoDB's absence
    assert "was retired" not in recruiter.log + cleaner.log
    assert len(store.roster.entries()) == 1
    store.close()


def test_a_worker_that_cannot_reach_mongodb_ends_what_it_runs(
    lead: Lead, start: Starter, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    # given a worker with a job that takes long
    lead(2.0, 5.0)
    worker = start("start", "worker", "--bootstrap", JOBS, **QUICK)
    jobs.record.enqueue(str(tmp_path), "long", 600.0)
    eventually(lambda: (tmp_path / "long").exists() and (tmp_path / "long").read_text().endswith("\n"))
    (pid,) = (int(line.split()[1]) for line in (tmp_path / "long").read_text().splitlines())

    # when it has not been heard of for so long that the job may have been given to others
    own_server.stop()

    # then the job is ended, although MongoDB is still away
    eventually(lambda: not psutil.pid_exists(pid), within=30)
    worker.says("others may run its jobs by now")
    assert worker.popen.poll() is None
    # and it runs again when MongoDB is there again
    assert own_server.start()
    eventually(lambda: (tmp_path / "long").read_text().count("started") == 2, within=60)
