"""The job of a worker that died goes on soon, and before the backlog."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Starter, eventually
from tests.processes.conftest import Lead

DEAD_AFTER = 3.0
SOON = 2.0
SLACK = 1.0
"""The machine that runs the tests may be slow."""


def test_it_runs_again_in_its_old_place(lead: Lead, start: Starter, store: Store, tmp_path: Path) -> None:
    # given a job that runs, and a backlog that came later and that another worker is busy with
    options = ("--bootstrap", jobs.__file__, "--processes", "1", "--considered-dead-after", f"{DEAD_AFTER:g}s")
    lead(lease_time=2.0, dead_after=DEAD_AFTER)
    worker = start("start", "worker", *options)
    first = jobs.record.enqueue(str(tmp_path), "first", 60.0)
    eventually(lambda: (tmp_path / "first").exists())
    mine = store.roster.holder(first.id)
    assert mine is not None
    start("start", "worker", *options).says("joined the roster")
    jobs.nap.enqueue_many([(0.1,) for _ in range(300)])
    eventually(lambda: store.archived.collection.count_documents({}) > 3)

    # when its worker is killed
    worker.signal(signal.SIGKILL)
    killed_at = time.monotonic()

    # then the other worker has it soon after the first one's time is over, and the backlog waits
    eventually(lambda: (now := store.roster.holder(first.id)) is not None and now.worker != mine.worker, within=30)
    assert time.monotonic() - killed_at < DEAD_AFTER + SOON + SLACK
    assert store.scheduled.collection.count_documents({"task": "nap"}) > 100
