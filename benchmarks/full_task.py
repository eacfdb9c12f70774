"""Measures how much a task at its limit, with many waiting jobs, slows down other tasks.

    python benchmarks/full_task.py [--jobs N] [--pile N] [--runs N] [--json FILE]

No-op jobs are drained by one worker with three children, and one child runs an endless job. In every other
run that job's task is at its limit of one, and 100,000 more of it wait, before the no-ops in order. Starts a private
MongoDB and real processes. Both kinds of runs alternate. Compare the ratio of neighbours: machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import noop
from drain import Processes, cpu

from recruiter.embedded import EmbeddedServer
from recruiter.store.database import Store

ALONE, BESIDE = "alone", "beside a full task"


def measure(uri: str, mongod: int, jobs: int, pile: int) -> dict[str, float]:
    """Drains the no-ops in a separate database."""
    target = uri.replace("/?", "/bench?")
    recruiter = noop.recruiter
    recruiter.point_at(target)
    store = recruiter.store
    store.prepare()
    noop.endless.enqueue()
    if pile:
        recruiter.controls.set_limit("task:endless", 1)
        noop.endless.enqueue_many([()] * pile)
    noop.noop.enqueue_many([(number, "x") for number in range(jobs)])
    processes = Processes(target, log_level="error")
    try:
        processes.start("worker", "--processes", "3", "--grace", "0s")
        while not store.roster.read():
            time.sleep(0.01)
        served = cpu(mongod)
        processes.start("recruiter")
        rate = _drained(store, jobs)
        served, used = cpu(mongod) - served, cpu(processes.members["recruiter"].pid)
        running = [run["task"] for worker in store.roster.entries() for run in worker.running]
        assert running.count("endless") == 1, f"the task must be at its limit, and not above: {running}"
    finally:
        processes.stop()
        store.client.drop_database("bench")
        recruiter.close()
    return {"drain /s": rate, "recruiter µs/job": used / jobs * 1e6, "mongod µs/job": served / jobs * 1e6}


def _drained(store: Store, jobs: int) -> float:
    """Jobs a second, from the first that has ended to the last."""
    done, first, first_count = 0, 0.0, 0
    while done < jobs:
        time.sleep(0.02)
        done = store.archived.collection.estimated_document_count()
        if done and not first:
            first, first_count = time.perf_counter(), done
    return (jobs - first_count) / (time.perf_counter() - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--pile", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, list[float]] = {}
    with EmbeddedServer() as server:
        mongod = server.pid or 0
        measure(server.uri, mongod, options.jobs // 4, 0)  # whatever is slow at first is slow here
        for _ in range(options.runs):
            for kind, pile in ((ALONE, 0), (BESIDE, options.pile)):
                for name, value in measure(server.uri, mongod, options.jobs, pile).items():
                    figures.setdefault(f"{name}, {kind}", []).append(value)
    print(f"{'measure':40} {'median':>10}   runs")
    for name, values in figures.items():
        print(f"{name:40} {statistics.median(values):10,.1f}   {', '.join(f'{value:,.1f}' for value in values)}")
    pairs = zip(figures[f"drain /s, {BESIDE}"], figures[f"drain /s, {ALONE}"], strict=True)
    ratio = statistics.median(beside / alone for beside, alone in pairs)
    print(f"{'ratio of the drain rates, run by run':40} {ratio:10.2f}")
    if options.json:
        options.json.write_text(json.dumps({**figures, "ratio": ratio}, indent=2))


if __name__ == "__main__":
    main()
