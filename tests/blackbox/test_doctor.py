"""`recruiter doctor` in ten situations: the code of the finding, its level, and the exit code."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.doctor import Thresholds, examine
from recruiter.doctor.findings import Code
from recruiter.store.database import Store
from tests.cli_here import here
from tests.conftest import Process, eventually

Start = Callable[..., Process]

APPLICATION = """
import os, pathlib, time
from recruiter import Recruiter
recruiter = Recruiter()

@recruiter.task
def quick() -> None: ...

@recruiter.task
def waits(path: str) -> None:
    while not pathlib.Path(path).exists():
        time.sleep(0.02)

@recruiter.task(max_crashes=1)
def kills() -> None:
    os._exit(9)
"""


class Doctor:
    def __init__(self, target: str) -> None:
        self._target = target

    def __call__(self, *options: str) -> tuple[int, dict[str, dict[str, str]]]:
        """The exit code, and the notes and problems by their code."""
        code, said = here(self._target, "doctor", "--output", "json", *options)
        findings = json.loads(said)
        known = {"one-member", "ok"}  # of the server that tests run on
        return code, {each["code"]: each for each in findings if each["code"] not in known}


@pytest.fixture
def doctor(target: str) -> Doctor:
    return Doctor(target)


@pytest.fixture
def well(fleet: Start, bootstrap: str, store: Store) -> Process:
    """A fleet that is well; returns its worker, which has one slot."""
    worker = fleet(bootstrap)
    eventually(lambda: store.leases.read() is not None and len(store.processes.entries()) == 2)
    return worker


@pytest.mark.usefixtures("well")
class TestTenSituations:
    def test_an_idle_fleet_has_no_findings(self, doctor: Doctor) -> None:
        assert doctor() == (0, {})

    def test_late_jobs_are_a_problem_after_the_allowed_time(
        self, recruiter: Recruiter, doctor: Doctor, tmp_path: Path
    ) -> None:
        """Given due jobs that wait for the only slot, when the oldest has waited longer than allowed, then a person
        must act; before, it is only good to know that the slots are taken."""
        blocker = recruiter.job("waits", [str(tmp_path / "go")]).enqueue()
        eventually(lambda: recruiter.find(blocker.id).locked_by is not None)
        handles = [recruiter.job("quick").enqueue() for _ in range(300)]
        eventually(lambda: doctor()[1].keys() == {"saturated"})

        code, found = doctor("--late", "0s")

        assert code == 1
        assert found["late"]["level"] == "problem"
        assert re.match(r"\d+ jobs are due, and the oldest has waited for \d+s \(task quick", found["late"]["text"])
        assert "no slot is free where it could run" in found["late"]["text"]
        assert doctor("--late", "1h")[0] == 0
        (tmp_path / "go").touch()
        eventually(lambda: doctor() == (0, {}))
        assert len(handles) == 300

    def test_a_full_fleet_is_a_note_that_names_the_task(
        self, recruiter: Recruiter, doctor: Doctor, tmp_path: Path
    ) -> None:
        recruiter.job("waits", [str(tmp_path / "go")]).enqueue()
        eventually(lambda: recruiter.jobs.count(state="running").number == 1)
        for _ in range(30):
            recruiter.job("quick").enqueue()

        eventually(lambda: "task waits" in doctor()[1].get("saturated", {}).get("text", ""))
        code, found = doctor()

        assert (code, list(found)) == (0, ["saturated"])
        assert (
            "the only slot is taken where they can run; task waits holds 1 slot, for up to"
            in (found["saturated"]["text"])
        )
        assert "recruiter limit set task:waits NUMBER" in found["saturated"]["todo"]

    def test_a_job_that_killed_its_process_is_a_note(self, recruiter: Recruiter, doctor: Doctor) -> None:
        """Given a job that has killed its process and was given up, then that is history: nobody need act now, and the
        advice is about this job."""
        id = recruiter.job("kills").enqueue().id
        eventually(lambda: recruiter.find(id).ended)

        code, found = doctor()

        assert (code, list(found)) == (0, ["poison-job"])
        assert re.match(
            f"job {id} of task kills was given up at .*: its process died 3 times", found["poison-job"]["text"]
        )
        assert f"recruiter job recover {id}" in found["poison-job"]["todo"]
        assert "producer" not in found["poison-job"]["todo"]

    def test_no_worker_for_a_task(self, recruiter: Recruiter, doctor: Doctor) -> None:
        """Given a due job of a task that no worker knows, a person must act; while it is postponed, it is a note, and
        the job says so too."""
        id = recruiter.job("unheard_of").schedule_in("1 day").enqueue().id

        code, found = doctor()
        assert (code, found["not-served"]["level"]) == (0, "note")
        assert "no worker knows the task 'unheard_of'" in recruiter.explain(id)

        recruiter.run_now(id)
        code, found = doctor()
        assert (code, found["not-served"]["level"]) == (1, "problem")
        assert "cannot run: no worker knows the task 'unheard_of'" in found["not-served"]["text"]

    def test_a_paused_group_is_a_note(self, recruiter: Recruiter, doctor: Doctor) -> None:
        recruiter.controls.pause_group("generic", by="ada", reason="the bank is closed")
        recruiter.job("quick").enqueue()

        code, found = doctor("--late", "0s")

        assert (code, list(found)) == (0, ["paused"])
        assert found["paused"]["text"] == "group generic is paused, and 1 job waits; paused by ada: the bank is closed"

    def test_a_job_that_runs_for_very_long_is_named(
        self, recruiter: Recruiter, store: Store, doctor: Doctor, tmp_path: Path
    ) -> None:
        """Given a job without a timeout that runs, when it has run for very long, then it is named. (The doctor's clock
        is what is moved: no test waits for an hour.)"""
        long = recruiter.job("waits", [str(tmp_path / "go")]).enqueue().id
        eventually(lambda: any(entry.running for entry in store.roster.entries()))
        found = [each for each in examine(store, Thresholds(long_job=timedelta())) if each.code == "long-job"]

        assert [each.level for each in found] == ["note"]
        assert f"job {long} of task waits has run for" in found[0].text
        assert found[0].text.endswith("and has no timeout")
        assert f"recruiter job cancel {long}" in found[0].todo
        assert doctor() == (0, {})

    def test_a_damaged_document_that_harms_a_job_is_a_problem(self, store: Store, doctor: Doctor) -> None:
        """Given a document of a job that no process can read, then a person must act; one that harms nobody is a
        note."""
        scheduled, archived = store.scheduled.collection, store.archived.collection
        scheduled.insert_one({"_id": "broken", "lane": 7}, bypass_document_validation=True)
        code, found = doctor()
        assert (code, found["damaged-document"]["level"]) == (1, "problem")
        assert "'broken'" in found["damaged-document"]["text"]

        scheduled.delete_one({"_id": "broken"})
        odd = {"_id": "odd", "task": 7, "archived_at": store.clock.now()}
        archived.insert_one(odd, bypass_document_validation=True)
        code, found = doctor()
        assert (code, found["damaged-document"]["level"]) == (0, "note")

    def test_a_wrong_clock_is_a_note(self, store: Store, doctor: Doctor) -> None:
        """Given a host whose clock is wrong, then jobs run on time all the same: a note."""
        store.processes.show("far:1", {"role": "cleaner", "host": "far", "pid": 1, "clock_offset": 3600.0}, 60)

        code, found = doctor()

        assert (code, list(found)) == (0, ["clock"])
        assert found["clock"]["text"] == "the clock of far is 1h behind the server's"


def test_a_fleet_without_a_leader_is_a_problem(
    start: Start, bootstrap: str, doctor: Doctor, store: Store, recruiter: Recruiter
) -> None:
    """Given a leader that was killed and nobody who takes over, then a person must act."""
    leader = start("start", "recruiter", "--bootstrap", bootstrap)
    start("start", "cleaner")
    start("start", "worker", "--bootstrap", bootstrap).says("joined the roster")
    eventually(lambda: store.leases.read() is not None and len(store.processes.entries()) == 2)
    recruiter.job("quick").enqueue().result(timeout=60)

    leader.signal(signal.SIGTERM)
    leader.wait()

    code, found = doctor()
    assert (code, list(found)) == (1, ["no-leader"])
    assert found["no-leader"]["text"] == "there is no leader: no job is assigned to any worker"
    assert found["no-leader"]["todo"] == "Start one: recruiter start recruiter"


def test_the_tour_of_the_readme_leaves_nothing_for_a_person_to_do(
    fleet: Start, target: str, tmp_path: Path, doctor: Doctor, store: Store
) -> None:
    """Given the two examples of the README, when they have run, then the doctor's exit code is 0."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    shop = next(block for block in blocks if block.startswith("# shop.py"))
    tour = next(block for block in blocks if "from shop import recruiter" in block)
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "tour.py").write_text(tour.replace("mongodb://localhost:27017/shop", target))
    fleet(str(tmp_path / "shop.py"))
    eventually(lambda: store.leases.read() is not None and len(store.processes.entries()) == 2)
    environment: dict[str, Any] = {"RECRUITER_TARGET": target, "PATH": ""}
    subprocess.run([sys.executable, "tour.py"], cwd=tmp_path, env=environment, check=True, timeout=60)

    code, found = doctor()

    assert code == 0
    assert {each["level"] for each in found.values()} <= {"note"}


def test_every_code_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "doctor.md").read_text()
    assert [code.value for code in Code if code is not Code.OK and f"`{code.value}`" not in page] == []
