"""Stopping: finish what runs, hand the rest back unharmed, leave the roster, exit 0; a second signal is immediate."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Process, Starter, eventually
from tests.processes.conftest import Lead

JOBS = jobs.__file__


def busy_worker(start: Starter, lead: Lead, store: Store, gate: Path, *options: str) -> Process:
    """A worker that has made itself a buffer of quick jobs, and then got two that do not end."""
    lead()
    worker = start("start", "worker", "--bootstrap", JOBS, "--processes", "2", *options)
    worker.says("joined the roster")
    jobs.wait_for_file.enqueue_many([(str(gate),)] * 2)
    eventually(lambda: sum(len(entry.running) for entry in store.roster.entries()) == 2)
    # Jobs that are assigned to it while it cannot run them.
    (worker_id,) = [entry.id for entry in store.roster.entries()]
    waiting = jobs.add.enqueue_many([(number, 1) for number in range(20)])
    ids = [handle.id for handle in waiting]
    store.roster.assign({worker_id: ids}, term=store.leases.term())
    return worker


def test_running_jobs_finish_and_prefetched_ones_are_handed_back(
    lead: Lead, start: Starter, store: Store, tmp_path: Path
) -> None:
    """Each signal is in `tests/blackbox/test_mission_4_control.py`."""
    # given a worker with two jobs running and twenty waiting for it
    gate = tmp_path / "gate"
    worker = busy_worker(start, lead, store, gate)

    # when it is asked to stop, it takes no more and lets go of what has not started
    worker.signal(signal.SIGTERM)
    eventually(lambda: store.roster.held() == {run["job"] for e in store.roster.entries() for run in e.running})
    worker.says("finishes 2 running jobs")
    assert worker.popen.poll() is None

    # and when the running jobs end, it leaves
    gate.touch()
    assert worker.wait() == 0
    assert store.roster.entries() == []
    finished = list(store.archived.collection.find({}))
    assert [(job["task"], job["done"], job["attempts"]) for job in finished] == [("wait_for_file", True, 1)] * 2
    waiting = list(store.scheduled.collection.find({}))
    assert len(waiting) == 20
    assert all(job["attempts"] == 0 and "last_execution" not in job for job in waiting)


def test_at_most_once_jobs_that_never_started_are_handed_back_unmarked(
    lead: Lead, start: Starter, store: Store, tmp_path: Path
) -> None:
    # given a worker that runs one at-most-once job and holds more
    gate = tmp_path / "gate"
    lead()
    worker = start("start", "worker", "--bootstrap", JOBS, "--processes", "1")
    worker.says("joined the roster")
    first, *others = (jobs.once.enqueue(str(tmp_path), str(gate)) for _ in range(5))
    eventually(lambda: (tmp_path / "once").exists())
    (worker_id,) = [entry.id for entry in store.roster.entries()]
    store.roster.assign({worker_id: [handle.id for handle in others]}, term=store.leases.term())

    # when it stops gracefully
    worker.signal(signal.SIGTERM)
    eventually(lambda: len(store.roster.held()) == 1)
    gate.touch()
    assert worker.wait() == 0

    # then the one that ran is done, and the others run elsewhere, once
    assert first.wait(timeout=60).done
    start("start", "worker", "--bootstrap", JOBS)
    assert all(handle.wait(timeout=60).done for handle in others)
    assert (tmp_path / "once").read_text() == "started\n" * 5


def test_a_stopped_fleet_leaves_nothing_behind(start: Starter, store: Store) -> None:
    fleet = start("start", "all", "--bootstrap", JOBS, "--processes", "2")
    fleet.says("joined the roster")
    assert jobs.add.enqueue(1, 2).result(timeout=60) == 3
    family = fleet.descendants()

    assert fleet.stop() == 0

    assert psutil.wait_procs(family, timeout=10)[1] == []
    assert store.roster.entries() == []
    lease = store.leases.read()
    assert lease is not None
    assert lease.holder is None


def test_a_killed_fleet_takes_its_members_with_it(start: Starter) -> None:
    fleet = start("start", "all", "--bootstrap", JOBS)
    fleet.says("joined the roster")
    family = fleet.descendants()

    fleet.signal(signal.SIGKILL)

    assert psutil.wait_procs(family, timeout=15)[1] == []


@pytest.mark.parametrize("name", ["worker", "cleaner"])
def test_a_fleet_says_which_member_was_killed_and_how(start: Starter, store: Store, name: str) -> None:
    # given a fleet at work
    fleet = start("start", "all", "--bootstrap", JOBS, RECRUITER_LOG_FORMAT="json", RECRUITER_LOG_LEVEL="info")
    eventually(lambda: store.roster.read() and store.leases.read() and store.processes.entries())
    eventually(lambda: jobs.add.enqueue(1, 2).result(timeout=60) == 3)
    killed = fleet.member(name)

    # when one of it is killed from outside
    killed.send_signal(signal.SIGKILL)

    # then the fleet ends, and says which one it was and how it ended
    assert fleet.wait(40) == 1
    lines = [json.loads(line) for line in fleet.log.splitlines()]
    (told,) = [line for line in lines if line.get("event") == "fleet.member_ended"]
    assert (told["level"], told["member"], told["member_pid"]) == ("error", name, killed.pid)
    assert "was killed from outside by SIGKILL" in told["message"]
    assert "semaphore" not in fleet.log
    asked = {line["program"] for line in lines if line.get("event") == "process.stopping"}
    assert asked == {"recruiter", "worker", "cleaner"} - {name}
    assert lines.index(told) < min(lines.index(line) for line in lines if line.get("event") == "process.stopping")


def test_a_fleet_that_is_asked_to_stop_accuses_nobody(start: Starter, store: Store) -> None:
    fleet = start("start", "all", "--bootstrap", JOBS)
    eventually(lambda: store.roster.read())

    assert fleet.stop(40) == 0
    assert "killed" not in fleet.log
    assert "ended by itself" not in fleet.log


SECRET = "not-for-everybody"


def test_no_process_of_a_fleet_shows_it(start: Starter, store: Store, target: str) -> None:
    # given a fleet that was told an address
    address = f"{target}{'&' if '?' in target else '/?'}appName={SECRET}"
    fleet = start("start", "all", "--bootstrap", JOBS, "--target", address, cold=True)
    eventually(lambda: store.roster.read())
    assert jobs.add.enqueue(1, 2).result(timeout=60) == 3

    # when somebody lists its processes
    shown = [" ".join(process.cmdline()) for process in fleet.descendants()]

    # then none of them shows the address
    assert len(shown) >= 4, "its members, and below the worker what runs the jobs"
    assert not [line for line in shown if SECRET in line]
