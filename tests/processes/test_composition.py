"""Composition with real processes, which are killed at random points: steps that are replaced by flows, compensations,
durable steps with their own retries, the first of several signals, and signals that create their job."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from recruiter import FlowHandle, FlowState
from recruiter.domain.job import JobId
from recruiter.store.database import Store
from tests.applications import composition
from tests.applications.composition import PARTS, STEPS
from tests.conftest import Process, Starter, eventually
from tests.depth import examples

RUNS = composition

QUICK = {"RECRUITER_CONSIDERED_DEAD_AFTER": "2s", "RECRUITER_LEASE_TIME": "1s", "RECRUITER_HEARTBEAT": "0.2s"}
TRIPS = 8
KILLS = 12
ITEMS = 24


@pytest.mark.parametrize("seed", range(1, 1 + examples(4)))
def test_composition_survives_kills_at_random_points(start: Starter, store: Store, seed: int) -> None:
    """Given flows that use everything, and a job that is made by a signal, when leaders, workers and children are
    killed while they run, then each step has succeeded or was skipped once, its effect is there once, each end ran
    once, and no signal was lost or taken twice."""
    chance = random.Random(seed)

    def starts(name: str) -> Process:
        more = ["--processes", "2"] if name == "worker" else []
        return start("start", name, "--bootstrap", composition.__file__, *more, **QUICK)

    # given
    fleet = {name: starts(name) for name in ("recruiter", "worker")}
    handles = {trip: composition.start(trip) for trip in map(str, range(TRIPS))}
    eventually(lambda: store.archived.collection.count_documents({}) > 0)

    # when each of them is killed again and again, and signals come meanwhile
    sent, baskets = 0, set[JobId]()
    for kill in range(KILLS):
        time.sleep(chance.uniform(0.0, 0.8))  # a random point
        if kill % 3 == 2:
            for child in fleet["worker"].children()[:1]:
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(child, signal.SIGKILL)
        else:
            name = ("recruiter", "worker")[kill % 3]
            fleet[name].signal(signal.SIGKILL)
            fleet[name] = starts(name)
        while sent < ITEMS * (kill + 1) // KILLS:
            baskets.add(composition.basket.job(ITEMS).unique("basket").enqueue_with_signal("item", sent).id)
            sent += 1
        if kill == KILLS // 2:
            for handle in handles.values():
                composition.recruiter.signal(handle["pay"].id, "rejected")
                composition.recruiter.signal(handle["pay"].id, "approved")

    # then
    for trip, handle in handles.items():
        check_trip(store, trip, handle)
    assert len(baskets) == 1
    assert composition.recruiter.handle(baskets.pop()).result("60s") == list(range(ITEMS))


def check_trip(store: Store, trip: str, handle: FlowHandle) -> None:
    assert handle.wait("120s").state is FlowState.FAILED
    eventually(lambda: handle.report().ends == {"failure": "succeeded"})
    assert {step.name: step.state for step in handle.steps() if step.on is None} == STEPS
    names = {step.step: step.name for step in handle.steps()}
    succeeded = [
        names[job["flow"]["step"]] for job in store.archived.collection.find({"flow.id": handle.id, "done": True})
    ]
    counted = {
        row["_id"].removeprefix(f"{trip} "): row["n"]
        for row in composition.counters().find({})
        if row["_id"].startswith(f"{trip} ")
    }
    assert counted.pop("charged") >= 1  # `once` calls a function again whose process died in it
    assert counted == dict.fromkeys(
        [*(name.removeprefix("hotel/") for name in STEPS if STEPS[name] == "succeeded"), "on failure"], 1
    )
    assert len(succeeded) == len(set(succeeded)) == len(counted)
    assert handle["last"].result("10s") == sum(range(1, PARTS + 1))
    assert handle["pay"].result("10s") == f"receipt of {trip}, rejected"
    paid = composition.recruiter.find(handle["pay"].id)
    assert [done.name for done in paid.checkpoints if not done.name.startswith("failure ")] == [
        "charge",
        "wait_for_any approved, rejected 1",
    ]


@pytest.mark.parametrize("who", ["the child", "the worker"])
def test_a_run_that_was_killed_while_it_adds_steps_does_not_block_the_next_one(
    start: Starter, tmp_path: Path, who: str
) -> None:
    """The server itself would keep the locks of its transaction for a minute."""
    start("start", "recruiter", "--bootstrap", composition.__file__, **QUICK)
    worker = start("start", "worker", "--bootstrap", composition.__file__, "--processes", "1", **QUICK)
    flow = composition.recruiter.flow("adds")
    added = flow.add(composition.adds.job(str(tmp_path)))
    flow.add(composition.note.job("adds", "next"), after=added, name="next")
    handle = flow.start()
    eventually(lambda: (tmp_path / "open").exists() and (tmp_path / "open").read_text())

    os.kill(int((tmp_path / "open").read_text()) if who == "the child" else worker.pid, signal.SIGKILL)
    killed = time.monotonic()
    if who == "the worker":
        start("start", "worker", "--bootstrap", composition.__file__, "--processes", "1", **QUICK)

    assert handle.wait("60s").counts == {"succeeded": 3}
    assert time.monotonic() - killed < 25
