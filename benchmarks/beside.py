"""How long urgent work takes next to a backlog of ordinary jobs.

    python benchmarks/beside.py [--work MILLISECONDS] [--times N] [--json FILE]

One worker with two children drains a backlog of jobs that use `--work` milliseconds of CPU time. Next to them, with a
higher priority and without work of their own:

    result       enqueue one job and wait for its result
    limit of 1   jobs of a task with `max_running=1`, from the first start to the last end, per job
    unique       a job that is unique until it has ended: enqueue and wait until the same key can be enqueued again
    chain        a flow of steps that wait for each other, per step

Workers gather outcomes before they write them, so each of these would wait if nothing hurried the outcome along.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import noop
from drain import Processes

from recruiter.embedded import EmbeddedServer

LIMITED_JOBS, UNIQUE_JOBS, STEPS, RESULTS = 20, 10, 20, 20
BACKLOG_SECONDS = 60


def measure(target: str, work: float) -> dict[str, float]:
    """Milliseconds."""
    recruiter = noop.recruiter
    recruiter.point_at(target)
    recruiter.prepare()
    noop.work.enqueue_many([(number, work) for number in range(int(2 * BACKLOG_SECONDS * 1000 / work))])
    processes = Processes(target)
    try:
        processes.start("recruiter")
        processes.start("worker", "--processes", "2")
        while recruiter.store.archived.collection.estimated_document_count() < 200:
            time.sleep(0.05)
        return {
            "result, median": statistics.median(_result() for _ in range(RESULTS)),
            "limit of 1, per job": _limited(),
            "unique, median": statistics.median(_unique() for _ in range(UNIQUE_JOBS)),
            "chain, per step": _chain(),
        }
    finally:
        processes.stop()
        recruiter.store.client.drop_database("bench")
        recruiter.close()


def _result() -> float:
    began = time.perf_counter()
    noop.urgent.enqueue().result(timeout=60)
    return (time.perf_counter() - began) * 1000


def _limited() -> float:
    began = time.perf_counter()
    for handle in [noop.one_at_a_time.enqueue(number) for number in range(LIMITED_JOBS)]:
        handle.result(timeout=120)
    return (time.perf_counter() - began) * 1000 / LIMITED_JOBS


def _unique() -> float:
    began = time.perf_counter()
    first = noop.one_per_key.enqueue("key").id
    while noop.one_per_key.enqueue("key").id == first:
        time.sleep(0.005)
    return (time.perf_counter() - began) * 1000


def _chain() -> float:
    flow = noop.recruiter.flow("chain")
    last = flow.add(noop.urgent.job())
    for _ in range(STEPS - 1):
        last = flow.add(noop.urgent.job(), after=last)
    began = time.perf_counter()
    flow.start().wait(timeout=120)
    return (time.perf_counter() - began) * 1000 / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=float, default=10.0)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with EmbeddedServer() as server:
        runs = [measure(server.uri.replace("/?", "/bench?"), options.work) for _ in range(options.times)]
    print(f"Milliseconds, next to a backlog of jobs of {options.work:g} ms")
    for name in runs[0]:
        values = [run[name] for run in runs]
        print(f"{name:24} {statistics.median(values):8.1f}   ({', '.join(f'{value:.1f}' for value in values)})")
    if options.json:
        options.json.write_text(json.dumps(runs, indent=2))


if __name__ == "__main__":
    main()
