"""`recruiter health`: what a probe hears of processes that work, hang, or are not there."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from recruiter.embedded import EmbeddedServer
from recruiter.store.database import Store
from tests.acceptance.test_command_line import run
from tests.applications import jobs
from tests.cli_here import here
from tests.conftest import Process, Starter, eventually

ALL = ("worker", "recruiter", "cleaner")
HASTY = {"RECRUITER_CONSIDERED_DEAD_AFTER": "3s"}


def health(target: str, *arguments: str) -> tuple[int, str]:
    return here(target, "health", "--considered-dead-after", "3s", *arguments)


@pytest.mark.parametrize("role", ALL)
def test_a_process_is_healthy_while_its_loop_goes_round(
    role: str, start: Starter, target: str, signs: dict[str, str]
) -> None:
    # given a process that is at work
    process = start("start", role, "--bootstrap", jobs.__file__, **HASTY)
    process.says(signs[role])
    eventually(lambda: health(target, "--role", role)[0] == 0)  # it shows itself after its first round
    assert health(target, "--role", role, "--pid", str(process.pid), "--live")[0] == 0

    # when it hangs
    process.signal(signal.SIGSTOP)

    # then probes of both kinds say so
    def hangs() -> bool:
        code, said = health(target, "--role", role, "--live")
        return code == 1 and "has been silent" in said

    eventually(hangs, within=30)

    # and when it goes on, all is well again
    process.signal(signal.SIGCONT)
    eventually(lambda: health(target, "--role", role)[0] == 0, within=30)
    assert process.stop() == 0
    code, said = health(target, "--role", role)
    assert code == 1
    assert f"no {role} on" in said


@pytest.fixture
def signs() -> dict[str, str]:
    return {"worker": "joined the roster", "recruiter": "is the leader now", "cleaner": "keeps the archive small"}


def test_the_processes_of_other_hosts_do_not_count(start: Starter, target: str) -> None:
    worker = start("start", "worker", "--bootstrap", jobs.__file__, "--host", "elsewhere", **HASTY)
    worker.says("joined the roster")

    code, said = health(target, "--role", "worker")

    assert code == 1
    assert socket.gethostname() in said
    assert health(target, "--role", "worker", "--host", "elsewhere")[0] == 0
    assert health(target, "--role", "worker", "--host", "elsewhere", "--pid", "1")[0] == 1


def test_without_mongodb_only_liveness_is_given_the_benefit_of_the_doubt(tmp_path: Path) -> None:
    nowhere = "127.0.0.1:1/shop"
    assert run("health", "--target", nowhere, cwd=tmp_path)[0] == 4
    assert run("health", "--target", nowhere, "--role", "worker", cwd=tmp_path)[0] == 4
    code, said = run("health", "--target", nowhere, "--role", "worker", "--live", cwd=tmp_path)
    assert code == 0
    assert "the process is unknown" in said


def test_a_frozen_mongodb_is_told_from_a_frozen_process(tmp_path: Path) -> None:
    """Given a server that accepts and never answers, then the probe does not hang."""
    with EmbeddedServer(tmp_path) as server:
        frozen = psutil.Process(server.pid)
        frozen.suspend()
        try:
            code, said = run("health", "--target", f"{server.uri}", within=20)
        finally:
            frozen.resume()
    assert code == 4
    assert "does not answer" in said


def test_no_application_is_loaded(target: str, tmp_path: Path) -> None:
    (tmp_path / "explodes.py").write_text("raise SystemExit(99)\n")

    code, _ = run("health", "--target", target, RECRUITER_BOOTSTRAP="explodes.py", cwd=tmp_path)

    assert code == 0


def test_a_ttl_index_forgets_killed_processes(start: Starter, store: Store) -> None:
    process: Process = start("start", "cleaner")
    process.says("keeps the archive small")
    (entry,) = store.processes.entries()
    assert (entry.role, entry.pid) == ("cleaner", process.pid)
    assert entry.clock_offset is not None

    assert process.stop() == 0

    assert store.processes.entries() == []
    (index,) = [i for i in store.processes.collection.list_indexes() if i["name"] == "gone"]
    assert index["expireAfterSeconds"] == 3600


def test_a_leader_whose_clock_goes_wrong_sets_it_by_the_servers(target: str) -> None:
    """Given a process an hour off, when it shows itself, then its clock agrees and the offset is there to be seen."""
    script = (
        "import sys; from datetime import timedelta\n"
        "from recruiter.store.database import Store; from recruiter.store.connection import Target\n"
        "from recruiter.processes.loop import Presence\n"
        "store = Store(Target.parse(sys.argv[1])); store.clock.offset = timedelta(hours=1)\n"
        "presence = Presence(store, 'recruiter', every=0.0); presence.show(); presence.show()\n"
        "store.close()"
    )
    subprocess.run([sys.executable, "-c", script, target], check=True)
    store = Store(jobs.recruiter.target)
    with closing(store):
        (entry,) = store.processes.entries()
    assert entry.clock_offset is not None
    assert abs(entry.clock_offset) < 30
