"""The history of a job: what happened to it beside its attempts, by whom and why."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx

from recruiter import Recruiter, SignalTimeout, current_job
from recruiter.domain.job import Job, JobId
from recruiter.testing import Sandbox
from recruiter.web import dashboard
from recruiter.web.server import served
from tests.cli_here import here
from tests.conftest import Process, eventually

Start = Callable[..., Process]

APPLICATION = """
import pathlib, time
from recruiter import Recruiter, current_job
recruiter = Recruiter()

@recruiter.task
def counts(path: str) -> str:
    for step in range(47):
        current_job.progress(step / 100)
    while not pathlib.Path(path).exists():
        time.sleep(0.02)
    return "done"

@recruiter.task
def approves() -> str:
    current_job.sleep(0.01)
    return current_job.wait_for("approved", timeout="1 day")

@recruiter.task
def fails() -> None:
    raise ValueError("no")
"""


def told(job: Job) -> list[str]:
    return [entry.what for entry in job.history]


def test_a_job_that_was_handed_back_on_sigterm_says_so_everywhere(
    recruiter: Recruiter, fleet: Start, bootstrap: str, tmp_path: Path, target: str
) -> None:
    """Given a running job, when its worker is asked to stop and cannot wait for it, then the job's history names the
    worker and the reason: in Python, on the command line and in JSON."""
    worker = fleet(bootstrap, "--grace", "0s")
    id = recruiter.job("counts", [str(tmp_path / "go")]).enqueue().id
    eventually(lambda: recruiter.find(id).progress > 0.4)
    holder = recruiter.find(id).locked_by

    worker.signal(signal.SIGTERM)
    worker.wait()

    eventually(lambda: recruiter.find(id).history)
    job = recruiter.find(id)
    (entry,) = job.history
    assert (entry.what, entry.by, entry.reason) == ("handed-back", f"worker {holder}", "the worker was asked to stop")
    assert job.attempts == 0
    sentence = f"handed back by worker {holder}: the worker was asked to stop"
    assert sentence in " ".join(here(target, "job", "show", str(id))[1].split())
    shown = json.loads(here(target, "job", "show", str(id), "--output", "json")[1])
    assert [(each["what"], each["text"]) for each in shown["history"]] == [("handed-back", sentence)]


def test_signals_sleeps_and_waits_are_told(recruiter: Recruiter, fleet: Start, bootstrap: str) -> None:
    fleet(bootstrap)
    id = recruiter.job("approves").enqueue().id
    eventually(lambda: recruiter.find(id).waits_for is not None)
    assert told(recruiter.find(id)) == ["slept", "waited"]

    recruiter.signal(id, "approved", "yes", by="ada")

    eventually(lambda: recruiter.find(id).done)
    history = recruiter.find(id).history
    (sent,) = [entry for entry in history if entry.what == "signal"]
    assert (sent.new, sent.by, str(sent)) == ("approved", "ada", "got the signal 'approved' by ada")
    assert told(recruiter.find(id)) in (["slept", "signal", "continued"], ["slept", "continued", "signal"])
    assert str(history[-1]) in ("ended its wait for the signal 'approved'", str(sent))


def test_a_wait_that_timed_out_is_told(recruiter: Recruiter, target: str) -> None:
    sandbox = Sandbox(recruiter, target)

    @recruiter.task
    def waits() -> None:
        with suppress(SignalTimeout):
            current_job.wait_for_any("approved", "refused", timeout="1 hour")

    job = waits.enqueue()
    sandbox.run_due()
    sandbox.move_clock("2 hours")
    sandbox.run_due()

    (entry,) = recruiter.find(job.id).history
    told_entry = "ended its wait for the signal 'approved or refused': the signal did not come in time"
    assert (entry.what, str(entry)) == ("continued", told_entry)


def test_recoveries_are_told_on_both_jobs(recruiter: Recruiter, fleet: Start, bootstrap: str) -> None:
    fleet(bootstrap)
    old = recruiter.job("fails").enqueue().id
    eventually(lambda: recruiter.find(old).ended)

    new = recruiter.recover(old).id

    eventually(lambda: recruiter.find(new).ended)
    assert [str(entry) for entry in recruiter.find(old).history] == [f"recovered as {new}"]
    assert [str(entry) for entry in recruiter.find(new).history] == [f"made to repeat {old}"]
    assert recruiter.jobs.recover(ids=new) == 1
    assert told(recruiter.find(new)) == ["recovered", "recovered"]


def test_pauses_of_its_flow_and_a_cancel_are_told(recruiter: Recruiter) -> None:
    flow = recruiter.flow("two")
    step = flow.add(recruiter.job("counts", ["x"]))
    handle = flow.start()

    handle.pause(by="ada", reason="the bank is closed")
    recruiter.cancel(step.id, by="bob", reason="$enough")

    assert [str(entry) for entry in recruiter.find(step.id).history] == [
        "its flow was paused by ada: the bank is closed",
        "cancelled by bob: $enough",
    ]


def test_the_console_and_its_api_have_the_same_history(recruiter: Recruiter) -> None:
    id: JobId = recruiter.job("counts", ["x"]).schedule_in("1 day").enqueue().id
    recruiter.run_now(id, by="ada", reason="now")

    with (
        served(dashboard(recruiter, access=lambda: "ada")) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        shown = client.get("api/job", params={"id": str(id)}).json()["history"]
        page = client.get("job", params={"id": str(id), "tab": "history"}).text

    assert [(each["what"], each["by"], each["text"]) for each in shown] == [("run-now", "ada", "made due by ada: now")]
    assert "made due by ada: now" in page
