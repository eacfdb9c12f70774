"""Processes of a worker that stand still: its other jobs go on, and it can be stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from recruiter.store.database import Store
from tests.applications import concurrency as jobs
from tests.conftest import Process, Starter, eventually
from tests.processes.conftest import Lead

RUNS = jobs

WITHIN = 20.0

WorkerOf = Callable[..., Process]


@pytest.fixture
def stopped() -> Iterator[Callable[[int], None]]:
    """Makes a process stand still until the test is over."""
    pids: list[int] = []

    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        pids.append(pid)

    yield stop
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue


@pytest.fixture
def worker(start: Starter, lead: Lead, store: Store) -> WorkerOf:

    def worker(processes: int, *, cold: bool = False) -> Process:
        lead()
        process = start("start", "worker", "--bootstrap", jobs.__file__, "--processes", str(processes), cold=cold)
        process.says("joined the roster")
        eventually(lambda: len(process.children()) == processes)
        for _ in range(3):
            assert jobs.my_pid.enqueue().result(WITHIN) in process.children()
        return process

    return worker


Stopped = Callable[[int], None]


def test_an_idle_child_keeps_no_jobs_next_to_a_free_one(worker: WorkerOf, stopped: Stopped) -> None:
    """Given two children, one of which stands still, when jobs are enqueued, then all of them run in the other one; and
    the one that stands still is replaced."""
    process = worker(2)
    still, other = process.children()
    stopped(still)

    handles = [jobs.my_pid.enqueue() for _ in range(6)]

    assert {handle.result(WITHIN) for handle in handles} == {other}
    eventually(lambda: still not in process.children() and len(process.children()) == 2, within=WITHIN)


def test_the_only_child_is_replaced_if_it_stands_still_while_it_runs_nothing(
    worker: WorkerOf, stopped: Stopped
) -> None:
    process = worker(1)
    (still,) = process.children()
    stopped(still)

    assert jobs.my_pid.enqueue().result(WITHIN) != still


def test_the_death_of_a_child_whose_guard_stands_still_is_noticed(
    worker: WorkerOf, stopped: Stopped, tmp_path: Path
) -> None:
    process = worker(1)
    handle = jobs.wait_at_first_in_a_thread.enqueue(str(tmp_path), "waits")
    eventually(lambda: (tmp_path / "waits").exists())
    (child,) = process.children()
    stopped(psutil.Process(child).ppid())
    os.kill(child, signal.SIGKILL)

    assert handle.result(WITHIN) == "waits"


class TestForkServer:
    def test_a_fork_server_that_stands_still_stops_neither_children_nor_the_shutdown(
        self, worker: WorkerOf, stopped: Stopped
    ) -> None:
        process = worker(2, cold=True)
        one, other = process.children()
        stopped(psutil.Process(psutil.Process(one).ppid()).ppid())
        os.kill(one, signal.SIGKILL)

        assert {jobs.my_pid.enqueue().result(WITHIN) for _ in range(3)} == {other}

        assert process.stop(WITHIN) == 0

    def test_a_fork_server_that_stands_still_is_replaced_when_nothing_runs(
        self, worker: WorkerOf, stopped: Stopped
    ) -> None:
        process = worker(1, cold=True)
        (child,) = process.children()
        stopped(psutil.Process(psutil.Process(child).ppid()).ppid())
        os.kill(child, signal.SIGKILL)

        assert jobs.my_pid.enqueue().result(3 * WITHIN) != child
