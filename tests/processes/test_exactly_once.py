"""Effects exactly once: jobs write in their own transactions while children and workers are killed and frozen."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from recruiter.store.database import Store
from tests.applications import effects
from tests.conftest import Process, Starter, eventually
from tests.processes.conftest import Lead

RUNS = effects

EFFECTS = effects.__file__
QUICKLY = {"lease_time": 2.0, "dead_after": 3.0}


def start_worker(start: Starter, processes: int = 2, *more: str) -> Process:
    options = ("--processes", str(processes), "--considered-dead-after", "3s", *more)
    worker = start("start", "worker", "--bootstrap", EFFECTS, *options)
    worker.says("joined the roster")
    return worker


def counted(store: Store) -> int:
    return sum(document["n"] for document in store.database["counters"].find({}))


def ended(store: Store) -> int:
    return store.archived.collection.count_documents({"done": True})


def test_the_sum_is_exact_whatever_is_killed_or_frozen(lead: Lead, start: Starter, store: Store) -> None:
    # given a fleet with many jobs, each of which counts in its own transaction
    lead(**QUICKLY)
    workers = [start_worker(start), start_worker(start)]
    effects.count.enqueue_many([(f"c{number % 8}", 0.03) for number in range(160)])
    chance = random.Random(7)

    # when children are killed, a worker is frozen past its time, and another one killed
    for round in range(6):
        eventually(lambda round=round: ended(store) >= 15 * (round + 1))  # type: ignore[misc]
        alive = [worker for worker in workers if worker.popen.poll() is None]
        for child in chance.sample(alive, 1)[0].children()[:1]:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(child, signal.SIGKILL)
    frozen = [workers[0].pid, *(process.pid for process in workers[0].descendants())]
    for pid in frozen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    eventually(lambda: store.roster.collection.count_documents({}) == 1)
    for pid in frozen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    workers[1].signal(signal.SIGKILL)

    # then every job has ended once, and has been counted once
    eventually(lambda: store.scheduled.collection.count_documents({}) == 0)
    assert ended(store) == 160
    assert counted(store) == 160


@pytest.mark.parametrize("who", ["the child", "the worker"])
def test_the_open_transaction_of_a_dead_process_is_ended_at_once(
    lead: Lead, start: Starter, store: Store, tmp_path: Path, who: str
) -> None:
    """The server itself would keep its locks for a minute."""
    # given a job in the middle of its transaction
    lead(**QUICKLY)
    worker = start_worker(start, 1)
    job = effects.hold_open.enqueue("c", str(tmp_path))
    eventually(lambda: list(tmp_path.glob("open-*")))

    # when its process is killed
    (child,) = worker.children()
    os.kill(child if who == "the child" else worker.pid, signal.SIGKILL)
    died = time.monotonic()
    if who == "the worker":
        start_worker(start, 1)
    (tmp_path / "go").touch()

    # then its document can be written to, and the job is run again, long before that minute is over
    assert job.result(timeout=30) == "committed"
    assert time.monotonic() - died < 25
    assert counted(store) == 1


def test_a_frozen_worker_cannot_commit_what_others_have_done(
    lead: Lead, start: Starter, store: Store, tmp_path: Path
) -> None:
    # given a job in the middle of its transaction, whose worker freezes with its child and is retired
    lead(**QUICKLY)
    worker = start_worker(start, 1)
    job = effects.hold_open.enqueue("c", str(tmp_path))
    eventually(lambda: list(tmp_path.glob("open-*")))
    frozen = [worker.pid, *(process.pid for process in worker.descendants())]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    eventually(lambda: store.roster.collection.count_documents({}) == 0)

    # when it wakes up beside another worker, and all may commit
    start_worker(start, 1)
    (tmp_path / "go").touch()
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)

    # then one of them has counted
    assert job.result(timeout=30) == "committed"
    eventually(lambda: store.roster.held() == set())
    assert counted(store) == 1

    # and the worker says what it knows: neither was MongoDB away, nor could it hand the job back
    worker.says("is no longer on the roster")
    assert "MongoDB cannot be reached" not in worker.log
    assert "handed back" not in worker.log


def test_a_child_that_dies_after_its_commit_leaves_a_job_that_is_done(lead: Lead, start: Starter, store: Store) -> None:
    lead(**QUICKLY)
    worker = start_worker(start, 1, "--log-level", "debug")

    ended_job = effects.die_after_commit.enqueue("c").wait(timeout=30)

    eventually(lambda: store.roster.held() == set())
    assert (ended_job.done, ended_job.attempts) == (True, 1)
    assert counted(store) == 1
    assert store.scheduled.collection.count_documents({}) == 0
    worker.says(f"job {ended_job.id}: die_after_commit done")
    assert f"job {ended_job.id} crashed" not in worker.log
