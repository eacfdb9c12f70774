"""How many jobs run again after their worker was killed: those that ended since its last settlement.

    python benchmarks/repeats.py [--kind cpu:1|cpu:10|io:20] [--kills N] [--settle-within 200ms]

A worker with two children drains jobs. It is killed (`kill -9`) in full work, and another one takes its place. Each job
counts its ends in a file, so an end that was not settled shows. The bound is the rate times `--settle-within`, and the
outcomes of a settlement that was on its way.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import tempfile
import time
from pathlib import Path

from drain import Processes

import kinds  # isort: skip; `drain` puts its folder on the path

from recruiter import Recruiter
from recruiter.embedded import EmbeddedServer

COUNTS = "REPEATS_COUNTS"
JOBS = 30_000
WORK_SECONDS = 3.0
DEAD_AFTER = "4s"

recruiter = Recruiter()


@recruiter.task
def counted(number: int) -> None:
    kinds.run()
    _counts()[number] += 1


@recruiter.task
async def counted_async(number: int) -> None:
    await kinds.arun()
    _counts()[number] += 1


def _counts(known: dict[str, mmap.mmap] = {}) -> mmap.mmap:  # noqa: B006 – one for the process
    path = os.environ[COUNTS]
    if path not in known:
        with open(path, "r+b") as file:
            known[path] = mmap.mmap(file.fileno(), 0)
    return known[path]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="cpu:10")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--settle-within", default="200ms")
    options = parser.parse_args()
    os.environ[kinds.KIND] = options.kind
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer() as server:
        path = Path(folder) / "counts"
        path.write_bytes(bytes(JOBS))
        os.environ[COUNTS] = str(path)
        target = server.uri.replace("/?", "/repeats?")
        recruiter.point_at(target)
        recruiter.prepare()
        task = counted_async if kinds.waits() else counted
        task.enqueue_many([(number,) for number in range(JOBS)])
        processes = Processes(target, application=__file__)
        slots = ["--concurrency", str(kinds.SLOTS_PER_PROCESS)] if kinds.waits() else []
        worker = ["--processes", "2", "--considered-dead-after", DEAD_AFTER, "--settle-within", options.settle_within]
        try:
            processes.start("recruiter")
            repeats: list[int] = []
            rates: list[float] = []
            for _ in range(options.kills):
                ended_before = _ended()
                processes.start("worker", *worker, *slots)
                _wait_for_work()
                began, began_at = len(_ended()), time.perf_counter()
                time.sleep(WORK_SECONDS)
                processes.members["worker"].kill()
                processes.members["worker"].wait()
                time.sleep(0.1)  # its children have ended too
                ended = _ended()
                rates.append((len(ended) - began) / (time.perf_counter() - began_at))
                settled = {job["args"]["number"] for job in recruiter.store.archived.collection.find({}, {"args": 1})}
                # Jobs of an earlier worker may not have run again yet: they do not count twice.
                repeats.append(len(ended - ended_before - settled))
        finally:
            processes.stop()
            recruiter.close()
    print(f"{options.kind}, settle within {options.settle_within}, {options.kills} kills")
    print(f"jobs per second: {statistics.median(rates):,.0f}")
    print(f"jobs that run again: median {statistics.median(repeats):g}, most {max(repeats)}: {repeats}")


def _ended() -> set[int]:
    return {number for number, count in enumerate(_counts()[:]) if count}


def _wait_for_work() -> None:
    before = sum(_counts()[:])
    while sum(_counts()[:]) < before + 100:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
