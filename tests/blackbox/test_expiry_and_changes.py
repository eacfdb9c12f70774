"""Where expiry, changes by people, debounce and pauses of flows meet."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from recruiter import JobNotWaiting, Recruiter, RetryManyTimes, current_job
from recruiter.store.changes import Changes
from recruiter.testing import Sandbox
from tests.blackbox.conftest import Written
from tests.conftest import Starter, eventually

T0 = datetime(2030, 1, 1, tzinfo=UTC)

APPLICATION = """
    import time
    from pathlib import Path
    from recruiter import Recruiter
    recruiter = Recruiter()

    @recruiter.task
    def works(folder: str) -> str:
        first = not Path(folder, "begun").exists()
        Path(folder, "begun").touch()
        if first:
            time.sleep(600)
        return "done"
"""


@pytest.mark.parametrize("word", ["debounce", "throttle"])
def test_a_job_that_is_put_off_by_its_key_expires_as_much_later(
    recruiter: Recruiter, sandbox: Sandbox, word: str
) -> None:
    @recruiter.task(expires="5s")
    def report(number: int) -> int:
        return number

    first = getattr(report.job(1), word)("10s").enqueue()
    sandbox.run_due()
    second = getattr(report.job(2), word)("10s").enqueue()
    sandbox.move_clock("10s")
    sandbox.run_due()

    assert {recruiter.find(job.id).why for job in (first, second)} == {"done"}


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_run_that_was_interrupted_goes_on_although_the_job_has_expired(
    recruiter: Recruiter, start: Starter, application: Written, tmp_path: Path, how: str
) -> None:
    # given a job that runs, and whose time to begin is over
    path = application(APPLICATION)
    quick = {"RECRUITER_CONSIDERED_DEAD_AFTER": "4s"}
    start("start", "recruiter", "--bootstrap", path, **quick).says("is the leader now")
    worker = start("start", "worker", "--bootstrap", path, "--grace", "100ms", **quick)
    job = recruiter.job("works", {"folder": str(tmp_path)}).expires_in("4s").enqueue()
    eventually(lambda: (tmp_path / "begun").exists())
    expires_at = recruiter.find(job.id).expires_at
    assert expires_at is not None
    eventually(lambda: recruiter.clock.now() > expires_at)

    # when its worker is stopped or killed, then it runs again
    worker.signal(signal.SIGTERM if how == "stopped" else signal.SIGKILL)
    start("start", "worker", "--bootstrap", path, **quick)
    assert job.result(timeout=60) == "done"


def test_a_sleeping_job_can_be_run_now_after_its_expiry(recruiter: Recruiter, sandbox: Sandbox) -> None:
    @recruiter.task
    def sleeps() -> str:
        current_job.sleep("1 hour")
        return "awake"

    job = sleeps.job().expires_at(T0.replace(minute=1)).enqueue()
    sandbox.run_due()
    sandbox.move_clock("5 minutes")

    recruiter.run_now(job.id)
    sandbox.run_due()

    assert job.result() == "awake"


def test_a_reschedule_that_is_refused_changes_nothing_though_a_pause_came_between(
    recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a step, and a pause of its flow between the two looks of a reschedule
    @recruiter.task
    def step() -> None: ...

    flow = recruiter.flow("f")
    added = flow.add(step.job())
    handle = flow.start()
    due = recruiter.find(added.id).scheduled_at
    undo: Any = Changes._undo_where_held

    def pause_first(changes: Changes, *arguments: Any) -> int:
        handle.pause()
        monkeypatch.setattr(changes._roster, "held", lambda: {added.id: None})
        return int(undo(changes, *arguments))

    monkeypatch.setattr(Changes, "_undo_where_held", pause_first)

    # when
    with pytest.raises(JobNotWaiting):
        recruiter.reschedule(added.id, in_="5 hours")

    # then
    assert recruiter.find(added.id).scheduled_at == due


def test_an_undone_reschedule_leaves_the_expiry_of_a_retry(
    recruiter: Recruiter, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a job that failed and waits for its retry, whose expiry counts from its first time, when a reschedule is
    undone because a worker has just taken the job, then both times are as before."""

    @recruiter.task(retry=RetryManyTimes(3, "1 hour"), expires="5 hours")
    def fails() -> None:
        raise ValueError("no")

    job = fails.enqueue()
    sandbox.run_due()
    before = recruiter.find(job.id)
    undo: Any = Changes._undo_where_held

    def taken(changes: Changes, *arguments: Any) -> int:
        monkeypatch.setattr(changes._roster, "held", lambda: {job.id: None})
        return int(undo(changes, *arguments))

    monkeypatch.setattr(Changes, "_undo_where_held", taken)
    with pytest.raises(JobNotWaiting):
        recruiter.reschedule(job.id, in_="2 hours")

    after = recruiter.find(job.id)
    assert (after.scheduled_at, after.expires_at) == (before.scheduled_at, before.expires_at)


def test_a_job_that_failed_and_then_expired_says_so(recruiter: Recruiter, sandbox: Sandbox) -> None:
    @recruiter.task(retry=RetryManyTimes(3, "1 hour"), expires="30 minutes")
    def fails() -> None:
        raise ValueError("no")

    job = fails.enqueue()
    sandbox.run_due()
    sandbox.move_clock("2 hours")
    sandbox.run_due()

    assert recruiter.find(job.id).why == "expired"
    assert "failed 1 time, and expired: its next attempt had not started" in recruiter.explain(job.id)
