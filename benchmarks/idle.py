"""The cost of an idle system: CPU time by process, and the commands that reach MongoDB.

    python benchmarks/idle.py [--seconds N] [--all] [--json FILE]

A recruiter and a worker with two children have run one job; then they wait. With `--all` they are one
`recruiter start all` instead, with a cleaner. All figures are for 30 seconds. CPU time comes from the scheduler's
counters for each thread (Linux): the usual figures come in steps of 10 ms, and an idle thread is rarely seen at
the end of one.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import noop
import psutil
from budget import OURS, Families, Reading, read
from drain import Processes

from recruiter.embedded import EmbeddedServer

SETTLED = 8.0
"""Seconds after the last job until every process is idle."""


def families(processes: Processes, mongod: int) -> Families:
    found: dict[str, list[psutil.Process]] = {"mongod": [psutil.Process(mongod)]}
    for name, member in processes.members.items():
        process = psutil.Process(member.pid)
        found[name] = [process]
        found[f"children of {name}"] = process.children(recursive=True)
    return {name: family for name, family in found.items() if family}


def with_exact_times(reading: Reading, members: Families) -> Reading:
    """The same, with the CPU time of the threads that are there, in nanoseconds as the scheduler counts them."""
    cpu = {name: sum(_seconds(process.pid) for process in family) for name, family in members.items()}
    return replace(reading, cpu=cpu)


def _seconds(pid: int) -> float:
    counts = (task.joinpath("schedstat").read_text() for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int(count.split()[0]) for count in counts) / 1e9


def measure(server: EmbeddedServer, seconds: float, *, in_one: bool) -> tuple[Reading, Reading]:
    target = server.uri.replace("/?", "/bench?")
    noop.recruiter.point_at(target)
    noop.recruiter.store.prepare()
    processes = Processes(target)
    try:
        if in_one:
            processes.start("all", "--processes", "2")
        else:
            processes.start("recruiter")
            processes.start("worker", "--processes", "2")
        noop.noop.enqueue(0, "warm").result(timeout=60)
        time.sleep(SETTLED)
        members = families(processes, server.pid or 0)
        first = with_exact_times(read(noop.recruiter.store.database, members), members)
        time.sleep(seconds)
        return first, with_exact_times(read(noop.recruiter.store.database, members), members)
    finally:
        processes.stop()
        noop.recruiter.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with EmbeddedServer() as server:
        first, last = measure(server, options.seconds, in_one=options.all)
    to_30 = 30.0 / (last.at - first.at)
    figures = {f"CPU s, {name}": (last.cpu[name] - first.cpu[name]) * to_30 for name in last.cpu}
    ours = [value for name, value in figures.items() if "mongod" not in name]
    figures["CPU s, all but mongod"] = sum(ours)
    ran = {name: count * to_30 for name, count in (last.commands - first.commands).items() if name not in OURS}
    figures["operations"] = sum(ran.values())
    figures |= {f"operations, {name}": count for name, count in sorted(ran.items(), key=lambda item: -item[1])}
    print(f"{'in 30 seconds':36} {'':>8}")
    for name, value in figures.items():
        print(f"{name:36} {value:8.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
