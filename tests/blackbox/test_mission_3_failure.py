"""Section 3 of the mission, failure: each row on a fleet of real processes."""

from __future__ import annotations

import os
import signal
from typing import Any

import psutil
import pytest
from pymongo import MongoClient
from pymongo.database import Database

from recruiter import DoNotDoItAgain, ExponentialBackoff, JobHandle, RetryManyTimes, RetryPolicy, SelectByException
from tests.applications import mission
from tests.applications.mission import add, at_most_once, die, endless, fail, fail_until, hold, lines
from tests.blackbox.conftest import Fleet
from tests.conftest import Process, eventually

BOOTSTRAP = str(mission.__file__)


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (RetryManyTimes(2, "0.2s"), [0.2, 0.2]),
        (ExponentialBackoff(2, "0.2s"), [0.2, 0.4]),
        (SelectByException().when(ConnectionError, RetryManyTimes(1, 0)).otherwise(DoNotDoItAgain()), [0.0]),
    ],
    ids=["RetryManyTimes", "ExponentialBackoff", "SelectByException"],
)
def test_m33_n_retries_are_n_plus_one_runs_after_the_exact_delays(
    fleet_at_work: Fleet, policy: RetryPolicy, delays: list[float]
) -> None:
    name = f"m33-{type(policy).__name__}"
    ended = fail_until.job(str(fleet_at_work.folder), name, 99).retry_with_policy(policy).enqueue().wait(timeout=60)

    assert (ended.attempts, ended.why) == (len(delays) + 1, "tried-too-many-times")
    runs = list(map(float, lines(fleet_at_work.folder, name)))
    assert all(second - first >= delay for first, second, delay in zip(runs[:-1], runs[1:], delays, strict=True))


@pytest.mark.usefixtures("fleet_at_work")
def test_m34_and_m35_other_exceptions_archive_at_once_with_the_exact_reason() -> None:
    policy = RetryManyTimes(2, 0)
    whys: dict[str, JobHandle[Any]] = {
        "tried-too-many-times": fail.job("ConnectionError").retry_with_policy(policy, [OSError]).enqueue(),
        "non-retriable-exception": fail.job("ValueError").retry_with_policy(policy, [OSError]).enqueue(),
        "not-scheduled-by-retry-policy": fail.enqueue(),
        "done": add.enqueue(1, 1),
    }

    assert {why: str(job.wait(timeout=60).why) for why, job in whys.items()} == {why: why for why in whys}


def test_m36_every_attempt_is_in_the_history_with_its_exception_and_trace(fleet_at_work: Fleet) -> None:
    job = fail_until.job(str(fleet_at_work.folder), "m36", 2).retry_with_policy(RetryManyTimes(2, 0)).enqueue()

    ended = job.wait(timeout=60)

    assert [execution.message for execution in ended.executions[:2]] == ["attempt 1", "attempt 2"]
    first = ended.executions[0]
    assert first.exception == "ConnectionError"
    assert first.worker
    assert "fail_until" in str(first.trace)
    assert first.started_at is not None
    assert first.ended_at is not None
    assert first.started_at <= first.ended_at


def worker_on(fleet: Fleet, group: str, *options: str) -> Process:
    own = ("--work-on", group, "--considered-dead-after", "3s", *options)
    worker = fleet.start("start", "worker", "--bootstrap", BOOTSTRAP, *own, RECRUITER_HEARTBEAT="0.2s")
    worker.says("joined the roster")
    return worker


def test_m37_jobs_of_a_killed_worker_run_again_and_at_most_once_jobs_are_lost(fleet_at_work: Fleet) -> None:
    """M40 beside it: an at-most-once job that has started never runs a second time."""
    folder = str(fleet_at_work.folder)
    worker = worker_on(fleet_at_work, "m37", "--processes", "2")
    again = hold.job(folder, "m37").in_group("m37").enqueue()
    once = at_most_once.job(folder, "m40").in_group("m37").enqueue()
    eventually(lambda: lines(fleet_at_work.folder, "m37") and lines(fleet_at_work.folder, "m40"))
    family = worker.descendants()
    worker.signal(signal.SIGKILL)
    assert psutil.wait_procs(family, timeout=30)[1] == [], "its children die with it"
    worker_on(fleet_at_work, "m37")
    fleet_at_work.over("m37")

    assert again.wait(timeout=60).done
    assert once.wait(timeout=60).why == "lost"
    assert len(lines(fleet_at_work.folder, "m37")) == 2
    assert len(lines(fleet_at_work.folder, "m40")) == 1


def foreign(fleet: Fleet, document: dict[str, Any]) -> JobHandle[Any]:
    """A job that another program has inserted."""
    client: MongoClient[Any]
    with MongoClient(fleet.target) as client:
        database: Database[dict[str, Any]] = client.get_default_database()
        database["recruiter.scheduled"].insert_one(document)
    return fleet.recruiter.handle(document["_id"])


def roster(fleet: Fleet) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fleet.command("worker", "list")
    return found


def test_m38_views_show_the_holder_and_a_foreign_lock_is_taken_over(fleet_at_work: Fleet) -> None:
    worker_on(fleet_at_work, "m38")
    job = hold.job(str(fleet_at_work.folder), "m38").in_group("m38").enqueue()
    eventually(lambda: lines(fleet_at_work.folder, "m38"))
    shown = eventually(lambda: fleet_at_work.command("job", "show", str(job.id)))
    assert shown["locked_by"] in {entry["worker"] for entry in roster(fleet_at_work)}
    assert shown["locked_at"]
    locked = {"_id": "m38", "task": "add", "args": [2, 2], "group": "m38", "locked_by": "somebody else"}
    taken_over = foreign(fleet_at_work, locked)
    fleet_at_work.over("m38")
    assert job.wait(timeout=60).done
    assert taken_over.result(timeout=60) == 4


def test_m39_a_worker_that_lost_its_job_cannot_complete_it(fleet_at_work: Fleet) -> None:
    paused = worker_on(fleet_at_work, "m39")
    (paused_id,) = [entry["worker"] for entry in roster(fleet_at_work) if entry["pid"] == paused.pid]
    job = hold.job(str(fleet_at_work.folder), "m39").in_group("m39").enqueue()
    eventually(lambda: lines(fleet_at_work.folder, "m39"))

    family = [paused.pid, *(child.pid for child in paused.descendants())]
    for pid in family:
        _signal(pid, signal.SIGSTOP)
    worker_on(fleet_at_work, "m39")
    eventually(lambda: len(lines(fleet_at_work.folder, "m39")) == 2)
    fleet_at_work.over("m39")
    ended = job.wait(timeout=60)
    for pid in family:
        _signal(pid, signal.SIGCONT)

    paused.says("no longer on the roster")
    eventually(lambda: [entry for entry in roster(fleet_at_work) if entry["pid"] == paused.pid])
    assert paused_id not in {entry["worker"] for entry in roster(fleet_at_work)}, "it rejoins under a new id"
    assert ended.done
    assert ended.last_execution is not None
    assert ended.last_execution.worker != paused_id
    assert fleet_at_work.recruiter.find(job.id) == ended


def _signal(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)


def test_m41_and_m42_a_broken_job_fails_alone(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    worker_on(fleet_at_work, "m41")
    crashed = [die.job(how).in_group("m41").enqueue() for how in ("segfault", "exit", "os._exit")]
    bad_arguments = foreign(fleet_at_work, {"_id": "m41", "task": "add", "args": {"a": 1, "x": 2}, "group": "m41"})

    whys = [str(job.wait(timeout=60).why) for job in crashed]
    assert whys == ["crashed-too-many-times", "not-scheduled-by-retry-policy", "crashed-too-many-times"]
    assert recruiter.find(crashed[0].id).crashes == 3
    assert not bad_arguments.wait(timeout=60).done
    assert add.job(1, 1).in_group("m41").enqueue().result(timeout=60) == 2


def test_m43_a_soft_timeout_raises_inside_and_a_hard_one_kills(fleet_at_work: Fleet) -> None:
    folder = str(fleet_at_work.folder)
    worker_on(fleet_at_work, "m43")

    soft = endless.job(folder, "m43-soft").in_group("m43").timeout("0.5s").enqueue()
    hard = endless.job(folder, "m43-hard", stubborn=True).in_group("m43").timeout("0.5s").enqueue()

    for job in (soft, hard):
        last = job.wait(timeout=60).last_execution
        assert last is not None
        assert last.exception == "recruiter.errors.JobTimedOut"
    assert lines(fleet_at_work.folder, "m43-soft")[1:] == ["JobTimedOut"]
    assert "JobTimedOut" in lines(fleet_at_work.folder, "m43-hard")
