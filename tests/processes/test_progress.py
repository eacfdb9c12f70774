"""Progress through real processes: seen while the job runs, in few writes, never lost, and free for those who are
silent."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from recruiter import Job
from recruiter.results import JobHandle
from recruiter.store.codec import Document
from recruiter.store.database import Store
from tests.applications import progress as app
from tests.conftest import Process, Starter, eventually
from tests.processes.conftest import Lead
from tests.samples import document

RUNS = app

APP = str(Path(app.__file__))
QUICK = ("--considered-dead-after", "3s")
QUICKLY = {"lease_time": 2.0, "dead_after": 3.0}


def start_worker(start: Starter, *options: str) -> Process:
    worker = start("start", "worker", "--bootstrap", APP, *QUICK, *options)
    worker.says("joined the roster")
    return worker


def stages(job: Job) -> list[tuple[str, str | None, float]]:
    return [(entry.state, entry.stage, entry.progress) for entry in job.status]


def seen(handle: JobHandle[Any]) -> Job:
    return app.recruiter.find(handle.id)


class Writes:
    """Every change of a job that the server has made, with its time, from the server's own history."""

    def __init__(self, store: Store) -> None:
        self._oplog = store.client.get_database("local").get_collection("oplog.rs")
        self._place = f"{store.target.database}.{store.scheduled.collection.name}"

    def of(self, handle: JobHandle[Any]) -> list[datetime]:
        query = {"ns": self._place, "op": "u", "o2._id": handle.id}
        return [entry["wall"].replace(tzinfo=UTC) for entry in self._oplog.find(query).sort("$natural", 1)]


def most_in_a_second(moments: list[datetime]) -> int:
    return max(sum(1 for each in moments if first <= each < first + timedelta(seconds=1)) for first in moments)


def test_ten_thousand_words_a_second_are_a_few_writes_and_the_last_is_not_lost(
    lead: Lead, start: Starter, store: Store, tmp_path: Path
) -> None:
    # given a job that tells its progress 10,000 times a second for three seconds, and then computes in silence
    lead(**QUICKLY)
    start_worker(start)
    gate = tmp_path / "gate"
    handle = app.chatter.enqueue(10_000, 3.0, str(gate))

    # then it can be seen how it goes on
    eventually(lambda: seen(handle).stage == "talking")
    first = seen(handle).progress
    assert eventually(lambda: seen(handle).progress > first)

    # and its last word, while it is still silent
    eventually(lambda: seen(handle).stage == "silence")
    now = seen(handle)
    assert stages(now) == [("running", "talking", 0.5), ("running", "silence", 0.75)]
    assert [line.text for line in now.log] == ["the last word"]
    written = _written_at(store, handle, "silence")
    assert written is not None
    assert (written - now.status[-1].date).total_seconds() < 2.0

    # and it took at most five writes a second: one that is late comes together with the next
    writes = Writes(store).of(handle)
    assert 3 <= len(writes) <= 5 * ((writes[-1] - writes[0]).total_seconds() + 1)
    assert most_in_a_second(writes) <= 6

    # and nothing is lost at the end
    gate.touch()
    end = handle.wait(timeout=60)
    assert end.result == 30_000
    assert stages(end)[-1] == ("succeeded", "silence", 1.0)
    assert end.log == now.log


@pytest.mark.parametrize(
    ("options", "job"),
    [
        ((), "chatter"),
        ((), "chatter_later"),
        (("--concurrency", "4"), "chatter"),
        (("--concurrency", "4"), "chatter_later"),
    ],
    ids=["alone", "a coroutine alone", "in a thread", "a coroutine that blocks the loop"],
)
def test_the_last_word_is_seen_within_a_second(
    lead: Lead, start: Starter, store: Store, tmp_path: Path, options: tuple[str, ...], job: str
) -> None:
    lead(**QUICKLY)
    start_worker(start, *options)
    gate = str(tmp_path / "gate")
    handle = app.chatter.enqueue(10_000, 0.5, gate) if job == "chatter" else app.chatter_later.enqueue(gate)

    written = eventually(lambda: _written_at(store, handle, "silence"))

    assert written is not None
    (said,) = [entry.date for entry in seen(handle).status if entry.stage == "silence"]
    assert (written - said).total_seconds() < 1.0
    (tmp_path / "gate").touch()
    assert handle.wait(timeout=60).done


def _written_at(store: Store, handle: JobHandle[Any], stage: str) -> datetime | None:
    found: Document = store.scheduled.collection.find_one({"_id": handle.id}) or {}
    moment: datetime | None = found.get("reported_at") if found.get("stage") == stage else None
    return moment


def test_short_and_silent_jobs_cost_no_write(lead: Lead, start: Starter, store: Store) -> None:
    lead(**QUICKLY)
    start_worker(start)
    handles = [app.tracked.enqueue(0) for _ in range(3)] + [app.silent.enqueue("/") for _ in range(60)]

    for handle in handles:
        assert handle.wait(timeout=60).done

    assert [handle.id for handle in handles[3:] if Writes(store).of(handle)] == []


@pytest.mark.parametrize("how", ["raises", "killed", "child killed", "worker killed"])
def test_nothing_is_lost_when_an_attempt_ends_badly(
    lead: Lead, start: Starter, store: Store, tmp_path: Path, how: str
) -> None:
    """Given a job that has said something, when its attempt ends in any way, then the next one goes on from there."""
    lead(**QUICKLY)
    worker = start_worker(start)
    handle = app.dies_first.enqueue(str(tmp_path), how)
    eventually(lambda: document(store, handle.id).get("log"))

    # when
    (tmp_path / "gate").touch()
    if how == "child killed":
        psutil.Process(worker.children()[0]).kill()
    elif how == "worker killed":
        worker.signal(signal.SIGKILL)
        start_worker(start)

    # then
    end = handle.wait(timeout=60)
    assert stages(end) == [
        ("running", "run 1", 0.5),
        ("waiting", "run 1", 0.5),
        ("running", "run 2", 0.5),
        ("succeeded", "run 2", 1.0),
    ]
    assert end.status[1].error
    assert [line.text for line in end.log] == ["in run 1", "in run 2"]
    assert end.locked_by is None
