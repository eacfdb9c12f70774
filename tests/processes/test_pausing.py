"""A pause also stops what a worker has prefetched: a heartbeat later nothing of it starts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

import pytest

from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Starter, eventually
from tests.processes.conftest import Lead

NAPS = 150
HEARTBEAT = timedelta(seconds=1)
SLACK = timedelta(seconds=0.5)
"""The machine that runs the tests may be slow."""


def last_start(store: Store) -> datetime:
    newest = store.archived.collection.find_one({"task": "nap"}, sort=[("last_execution.started_at", -1)])
    assert newest is not None
    started: datetime = newest["last_execution"]["started_at"]
    return started


@pytest.mark.parametrize("stop", ["pause_group", "block_starts", "pause_flow"])
def test_nothing_starts_a_heartbeat_after_a_pause(start: Starter, lead: Lead, store: Store, stop: str) -> None:
    # given a worker that has been quick, and so holds many of the slow jobs that came then
    lead()
    start("start", "worker", "--bootstrap", jobs.__file__).says("joined the roster")
    jobs.add.enqueue_many([(number, 1) for number in range(600)])
    eventually(lambda: store.archived.collection.estimated_document_count() > 300, within=60)
    flow = jobs.recruiter.flow("naps")
    for _ in range(NAPS):
        flow.add(jobs.nap.job(0.2).in_group("mail"))
    handle = flow.start()
    eventually(lambda: store.archived.collection.count_documents({"task": "nap"}) > 1, within=60)

    # when they are paused
    controls = jobs.recruiter.controls
    pausing: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "pause_group": (partial(controls.pause_group, "mail"), partial(controls.resume_group, "mail")),
        "block_starts": (controls.block_starts, controls.allow_starts),
        "pause_flow": (handle.pause, handle.resume),
    }
    pause, resume = pausing[stop]
    pause()
    paused_at = store.clock.now()

    # then what was not started is handed back, and nothing has started a heartbeat later
    eventually(lambda: not store.roster.held())
    assert last_start(store) < paused_at + HEARTBEAT + SLACK
    ended = store.archived.collection.count_documents({"task": "nap"})
    assert ended + store.scheduled.collection.count_documents({"task": "nap"}) == NAPS

    # and they go on where they were when they are resumed, with no attempt counted
    resume()
    eventually(lambda: store.archived.collection.count_documents({"task": "nap"}) > ended + 5)
    assert store.archived.collection.count_documents({"attempts": {"$gt": 1}}) == 0
