"""Jobs in the calling process beside others, and what signals mean for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from recruiter.store.codec import Document
from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Starter, eventually
from tests.samples import document

JOBS = jobs.__file__
CALLS = str(Path(JOBS).with_name("calls.py"))
QUICK = {"RECRUITER_CONSIDERED_DEAD_AFTER": "2s", "RECRUITER_HEARTBEAT": "300ms", "RECRUITER_LEASE_TIME": "1s"}


def nothing_is_left_behind(store: Store) -> bool:
    lease = store.leases.read()
    return store.roster.entries() == [] and lease is not None and lease.holder is None


def archived(store: Store) -> list[Document]:
    return list(store.archived.collection.find({}))


class TestSignals:
    """In the main thread of a program of its own."""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_watch_finishes_the_running_job_and_returns(
        self, start: Starter, store: Store, tmp_path: Path, number: signal.Signals
    ) -> None:
        gate = tmp_path / "gate"
        running, waiting = (jobs.wait_for_file.enqueue(str(gate)) for _ in range(2))
        caller = start("watch", "wait_for_file", script=CALLS, **QUICK)
        eventually(lambda: [run for entry in store.roster.entries() for run in entry.running])

        caller.signal(number)
        gate.touch()

        assert caller.wait() == 0
        assert "came back" in caller.log
        assert [job["_id"] for job in archived(store)] == [running.id]
        assert document(store, waiting.id)["attempts"] == 0
        assert nothing_is_left_behind(store)

    def test_ctrl_c_interrupts_the_job_which_is_handed_back(self, start: Starter, store: Store, tmp_path: Path) -> None:
        handle = jobs.wait_for_file.enqueue(str(tmp_path / "never"))
        caller = start("run", "wait_for_file", script=CALLS, **QUICK)
        eventually(lambda: [run for entry in store.roster.entries() for run in entry.running])

        caller.signal(signal.SIGINT)

        assert caller.wait() == -signal.SIGINT  # Python's own end after a KeyboardInterrupt that nobody caught
        assert "KeyboardInterrupt" in caller.log
        assert document(store, handle.id)["attempts"] == 0
        assert nothing_is_left_behind(store)

    def test_a_second_ctrl_c_interrupts_the_job_of_a_watch(self, start: Starter, store: Store, tmp_path: Path) -> None:
        handle = jobs.once.enqueue(str(tmp_path), str(tmp_path / "never"))
        caller = start("watch", "once", script=CALLS, **QUICK)
        eventually(lambda: (tmp_path / "once").exists())
        caller.signal(signal.SIGINT)

        def ended_by_another_one() -> bool:
            if caller.popen.poll() is None:
                caller.signal(signal.SIGINT)
            return caller.popen.poll() is not None

        eventually(ended_by_another_one)
        assert caller.wait() == -signal.SIGINT
        # this one must not run twice, and has started
        (ended,) = archived(store)
        assert (ended["_id"], ended["why"]) == (handle.id, "lost")
        assert nothing_is_left_behind(store)

    def test_sigterm_lets_the_running_job_finish_and_then_ends_the_process(
        self, start: Starter, store: Store, tmp_path: Path
    ) -> None:
        gate = tmp_path / "gate"
        running, waiting = (jobs.wait_for_file.enqueue(str(gate)) for _ in range(2))
        caller = start("run_all", "wait_for_file", script=CALLS, **QUICK)
        eventually(lambda: [run for entry in store.roster.entries() for run in entry.running])

        caller.signal(signal.SIGTERM)
        gate.touch()

        assert caller.wait() == -signal.SIGTERM
        assert [job["_id"] for job in archived(store)] == [running.id]
        assert document(store, waiting.id)["attempts"] == 0
        assert nothing_is_left_behind(store)


class TestBesideAFleet:
    def test_a_caller_killed_in_the_middle_of_a_job_loses_nothing(
        self, start: Starter, fleet: Starter, store: Store, tmp_path: Path
    ) -> None:
        # given a caller that leads, and is killed with a job running
        handle = jobs.wait_for_file.enqueue(str(tmp_path / "gate"))
        caller = start("run", "wait_for_file", script=CALLS, **QUICK)
        eventually(lambda: [run for entry in store.roster.entries() for run in entry.running])
        caller.signal(signal.SIGKILL)
        (tmp_path / "gate").touch()

        # when there is a fleet
        fleet(JOBS, **QUICK)

        # then the job runs again, and is archived once
        ended = handle.wait(timeout=60)
        assert ended.done
        assert [execution.crashed for execution in ended.executions] == [True, False]
        assert len(archived(store)) == 1
