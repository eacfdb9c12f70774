"""How soon a lone job starts on an idle system, as a multiple of one durable insert of the same run.

    python benchmarks/latency.py [--jobs N] [--every SECONDS] [--times N] [--json FILE]

A recruiter and a worker with two children wait; a producer enqueues one job after the other, with a pause between them.
Counted is the time from the call of `enqueue` until the code of the job runs, on the monotonic clock of the host, which
all processes share. Before and after, with the same pauses, plain `insert_one` calls of the same document (majority,
journal) measure one durable write on this MongoDB at that time. A job needs two: its own and its assignment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import noop
from bson import ObjectId
from drain import Processes
from pymongo import MongoClient, WriteConcern

from recruiter.embedded import EmbeddedServer
from recruiter.store.codec import job_document

Figures = dict[str, float]


def paced(call: Callable[[], None], times: int, every: float) -> list[float]:
    """Milliseconds of each call, with a pause of `every` seconds between them."""
    took = []
    for _ in range(times):
        began = time.monotonic()
        call()
        took.append((time.monotonic() - began) * 1000)
        time.sleep(max(0.0, every - (time.monotonic() - began)))
    return took


def started(folder: Path, jobs: int) -> list[float]:
    """Milliseconds from the call to the start of each job, when all have started."""
    place = folder / "starts"
    while not place.exists() or place.read_text().count("\n") < jobs:
        time.sleep(0.01)
    return [float(line) * 1000 for line in place.read_text().splitlines()]


def measure(uri: str, jobs: int, every: float) -> Figures:
    target = uri.replace("/?", "/bench?")
    client = MongoClient[dict[str, object]](target)
    raw = client.get_database("raw").get_collection("jobs", write_concern=WriteConcern("majority", j=True))
    noop.recruiter.point_at(target)
    noop.recruiter.store.prepare()
    template = job_document(noop.stamp.job(0.0).build())

    def insert() -> None:
        raw.insert_one({**template, "_id": ObjectId()})

    def enqueue() -> None:
        noop.stamp.enqueue(time.monotonic())

    with tempfile.TemporaryDirectory() as name:
        os.environ[noop.STARTS] = str(Path(name) / "starts")
        processes = Processes(target)
        try:
            processes.start("recruiter")
            processes.start("worker", "--processes", "2")
            noop.noop.enqueue(0, "warm").result(timeout=60)
            inserts = paced(insert, jobs // 2, every)
            enqueues = paced(enqueue, jobs, every)
            starts = sorted(started(Path(name), jobs))
            inserts += paced(insert, jobs // 2, every)
        finally:
            processes.stop()
            client.drop_database("bench")
            client.drop_database("raw")
            client.close()
            noop.recruiter.close()
    insert_one, p50, p99 = statistics.median(inserts), statistics.median(starts), starts[int(len(starts) * 0.99) - 1]
    return {
        "raw insert_one ms, median": insert_one,
        "enqueue ms, median": statistics.median(enqueues),
        "start ms, p50": p50,
        "start ms, p90": starts[int(len(starts) * 0.9) - 1],
        "start ms, p99": p99,
        "p50 as a multiple of the raw insert": p50 / insert_one,
        "p99 as a multiple of p50": p99 / p50,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--every", type=float, default=0.05)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with EmbeddedServer() as server:
        figures = [measure(server.uri, options.jobs, options.every) for _ in range(options.times)]
    print(f"{'measure':38} {'median':>8}   runs")
    for name in figures[0]:
        values = [each[name] for each in figures]
        print(f"{name:38} {statistics.median(values):8.2f}   {', '.join(f'{value:.2f}' for value in values)}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
