"""The disk of the MongoDB server is full: the fleet waits, says why, and goes on when there is space again."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from recruiter.embedded import EmbeddedServer
from recruiter.errors import StoreError
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.applications import jobs
from tests.cli_here import here
from tests.conftest import Starter, eventually

JOBS = jobs.__file__
SIZE = "500m"
PIECE = 64 * 1024
QUICK = {"RECRUITER_CONSIDERED_DEAD_AFTER": "5s", "RECRUITER_LEASE_TIME": "2s"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs")
    mounted = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a file system of its own cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def own_server(small_disk: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(small_disk / "mongodb") as server:
        yield server


@pytest.fixture
def target(own_server: EmbeddedServer) -> str:
    """Instead of the suite's: this one has a small disk."""
    return own_server.uri.replace("/?", "/full?")


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * PIECE)
    return filler


def refused(store: Store, number: int) -> str | None:
    """What is said to somebody who writes a lot; None as long as there is space."""
    try:
        store.archived.collection.insert_many(
            {"_id": f"{number}-{each}", "data": os.urandom(PIECE)} for each in range(16)
        )
    except Exception as error:
        return str(error)
    return None


@pytest.mark.timeout(300)
def test_everything_waits_and_resumes_when_there_is_space_again(
    start: Starter, own_server: EmbeddedServer, small_disk: Path, target: str, tmp_path: Path
) -> None:
    # given a fleet at work
    recruiter = start("start", "recruiter", "--bootstrap", JOBS, **QUICK)
    cleaner = start("start", "cleaner", **QUICK)
    worker = start("start", "worker", "--bootstrap", JOBS, "--processes", "2", **QUICK)
    fleet = (recruiter, cleaner, worker)
    worker.says("joined the roster")
    handles = [jobs.record.enqueue(str(tmp_path), f"before-{number}", 0.3) for number in range(20)]
    eventually(lambda: (tmp_path / "before-3").exists())

    # when the disk of the server is full
    filler = fill(small_disk)
    writer = Store(Target.parse(target), patience=2.0)
    with suppress(StoreError):
        writer.database.command({"collMod": writer.archived.collection.name, "validator": {}})
    said = next(text for number in range(500) if (text := refused(writer, number)))
    writer.close()
    print(f"the server lives: {own_server.running}; it said: {said[:300]}")

    # then the fleet says so, once for each loop, does not end, and is not ready
    for process in (recruiter, worker):
        process.says("trying again", within=60)
    began, before = time.monotonic(), sum(len(process.log.splitlines()) for process in fleet)
    eventually(lambda: time.monotonic() - began > 5, within=10)
    lines = sum(len(process.log.splitlines()) for process in fleet) - before
    print(f"{lines} lines in 5 s")
    assert lines < 30
    assert here(target, "health", "--role", "worker")[0] != 0
    assert [process.popen.poll() for process in fleet] == [None, None, None]

    # and when there is space again, and the server runs, it goes on
    filler.unlink()
    if not own_server.running:
        assert own_server.start()
    assert jobs.add.enqueue(2, 3).result(timeout=60) == 5
    for handle in handles:
        assert handle.wait(timeout=60).done
    assert [process.popen.poll() for process in fleet] == [None, None, None]
    worker.says("answers again")
    for process in fleet:
        assert "a bug in Recruiter" not in process.log
