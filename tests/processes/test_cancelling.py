"""Cancelling jobs that run: they stop, with everything they started, and say who wanted it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from recruiter import JobHandle
from recruiter.domain.job import ArchivedJob
from recruiter.domain.state import State
from recruiter.store.database import Store
from tests.applications import stubborn
from tests.conftest import Process, Starter, eventually
from tests.processes.conftest import Lead
from tests.samples import a_job, insert

RUNS = stubborn

APPLICATION = str(Path(stubborn.__file__))
WITHIN = 60.0


@pytest.fixture
def worker(start: Starter, lead: Lead, store: Store) -> Process:
    lead()
    worker = start("start", "worker", "--bootstrap", APPLICATION)
    worker.says("joined the roster")
    return worker


def started(folder: Path) -> bool:
    return (folder / "started").exists()


def programs(mark: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if mark in " ".join(_command(each))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def cancelled(job: JobHandle[None], folder: Path) -> ArchivedJob:
    eventually(lambda: started(folder))
    stubborn.recruiter.cancel(job.id, by="ada", reason="enough")
    ended = job.wait(WITHIN)
    assert (ended.state, ended.why, ended.reason) == (State.CANCELLED, "cancelled", "enough")
    assert ended.attempts == 1
    return ended


@pytest.mark.usefixtures("worker")
class TestRunning:
    def test_a_program_in_a_program_is_gone_and_the_clean_up_has_run(self, tmp_path: Path, store: Store) -> None:
        job = stubborn.sleep_deep.enqueue(str(tmp_path), tmp_path.name + "-mark")
        eventually(lambda: len(programs(tmp_path.name + "-mark")) == 2)

        ended = cancelled(job, tmp_path)

        assert ended.last_execution is not None
        assert ended.last_execution.message == "cancelled by ada: enough"
        assert (tmp_path / "cleaned").read_text() == "JobCancelled"
        eventually(lambda: not programs(tmp_path.name + "-mark"))
        (stored,) = store.archived.collection.find({"_id": job.id})
        assert stored["cancel"]["by"] == "ada"
        assert store.roster.held() == set()
        assert stubborn.quick.enqueue().result(WITHIN) == "quick"

    @pytest.mark.parametrize(
        "task",
        [stubborn.sleep, stubborn.sleep_async, stubborn.swallow, stubborn.hold_for_ever],
        ids=lambda task: task.name,
    )
    def test_a_cancelled_job_ends_whatever_its_code_does(self, tmp_path: Path, task: object, worker: Process) -> None:
        job: JobHandle[None] = task.enqueue(str(tmp_path))  # type: ignore[attr-defined]

        cancelled(job, tmp_path)

        told = {"sleep_async", "swallow"}
        assert (tmp_path / "told").exists() == (task.name in told)  # type: ignore[attr-defined]
        assert stubborn.quick.enqueue().result(WITHIN) == "quick"
        assert worker.popen.poll() is None


def test_a_cancelled_job_stops_no_other_job_of_its_child(lead: Lead, start: Starter, tmp_path: Path) -> None:
    lead()
    start("start", "worker", "--bootstrap", APPLICATION, "--concurrency", "4").says("joined the roster")
    folders = [tmp_path / name for name in ("sleep", "sleep_async", "other")]
    for folder in folders:
        folder.mkdir()
    blocked = stubborn.sleep.enqueue(str(folders[0]), 0.6)  # a thread hears of it with its next line of Python
    waiting = stubborn.sleep_async.enqueue(str(folders[1]))
    other = stubborn.sleep.enqueue(str(folders[2]), 3.0)
    eventually(lambda: all(map(started, folders)))

    for job in (blocked, waiting):
        stubborn.recruiter.cancel(job.id)

    assert waiting.wait(WITHIN).why == "cancelled"
    assert blocked.wait(WITHIN).why in ("cancelled", "done")
    ended = other.wait(WITHIN)
    assert (ended.why, ended.attempts) == ("done", 1)


def test_thousands_of_cancelled_jobs_are_archived_without_a_rest(start: Starter, store: Store) -> None:
    """Given thousands of jobs that were cancelled, when a leader comes that takes long rests, then it takes none."""
    insert(store, *(a_job() for _ in range(3_000)))
    assert stubborn.recruiter.jobs.cancel(task="add") == 3_000

    rests = ("--backoff-from", "10s", "--backoff-to", "10s")
    start("start", "recruiter", "--bootstrap", APPLICATION, *rests).says("is the leader now")

    eventually(lambda: not store.scheduled.flags(1), within=50)  # in six batches: with rests, a minute
    assert stubborn.recruiter.jobs.count(state="cancelled") == (3_000, True)
