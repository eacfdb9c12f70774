"""The ready-made workables in real workers: what they do to their process, and what their process does to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from recruiter import Recruiter
from recruiter.domain.job import Execution
from recruiter.results import JobHandle
from recruiter.workable import Workable
from recruiter.workables.outcomes import (
    AlwaysSucceed,
    ConsumeMemory,
    ExitAbruptly,
    LazyBones,
)
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


def test_a_job_that_exits_abruptly_is_the_only_one_that_fails(lead: Lead, start: Starter, recruiter: Recruiter) -> None:
    # given jobs around one that ends its process
    worker = start_worker(start, lead)
    (child,) = worker.children()
    before = [enqueue(recruiter, AlwaysSucceed()) for _ in range(10)]
    guilty = enqueue(recruiter, ExitAbruptly(7))
    after = [enqueue(recruiter, AlwaysSucceed()) for _ in range(10)]

    # then it is tried three times and set aside
    end = guilty.wait(timeout=60)
    assert end.why == "crashed-too-many-times"
    assert [execution.crashed for execution in end.executions] == [True, True, True]
    assert "exited with code 7" in (failure(guilty).message or "")

    # and the others run once, in another child of the same worker
    ends = [handle.wait(timeout=60) for handle in (*before, *after)]
    assert all(end.done and len(end.executions) == 1 for end in ends)
    assert worker.popen.poll() is None
    assert child not in worker.children()


def test_memory_that_is_not_given_back_costs_the_child_its_place(
    lead: Lead, start: Starter, recruiter: Recruiter
) -> None:
    # given a worker with a limit, whose child stays below it
    worker = start_worker(start, lead, "--memory-limit", "150MB")
    (child,) = worker.children()

    # when a job holds more than that
    large = enqueue(recruiter, ConsumeMemory(200, hold=True))

    # then it ends well, and the next ones run in a new child
    assert large.wait(timeout=60).done
    worker.says("will be replaced")
    (fresh,) = eventually(lambda: [pid for pid in worker.children() if pid != child and is_gone(child)])
    assert enqueue(recruiter, AlwaysSucceed()).wait(timeout=60).done
    assert worker.children() == [fresh]


@pytest.mark.parametrize("options", [(), ("--concurrency", "4")], ids=["one at a time", "four at once"])
def test_what_does_not_end_is_told_to_when_its_time_is_over(
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


def test_a_program_dies_with_the_process_that_runs_its_job(
    lead: Lead, start: Starter, recruiter: Recruiter, tmp_path: Path
) -> None:
    worker = start_worker(start, lead, SHELL_PROGRAMS="sh")
    handle = long_family(tmp_path).as_job_of(recruiter).at_most_once().in_background().execute()
    family = family_in(tmp_path)
    (child,) = worker.children()

    psutil.Process(child).kill()

    eventually(lambda: all(map(is_gone, family)))
    assert handle.wait(timeout=60).why == "lost"


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
