"""Operation, through the command line: the processes, and how long each may be silent."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from recruiter import Recruiter
from tests.cli_here import here
from tests.conftest import Process, Starter, eventually

APPLICATION = """
import os, time
from pathlib import Path
from recruiter import Recruiter

recruiter = Recruiter()

@recruiter.task
def hold(folder: str, name: str) -> None:
    with (Path(folder) / name).open("a") as file:
        file.write(f"{os.getpid()}\\n")
    while not (Path(folder) / "over").exists():
        time.sleep(0.05)
"""


def workers(target: str) -> dict[int, dict[str, Any]]:
    """The roster, by pid."""
    code, said = here(target, "worker", "list", "--output", "json")
    assert code == 0, said
    return {worker["pid"]: worker for worker in json.loads(said)}


def start_worker(start: Starter, application: Path, group: str, dead_after: str) -> Process:
    own = ("--work-on", group, "--considered-dead-after", dead_after)
    worker = start("start", "worker", "--bootstrap", str(application), *own)
    worker.says("joined the roster")
    return worker


def test_a_worker_is_dead_after_the_time_that_it_declares_itself(start: Starter, target: str, tmp_path: Path) -> None:
    """No setting of a recruiter or a cleaner makes it shorter: the job would run twice."""
    application = tmp_path / "application.py"
    application.write_text(APPLICATION)
    # given two workers with different times, each with a job
    recruiter_process = start("start", "recruiter")
    patient = start_worker(start, application, "patient", "10m")
    hasty = start_worker(start, application, "hasty", "3s")
    with Recruiter(target) as recruiter:
        jobs = {
            group: recruiter.job("hold", {"folder": str(tmp_path), "name": group}).in_group(group).enqueue()
            for group in ("patient", "hasty")
        }
        eventually(lambda: all((tmp_path / group).exists() for group in jobs))
        eventually(lambda: all(worker["runs"] for worker in workers(target).values()))

        # when both are frozen, no recruiter leads, and a cleaner runs with default settings
        assert recruiter_process.stop() == 0
        start("start", "cleaner").says("keeps the archive small")
        for worker in (patient, hasty):
            worker.signal(signal.SIGSTOP)

        # then the cleaner retires only the worker whose time is over
        eventually(lambda: hasty.pid not in workers(target))
        assert workers(target)[patient.pid]["state"] == "works"
        assert recruiter.analytics(group="patient").jobs.zombies == 0

        # and a recruiter with a shorter time leaves the other one alone
        start_worker(start, application, "patient", "10m")
        third = start_worker(start, application, "third", "3s")
        start("start", "recruiter", "--considered-dead-after", "3s").says("is the leader now")
        third.signal(signal.SIGSTOP)
        eventually(lambda: third.pid not in workers(target))
        code, said = here(target, "doctor")
        assert f"worker {workers(target)[patient.pid]['worker']}: 1 slot on patient" in said, (code, said)
        asked = ("health", "--role", "worker", "--pid", str(patient.pid), "--considered-dead-after", "3s")
        assert here(target, *asked)[0] == 0
        assert (tmp_path / "patient").read_text().count("\n") == 1, "its job ran once"

        # and when it goes on, its job ends
        patient.signal(signal.SIGCONT)
        (tmp_path / "over").touch()
        jobs["patient"].result(timeout=60)
        assert (tmp_path / "patient").read_text().count("\n") == 1
