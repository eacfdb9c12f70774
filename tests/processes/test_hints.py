"""Hints and short cuts can be removed, one at a time: only the speed changes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from recruiter.domain.planning.lookahead import Lookahead
from recruiter.domain.planning.prefetch import JobPace
from recruiter.processes import recruiter as leading
from recruiter.processes.worker.settler import Settler
from recruiter.store.change_stream import ChangeWaiter
from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import eventually
from tests.processes.conftest import Lead

JOBS = 60
Removed = Callable[[pytest.MonkeyPatch], None]
HINTS: dict[str, Removed] = {
    "change streams": lambda patch: patch.setattr(ChangeWaiter, "arm", lambda *_: None),
    "assignment from the event of an insert": lambda patch: patch.setattr(leading, "assign_new", lambda *_: False),
    "lists of the next jobs": lambda patch: patch.setattr(Lookahead, "take", lambda *_: []),
    "prefetched jobs": lambda patch: patch.setattr(JobPace, "prefetch", 0),
    "outcomes that are written together": lambda patch: patch.setattr(Settler, "_must_settle", lambda *_: True),
}


@pytest.mark.parametrize("hint", HINTS)
def test_without_one_hint_each_job_still_runs_once(
    lead: Lead, store: Store, monkeypatch: pytest.MonkeyPatch, hint: str
) -> None:
    """Given a leader and a worker without this hint, when jobs come alone, in bulk and in a flow, then each of them
    ends, at its first attempt."""
    HINTS[hint](monkeypatch)
    lead()
    stop = threading.Event()
    worker = threading.Thread(target=jobs.recruiter.watch, args=(jobs.add,), kwargs={"stop": stop})
    worker.start()
    try:
        alone = jobs.add.enqueue(1, 1)
        assert alone.result(timeout=60) == 2
        many = jobs.add.enqueue_many([(number, 1) for number in range(JOBS)])
        flow = jobs.recruiter.flow("f")
        flow.add(jobs.add, flow.add(jobs.add, 1, 1).result, 1)
        handle = flow.start()

        assert [job.result(timeout=60) for job in many] == [number + 1 for number in range(JOBS)]
        eventually(lambda: handle.report().counts == {"succeeded": 2})
        assert store.archived.collection.count_documents({"attempts": 1}) == JOBS + 3
    finally:
        stop.set()
        worker.join(timeout=60)
