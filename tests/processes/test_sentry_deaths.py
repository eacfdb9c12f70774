"""Sentry across processes: a job whose process died reaches Sentry too, once, although that process cannot tell."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recruiter import Every
from tests.applications import reported
from tests.conftest import Process, Starter, eventually
from tests.processes.conftest import Lead

APPLICATION = str(Path(reported.__file__))
REPORT_WITHIN_SECONDS = 40.0


@pytest.fixture
def shop(target: str) -> Iterator[None]:
    reported.recruiter.point_at(target)
    yield
    reported.recruiter.close()


def sent(folder: Path, type: str) -> list[dict[str, Any]]:
    lines = [line for file in folder.glob("sentry-*.jsonl") for line in file.read_text().splitlines()]
    return [payload for each, payload in map(json.loads, lines) if each == type]


def errors(folder: Path) -> dict[str, dict[str, Any]]:
    """The errors by the id of their job; a job with two errors fails the test."""
    found = [(event["contexts"]["job"]["id"], event) for event in sent(folder, "event")]
    assert max(Counter(id for id, _ in found).values(), default=0) <= 1, found
    return dict(found)


def at_work(start: Starter, folder: Path, *options: str) -> Process:
    arguments = ("--bootstrap", APPLICATION, "--considered-dead-after", "3s", *options)
    worker = start("start", "worker", *arguments, **{reported.FOLDER: str(folder)})
    worker.says("joined the roster")
    return worker


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_each_kind_of_end_reaches_sentry_once(start: Starter, lead: Lead, tmp_path: Path, concurrency: str) -> None:
    """Given jobs that crash, overrun their time, are lost with their worker, are retried, and fail; when all have
    ended, then each that failed for good is one error, and the one that was retried is none."""
    lead(dead_after=3.0)
    killed = at_work(start, tmp_path, "--concurrency", concurrency, "--processes", "1")
    lost = reported.transfer.enqueue(str(tmp_path / "started"))
    eventually((tmp_path / "started").exists)
    killed.signal(signal.SIGKILL)

    at_work(start, tmp_path, "--concurrency", concurrency)
    crashed, overran = reported.crash.enqueue(), reported.overrun.enqueue()
    flaky, failed = reported.flaky.enqueue(), reported.broken.enqueue()
    jobs = {job.id: job for job in (lost, crashed, overran, failed)}
    eventually(lambda: reported.recruiter.jobs.count(state=["failed", "lost", "succeeded"]).number == 5)
    eventually(lambda: len(errors(tmp_path)) >= len(jobs), REPORT_WITHIN_SECONDS)

    assert flaky.result() == "done"
    found = errors(tmp_path)
    assert found.keys() == {str(id) for id in jobs}
    kinds = {id: found[str(id)]["exception"]["values"][0] for id in jobs}
    assert {id: (kind["type"], kind["mechanism"]["handled"]) for id, kind in kinds.items()} == {
        lost.id: ("JobCrashed", False),
        crashed.id: ("JobCrashed", False),
        overran.id: ("JobTimedOut", False),
        failed.id: ("ValueError", False),
    }
    assert found[str(lost.id)]["tags"]["recruiter.why"] == "lost"
    assert "SIGABRT" in kinds[crashed.id]["value"]
    assert found[str(crashed.id)]["contexts"]["job"]["task"] == "crash"
    stored = reported.recruiter.store.archived.collection
    assert stored.count_documents({"unreported": {"$exists": True}}) == 0


@pytest.mark.usefixtures("shop")
def test_each_run_of_a_repeatable_job_is_one_check_in(start: Starter, lead: Lead, tmp_path: Path) -> None:
    """Given repeatable jobs of which one is lost with its worker, one crashes, one overruns its time, one fails and one
    is retried; when runs of all have ended, then each run has one end, in the check-in that it began."""
    lead(dead_after=3.0)
    killed = at_work(start, tmp_path, "--processes", "1")
    reported.transfer.job(str(tmp_path / "started")).repeat_with_policy(Every("1s")).with_urn("transfer").create()
    eventually((tmp_path / "started").exists)
    reported.recruiter.scheduler("transfer").pause()
    killed.signal(signal.SIGKILL)

    at_work(start, tmp_path)
    for task in (reported.crash, reported.overrun, reported.broken, reported.flaky):
        task.job().repeat_with_policy(Every("2s")).with_urn(task.name).create()

    def statuses(urn: str) -> list[str]:
        """Of the run that ended first."""
        check_ins = [told for told in sent(tmp_path, "check_in") if told["monitor_slug"] == urn]
        ended = [told["check_in_id"] for told in check_ins if told["status"] != "in_progress"]
        return [told["status"] for told in check_ins if ended and told["check_in_id"] == ended[0]]

    ends = {"transfer": "error", "crash": "error", "overrun": "error", "broken": "error", "flaky": "ok"}
    for urn in ends:
        eventually(lambda urn=urn: statuses(urn), REPORT_WITHIN_SECONDS)  # type: ignore[misc]
    for urn, end in ends.items():
        assert [status for status in statuses(urn) if status != "in_progress"] == [end], urn
        assert "in_progress" in statuses(urn), urn


@pytest.mark.usefixtures("shop")
def test_one_of_several_workers_reports_a_death_to_sentry(start: Starter, lead: Lead, tmp_path: Path) -> None:
    lead()
    for _ in range(2):
        at_work(start, tmp_path)
    jobs = [reported.crash.enqueue() for _ in range(6)]
    eventually(lambda: len(errors(tmp_path)) >= len(jobs), REPORT_WITHIN_SECONDS)
    assert errors(tmp_path).keys() == {str(job.id) for job in jobs}
