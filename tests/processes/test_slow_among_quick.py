"""A slow job among quick ones: nothing waits behind it, nothing is mixed up, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Starter, eventually
from tests.processes.conftest import Lead

JOBS = jobs.__file__
QUICK = 1200


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_child_that_was_quick_and_gets_stuck_keeps_nothing_that_it_has_not_started(
    lead: Lead, start: Starter, store: Store, tmp_path: Path, processes: str
) -> None:
    # given a worker that has seen only quick jobs, and so takes many at once
    lead()
    worker = start("start", "worker", "--bootstrap", JOBS, "--processes", processes)
    worker.says("joined the roster")
    quick = [(number, 1) for number in range(QUICK)]
    jobs.add.enqueue_many(quick)
    eventually(lambda: store.archived.collection.count_documents({}) >= QUICK / 3)

    # when one does not end, with others around it
    gate = tmp_path / "gate"
    slow = jobs.wait_for_file.enqueue(str(gate))
    jobs.add.enqueue_many(quick)
    if processes == "2":
        # then with a second child everything else goes on
        eventually(lambda: store.archived.collection.count_documents({"task": "add"}) == 2 * QUICK, within=30)
    else:
        # then with one child what is behind it goes back to the roster
        eventually(lambda: store.roster.held() == {slow.id}, within=30)
    gate.touch()

    # and at the end every job ran once and has its own result
    assert slow.result(timeout=60) == "released"
    eventually(lambda: store.archived.collection.count_documents({}) == 2 * QUICK + 1, within=30)
    results = sorted(d["result"] for d in store.archived.collection.find({"task": "add"}))
    assert results == sorted([number + 1 for number in range(QUICK)] * 2)
    assert store.archived.collection.count_documents({"attempts": {"$ne": 1}}) == 0


def test_large_jobs_pass_through_pipes_that_are_smaller(lead: Lead, start: Starter) -> None:
    lead()
    start("start", "worker", "--bootstrap", JOBS, "--processes", "2").says("joined the roster")
    handles = [jobs.echo.enqueue(letter * 3_000_000) for letter in "abcdefgh"]

    assert [handle.result(timeout=60) for handle in handles] == [letter * 3_000_000 for letter in "abcdefgh"]
