"""How fast no-op jobs are enqueued, started and drained, and what an idle system costs.

    python benchmarks/drain.py [--jobs N] [--runs N] [--json FILE]

One worker with two children, default guarantees (majority, journal), history kept. Starts a private MongoDB and real
processes; prints a table. Compare ratios inside one run: machines are noisy. The `raw` lines show the rates of
the same MongoDB without Recruiter.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
from bson import ObjectId
from pymongo import MongoClient, WriteConcern

from recruiter import Recruiter
from recruiter.embedded import EmbeddedServer
from recruiter.store.codec import job_document

HERE = Path(__file__).parent
BULK = 50_000
sys.path.insert(0, str(HERE))

import noop  # noqa: E402


class Processes:
    """Our own processes, ended by pid whatever happens."""

    def __init__(self, target: str, log_level: str = "warning", application: str = str(HERE / "noop.py")) -> None:
        self._application = application
        self._environment = {**os.environ, "RECRUITER_TARGET": target, "RECRUITER_LOG_LEVEL": log_level}
        self.members: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "recruiter.cli.main", "start", name, "--bootstrap", self._application]
        self.members[name] = subprocess.Popen([*command, *arguments], env=self._environment)

    def stop(self) -> None:
        for member in self.members.values():
            member.terminate()
        for member in self.members.values():
            member.wait(timeout=60)
        self.members.clear()


def cpu(pid: int) -> float:
    """CPU seconds used so far by a process and its descendants."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in family if each.is_running())


def measure_drain(recruiter: Recruiter, target: str, jobs: int, children: int, mongod: int) -> dict[str, float]:
    calls = [(number, "x") for number in range(jobs)]
    started = time.perf_counter()
    noop.noop.enqueue_many(calls)
    bulk = jobs / (time.perf_counter() - started)
    store = recruiter.store
    before = store.archived.collection.estimated_document_count()
    processes = Processes(target)
    try:
        processes.start("worker", "--processes", str(children))
        while not store.roster.read():
            time.sleep(0.01)
        server_before = cpu(mongod)
        processes.start("recruiter")
        done, first, first_count = 0, 0.0, 0
        while done < jobs:
            time.sleep(0.02)
            done = store.archived.collection.estimated_document_count() - before
            if done and not first:
                first, first_count = time.perf_counter(), done
        elapsed = time.perf_counter() - first
        server = cpu(mongod) - server_before
        ours = {name: cpu(member.pid) for name, member in processes.members.items()}
    finally:
        processes.stop()
    return {
        "bulk enqueue /s": bulk,
        "drain /s": (jobs - first_count) / elapsed,
        "mongod µs/job": server / jobs * 1e6,
        "worker µs/job": ours["worker"] / jobs * 1e6,
        "recruiter µs/job": ours["recruiter"] / jobs * 1e6,
    }


def measure_latency(target: str, samples: int) -> dict[str, float]:
    """The time from the call of `enqueue` to the start of the job, on an idle system."""
    processes = Processes(target)
    recruiter = noop.recruiter
    latencies: list[float] = []
    try:
        processes.start("recruiter")
        processes.start("worker", "--processes", "2")
        noop.noop.enqueue(0, "warm").result(timeout=30)
        for number in range(samples):
            time.sleep(0.1)
            handle = noop.noop.enqueue(number, "x")
            ended = handle.wait(timeout=10)
            last = ended.last_execution
            assert last is not None
            assert last.started_at is not None
            latencies.append((last.started_at - ended.created_at).total_seconds() * 1000)
    finally:
        processes.stop()
        recruiter.close()
    latencies.sort()
    return {"start latency p50 ms": statistics.median(latencies), "p99 ms": latencies[int(len(latencies) * 0.99) - 1]}


def measure_enqueue(recruiter: Recruiter, target: str) -> dict[str, float]:
    raw = (
        MongoClient[dict[str, object]](target)
        .get_database("raw")
        .get_collection("jobs", write_concern=WriteConcern("majority", j=True))
    )
    raw.create_index([("lane", 1), ("priority", -1), ("scheduled_at", 1), ("_id", 1)])
    raw.create_index("scheduled_at")
    template = job_document(noop.noop.job(1, "x").build())

    def raw_one() -> None:
        raw.insert_one({**template, "_id": ObjectId()})

    def ours() -> None:
        noop.noop.enqueue(1, "x")

    figures = {}
    batches = [[{**template, "_id": ObjectId()} for _ in range(1000)] for _ in range(BULK // 1000)]
    started = time.perf_counter()
    for batch in batches:
        raw.insert_many(batch)
    figures["raw insert_many of 1,000 /s"] = raw_bulk = BULK / (time.perf_counter() - started)
    calls = [(number, "x") for number in range(BULK)]
    started = time.perf_counter()
    noop.noop.enqueue_many(calls)
    figures["enqueue_many /s"] = bulk = BULK / (time.perf_counter() - started)
    figures["enqueue_many : raw insert_many"] = bulk / raw_bulk
    for threads in (1, 32):
        rates = []
        for name, call in (("raw insert_one", raw_one), ("enqueue", ours)):
            rates.append(_rate(call, threads, 2.0))
            figures[f"{name}, {threads} threads /s"] = rates[-1]
        figures[f"enqueue : raw insert_one, {threads} threads"] = rates[1] / rates[0]
    raw.drop()
    raw.database.client.close()
    recruiter.store.scheduled.collection.delete_many({})
    return figures


def measure_idle(recruiter: Recruiter, target: str, mongod: int, seconds: float) -> dict[str, float]:
    processes = Processes(target)
    counters = recruiter.store.client.admin
    try:
        processes.start("recruiter")
        processes.start("worker", "--processes", "2")
        noop.noop.enqueue(0, "warm").result(timeout=30)
        time.sleep(10.0)
        before = counters.command("serverStatus")["opcounters"]
        ours, server = sum(cpu(member.pid) for member in processes.members.values()), cpu(mongod)
        time.sleep(seconds)
        after = counters.command("serverStatus")["opcounters"]
        used = sum(cpu(member.pid) for member in processes.members.values()) - ours
        served = cpu(mongod) - server
    finally:
        processes.stop()
    kinds = ("insert", "query", "update", "delete", "getmore", "command")
    operations = sum(after[kind] - before[kind] for kind in kinds)
    return {
        "idle CPU s in 30 s, recruiter + worker": used / seconds * 30,
        "idle CPU s in 30 s, mongod": served / seconds * 30,
        "idle MongoDB operations /s": operations / seconds,
    }


def _rate(call, threads: int, seconds: float) -> float:  # type: ignore[no-untyped-def]
    counts = [0] * threads
    end = time.perf_counter() + seconds

    def loop(slot: int) -> None:
        while time.perf_counter() < end:
            call()
            counts[slot] += 1

    workers = [threading.Thread(target=loop, args=(slot,)) for slot in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--children", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=["drain", "latency", "enqueue", "idle"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, list[float]] = {}
    with EmbeddedServer() as server:
        target = server.uri.replace("/?", "/bench?")
        recruiter = noop.recruiter
        recruiter.point_at(target)
        recruiter.store.prepare()
        for _ in range(options.runs):
            measured: dict[str, float] = {}
            if options.only in (None, "drain"):
                measured |= measure_drain(recruiter, target, options.jobs, options.children, server.pid or 0)
            if options.only in (None, "enqueue"):
                measured |= measure_enqueue(recruiter, target)
            if options.only in (None, "latency"):
                measured |= measure_latency(target, 100)
            if options.only in (None, "idle"):
                recruiter.point_at(target)
                measured |= measure_idle(recruiter, target, server.pid or 0, 20.0)
            for name, value in measured.items():
                figures.setdefault(name, []).append(value)
        recruiter.close()
    print(f"{'measure':36} {'median':>10}   runs")
    for name, values in figures.items():
        print(f"{name:36} {statistics.median(values):10,.2f}   {', '.join(f'{value:,.2f}' for value in values)}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
