"""The ready-made workables in real workers: what they do to their process, and what their process does to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.domain.job import Execution
from recruiter.results import JobHandle
from recruiter.workable import Workable
from recruiter.workables.outcomes import AlwaysSucceed, LazyBones
from recruiter.workables.shell import ShellCommand
from tests.applications import jobs
from tests.conftest import Process, Starter, eventually
from tests.processes.conftest import Lead
from tests.programs import family_in, is_gone

WORKABLES = str(Path(jobs.__file__).with_name("workables.py"))


def start_worker(start: Starter, lead: Lead, *options: str, **environment: str) -> Process:
    lead()
    worker = start("start", "worker", "--bootstrap", WORKABLES, *options, **environment)
    worker.says("joined the roster")
    eventually(worker.children)
    return worker


def enqueue(recruiter: Recruiter, workable: Workable) -> JobHandle[Any]:
    return workable.as_job_of(recruiter).in_background().execute()


def failure(handle: JobHandle[Any]) -> Execution:
    end = handle.wait(timeout=60)
    assert not end.done
    assert end.last_execution is not None
    return end.last_execution


def long_family(folder: Path) -> ShellCommand:
    """A program that starts another, both leave their pids, and neither ends."""
    script = "sh -c 'echo $$ > grandchild; sleep 600; true' & echo $$ > child; wait"
    return ShellCommand(["sh", "-c", script], cwd=folder)


@pytest.mark.parametrize("options", [(), ("--concurrency", "4")], ids=["one at a time", "four at once"])
def test_a_program_that_does_not_end_is_ended_after_its_timeout(
    lead: Lead, start: Starter, recruiter: Recruiter, tmp_path: Path, options: tuple[str, ...]
) -> None:
    # given a job that sleeps and one whose program does, with a program of its own
    worker = start_worker(start, lead, *options, SHELL_PROGRAMS="sh")
    children = worker.children()
    sleeping = LazyBones.wait_for("10 minutes").as_job_of(recruiter).timeout("300ms").in_background().execute()
    shell = long_family(tmp_path).as_job_of(recruiter).timeout("2s").in_background().execute()
    family = family_in(tmp_path)

    # when their time is over, then both jobs say so
    assert failure(sleeping).exception == "recruiter.errors.JobTimedOut"
    assert failure(shell).exception == "recruiter.errors.JobTimedOut"

    # and the programs are gone, but not the child that ran them: it goes on
    eventually(lambda: all(map(is_gone, family)))
    assert enqueue(recruiter, AlwaysSucceed()).wait(timeout=60).done
    assert worker.children() == children


def test_programs_run_only_where_the_application_enables_them(lead: Lead, start: Starter, recruiter: Recruiter) -> None:
    """Given a producer that has enabled nothing, then it is the application of each worker that decides."""
    lead()
    careful = start("start", "worker", "--bootstrap", WORKABLES, "--work-on", "careful")
    bold = start("start", "worker", "--bootstrap", WORKABLES, "--work-on", "bold", SHELL_PROGRAMS="uname echo")
    careful.says("joined the roster")
    bold.says("joined the roster")

    job = ShellCommand(["echo", "hello"]).as_job_of(recruiter).in_background()
    refused, allowed = job.in_group("careful").execute(), job.in_group("bold").execute()

    assert allowed.result(timeout=60) == {"code": 0, "stdout": "hello\n", "stderr": ""}
    assert failure(refused).exception == "recruiter.errors.CommandFailed"
    assert "not enabled here" in (failure(refused).message or "")
    assert "ShellCommand.enable('echo')" in (failure(refused).message or "")
