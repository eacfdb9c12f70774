"""Flows with real processes, which are killed. The whole of it, with 1,000 parts, is `benchmarks/flows.py --kill`."""

from __future__ import annotations

import signal
from collections import Counter
from functools import partial
from pathlib import Path

from recruiter import FlowHandle, FlowState
from recruiter.store.database import Store
from tests.applications import flows
from tests.conftest import Process, Starter, eventually

RUNS = flows

FLOWS = flows.__file__
QUICK = {"RECRUITER_CONSIDERED_DEAD_AFTER": "2s", "RECRUITER_LEASE_TIME": "1s", "RECRUITER_HEARTBEAT": "0.2s"}
PARTS = 200


def fan_out(folder: Path, parts: int, wait: float = 0.0, *, results: bool = True) -> FlowHandle:
    """With `results`, parts take that of the first; without, they only come after it."""
    flow = flows.recruiter.flow("fan-out")
    one = flow.add(flows.begin, str(folder))
    calls = [(str(folder), one.result if results else 1, number, wait) for number in range(parts)]
    some = flow.add_many(flows.part, calls, after=one)
    flow.add(flows.total, str(folder), [part.result for part in some])
    flow.on_success(flows.end, str(folder))
    return flow.start()


def test_a_fan_out_survives_killed_workers_and_leaders(start: Starter, store: Store, tmp_path: Path) -> None:
    """Given a fan-out and fan-in, when workers and leaders are killed at every stage, then each step succeeds once,
    each ran at least once, and the last one sees all results."""

    def starts(name: str) -> Process:
        return start("start", name, "--bootstrap", FLOWS, *(["--processes", "2"] if name == "worker" else []), **QUICK)

    fleet = {name: starts(name) for name in ("recruiter", "worker")}
    handle = fan_out(tmp_path, PARTS, 0.02, results=False)
    # when the first is killed at the beginning, in the middle and near the end
    for progress, name in (
        (0.01, "recruiter"),
        (0.2, "worker"),
        (0.5, "recruiter"),
        (0.8, "worker"),
        (0.98, "recruiter"),
    ):
        eventually(partial(_is_at, handle, progress))
        fleet[name].signal(signal.SIGKILL)
        fleet[name] = starts(name)

    report = handle.wait(120)

    assert (report.state, report.counts) == (FlowState.SUCCEEDED, {"succeeded": PARTS + 2})
    eventually(lambda: "end" in flows.lines(tmp_path))
    ended = list(store.archived.collection.find({"flow.id": handle.id, "flow.on": None}))
    assert Counter(job["flow"]["step"] for job in ended) == {job["flow"]["step"]: 1 for job in ended}
    (total,) = [job for job in ended if job["task"] == "total"]
    assert total["result"] == sum(range(PARTS))
    ran = Counter(flows.lines(tmp_path))
    assert set(ran) == {"begin", "total", "end", *(f"part {number}" for number in range(PARTS))}
    # only what a killed worker ran at that moment, or had not written down yet, ran again
    assert sum(ran.values()) - len(ran) <= 2 * 20


def _is_at(handle: FlowHandle, progress: float) -> bool:
    return handle.report().progress >= progress
