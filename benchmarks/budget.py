"""The cost of a job: CPU time by process, bytes and commands.

    python benchmarks/budget.py [--kind noop|cpu:1|cpu:10|cpu:100|io:20] [--jobs N] [--times N] [--json FILE]

One worker with two children drains jobs that do nothing, use N milliseconds of CPU (`cpu:N`) or wait N milliseconds
(`io:N`, 50 coroutines in each child). With no-ops, `prototype.py`, the bare protocol, takes turns on the same MongoDB.
All figures are of the steady state: from a tenth to nine tenths of the ended jobs, so that
the start is not counted. CPU time per job is steadier than a rate on a shared machine, and a ratio inside one
run is steadier than both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import noop

import kinds  # isort: skip; `noop` puts its folder on the path
import psutil
from drain import Processes
from prototype import Prototype
from pymongo.database import Database

from recruiter.embedded import EmbeddedServer
from recruiter.store.database import Store

OURS = frozenset({"count", "serverStatus", "hello", "isMaster", "ping", "collStats"})
"""Commands of this benchmark itself, and the driver's own."""
LOOK_EVERY = 0.05
JOBS = {"noop": 100_000, "cpu:1": 10_000, "cpu:10": 2_000, "cpu:100": 200, "io:20": 30_000}

Figures = dict[str, float]
Families = Mapping[str, list[psutil.Process]]


@dataclass(frozen=True)
class Reading:
    """The counters at one instant."""

    at: float
    done: int
    cpu: dict[str, float]
    received: int
    sent: int
    commands: Counter[str]


def read(database: Database[Any], families: Families) -> Reading:
    status = database.client.admin.command("serverStatus")
    counts = status["metrics"]["commands"]
    commands = Counter({name: int(c["total"]) for name, c in counts.items() if isinstance(c, dict) and "total" in c})
    cpu = {name: sum(sum(p.cpu_times()[:2]) for p in family) for name, family in families.items()}
    done = database.recruiter.archived.estimated_document_count()
    network = status["network"]
    return Reading(time.perf_counter(), done, cpu, network["bytesIn"], network["bytesOut"], commands)


def steady(database: Database[Any], jobs: int, families: Callable[[], Families], before: int = 0) -> Figures:
    """Figures from a tenth to nine tenths of the jobs; returns when all have ended. `before` had ended already."""
    _wait(database, before + jobs // 10)
    members = families()
    first = read(database, members)
    _wait(database, before + jobs * 9 // 10)
    last = read(database, members)
    _wait(database, before + jobs)
    done = last.done - first.done
    figures = {"drain /s": done / (last.at - first.at)}
    for name in members:
        figures[f"CPU µs per job, {name}"] = (last.cpu[name] - first.cpu[name]) / done * 1e6
    figures["CPU µs per job, together"] = sum(value for name, value in figures.items() if name.startswith("CPU"))
    name, seconds = kinds.kind()
    if name == "cpu":
        figures["CPU µs per job, overhead"] = figures["CPU µs per job, together"] - seconds * 1e6
    used = sum(last.cpu.values()) - sum(first.cpu.values())
    figures["cores in use"] = used / (last.at - first.at)
    figures["bytes per job, to MongoDB"] = (last.received - first.received) / done
    figures["bytes per job, from MongoDB"] = (last.sent - first.sent) / done
    ran = last.commands - first.commands
    by_name = {name: count / done * 1000 for name, count in ran.items() if name not in OURS}
    figures["commands per 1,000 jobs"] = sum(by_name.values())
    figures["commands per second"] = figures["commands per 1,000 jobs"] / 1000 * figures["drain /s"]
    return figures | {f"commands per 1,000 jobs, {name}": count for name, count in by_name.items() if count >= 0.1}


def _wait(database: Database[Any], done: int) -> None:
    while database.recruiter.archived.estimated_document_count() < done:
        time.sleep(LOOK_EVERY)


def of_the_product(
    uri: str,
    mongod: int,
    jobs: int,
    children: int,
    around: Callable[[Store], None] = lambda _: None,
    started_by: type[Processes] = Processes,
) -> Figures:
    """Drains in a separate database; `around` adds other documents or changes the jobs before."""
    target = uri.replace("/?", "/bench?")
    recruiter = noop.recruiter
    recruiter.point_at(target)
    store = recruiter.store
    store.prepare()
    task = noop.of_kind_async if kinds.waits() else noop.of_kind
    task.enqueue_many([(number, "x") for number in range(jobs)])
    around(store)
    before, others = store.archived.collection.estimated_document_count(), len(store.roster.read())
    processes = started_by(target)
    try:
        slots = ["--concurrency", str(kinds.SLOTS_PER_PROCESS)] if kinds.waits() else []
        processes.start("worker", "--processes", str(children), *slots)
        while len(store.roster.read()) == others:
            time.sleep(0.01)
        processes.start("recruiter")

        def families() -> Families:
            worker = psutil.Process(processes.members["worker"].pid)
            leader = psutil.Process(processes.members["recruiter"].pid)
            of_worker = worker.children(recursive=True)
            server = psutil.Process(mongod)
            return {"mongod": [server], "leader": [leader], "supervisor": [worker], "children": of_worker}

        return steady(store.database, jobs, families, before)
    finally:
        processes.stop()
        store.client.drop_database("bench")
        recruiter.close()


def of_the_prototype(uri: str, mongod: int, jobs: int) -> Figures:
    prototype = Prototype(uri)
    prototype.fill(jobs)
    with prototype:

        def families() -> Families:
            pids = {name: member.pid for name, member in prototype.members.items()}
            worker = psutil.Process(pids["worker-0"])
            family = {"leader": [psutil.Process(pids["leader"])], "supervisor": [worker]}
            return {"mongod": [psutil.Process(mongod)], **family, "children": worker.children(recursive=True)}

        return steady(prototype.database, jobs, families)


def show(product: list[Figures], prototype: list[Figures]) -> None:
    names = list(dict.fromkeys(name for figures in (*product, *prototype) for name in figures))
    print(f"{'measure':46} {'product':>10} {'prototype':>10} {'ratio':>7}   runs of the product")
    for name in names:
        ours = [figures.get(name, 0.0) for figures in product]
        theirs = [figures.get(name, 0.0) for figures in prototype] or [0.0] * len(ours)
        ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b]
        ratio = f"{statistics.median(ratios):7.2f}" if ratios else f"{'–':>7}"
        runs = ", ".join(f"{value:,.1f}" for value in ours)
        print(f"{name:46} {statistics.median(ours):10,.1f} {statistics.median(theirs):10,.1f} {ratio}   {runs}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="noop", help="noop, cpu:N or io:N, in milliseconds")
    parser.add_argument("--jobs", type=int, help="by default enough for a few seconds")
    parser.add_argument("--children", type=int, default=2)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ[kinds.KIND] = options.kind
    jobs = options.jobs or JOBS.get(options.kind, 1_000)
    product: list[Figures] = []
    prototype: list[Figures] = []
    with EmbeddedServer() as server:
        mongod = server.pid or 0
        for _ in range(options.times):
            product.append(of_the_product(server.uri, mongod, jobs, options.children))
            if options.kind == "noop":
                prototype.append(of_the_prototype(server.uri, mongod, jobs))
    show(product, prototype)
    if options.json:
        options.json.write_text(json.dumps({"product": product, "prototype": prototype}, indent=2))


if __name__ == "__main__":
    main()
