"""What a flow costs: the drain rate of many parts with one step after all of them, against the same jobs alone.

    python benchmarks/flows.py [--parts N] [--runs N]       the rates, one worker with two children
    python benchmarks/flows.py --kill [--parts N]           worker and leader are killed, again and again; nothing may
                                                            be lost or succeed twice

Starts a private MongoDB and real processes; prints a table. Compare ratios inside one run: machines are noisy.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from recruiter import FlowHandle, FlowState
from recruiter.embedded import EmbeddedServer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

import noop  # noqa: E402

from tests.applications import flows  # noqa: E402

QUICK = {"RECRUITER_CONSIDERED_DEAD_AFTER": "2s", "RECRUITER_LEASE_TIME": "1s", "RECRUITER_HEARTBEAT": "0.2s"}


class Fleet:
    """Our own processes, ended by pid whatever happens."""

    def __init__(self, target: str, bootstrap: str, **environment: str) -> None:
        self._environment = {**os.environ, "RECRUITER_TARGET": target, "RECRUITER_LOG_LEVEL": "error", **environment}
        self._bootstrap = bootstrap
        self.members: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "recruiter.cli.main", "start", name, "--bootstrap", self._bootstrap]
        more = ["--processes", "2"] if name == "worker" else []
        self.members[name] = subprocess.Popen([*command, *more], env=self._environment)

    def kill(self, name: str) -> None:
        self.members[name].send_signal(signal.SIGKILL)
        self.members[name].wait()
        self.start(name)

    def stop(self) -> None:
        for member in self.members.values():
            member.terminate()
        for member in self.members.values():
            member.wait(timeout=60)


def plain(parts: int) -> None:
    noop.noop.enqueue_many([(number, "x") for number in range(parts + 1)])


def fan_in(parts: int) -> None:
    flow = noop.recruiter.flow("fan-in")
    flow.add(noop.noop, 0, "last", after=flow.add_many(noop.noop, [(number, "x") for number in range(parts)]))
    flow.start()


def fan_out_and_in(parts: int) -> None:
    flow = noop.recruiter.flow("fan-out and fan-in")
    first = flow.add(noop.noop, 0, "first")
    some = flow.add_many(noop.noop, [(number, "x") for number in range(parts)], after=first)
    flow.add(noop.noop, 0, "last", after=some)
    flow.start()


def drained(target: str, make: Callable[[int], None], parts: int) -> float:
    """Jobs per second, from the first that has ended to the last."""
    store = noop.recruiter.store
    store.empty()
    make(parts)
    fleet = Fleet(target, str(HERE / "noop.py"))
    count = store.archived.collection.estimated_document_count
    jobs = store.scheduled.collection.estimated_document_count()
    try:
        fleet.start("worker")
        while not store.roster.read():
            time.sleep(0.01)
        fleet.start("recruiter")
        while (begun := count()) < 2:
            time.sleep(0.002)
        began = time.perf_counter()
        while store.scheduled.collection.find_one({}, {"_id": 1}) is not None:
            time.sleep(0.01)
        return (jobs - begun) / (time.perf_counter() - began)
    finally:
        fleet.stop()


def measure(parts: int, runs: int) -> None:
    with EmbeddedServer() as server:
        target = server.uri.replace("/?", "/flows?")
        noop.recruiter.point_at(target)
        noop.recruiter.store.prepare()
        kinds = (plain, fan_in, fan_out_and_in)
        rates: dict[str, list[float]] = {kind.__name__: [] for kind in kinds}
        for _ in range(runs):
            for kind in kinds:
                rates[kind.__name__].append(drained(target, kind, parts))
                print(f"  {kind.__name__:16} {rates[kind.__name__][-1]:8,.0f} /s", flush=True)
        noop.recruiter.close()
    base = statistics.median(rates["plain"])
    print(f"{parts:,} parts, median of {runs}")
    for name, each in rates.items():
        rate = statistics.median(each)
        print(f"  {name:16} {rate:8,.0f} /s   overhead {base / rate - 1:6.1%}")


def survive(parts: int) -> None:
    """A fan-out and fan-in; worker and leader are killed in turn at every 4 % of it."""
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        target = server.uri.replace("/?", "/flows?")
        flows.recruiter.point_at(target)
        store = flows.recruiter.store
        store.prepare()
        fleet = Fleet(target, flows.__file__, **QUICK)
        try:
            for name in ("recruiter", "worker"):
                fleet.start(name)
            handle = made(folder, parts)
            kills = killed(fleet, handle)
            report = handle.wait("5 minutes")
        finally:
            fleet.stop()
        ended = list(store.archived.collection.find({"flow.id": handle.id, "done": True, "flow.on": None}))
        twice = [step for step, count in Counter(job["flow"]["step"] for job in ended).items() if count > 1]
        (total,) = [job["result"] for job in ended if job["task"] == "total"]
        ran = Counter(flows.lines(folder))
        print(
            f"{report.state.value}: {len(ended):,} steps succeeded after {kills} kills; succeeded twice: {len(twice)}"
        )
        print(f"runs: {sum(ran.values()):,} of {len(ran):,} jobs; again: {sum(ran.values()) - len(ran):,}")
        assert (report.state, report.counts) == (FlowState.SUCCEEDED, {"succeeded": parts + 2})
        assert (twice, total) == ([], sum(range(parts)))
        assert set(ran) >= {"begin", "total", *(f"part {number}" for number in range(parts))}
        flows.recruiter.close()


def made(folder: str, parts: int) -> FlowHandle:
    flow = flows.recruiter.flow("fan-out")
    one = flow.add(flows.begin, folder)
    some = [flow.add(flows.part, folder, one.result, number, 0.02) for number in range(parts)]
    flow.add(flows.total, folder, [part.result for part in some])
    flow.on_success(flows.end, folder)
    return flow.start()


def killed(fleet: Fleet, handle: FlowHandle) -> int:
    kills = 0
    for hundredths in range(0, 100, 4):
        while handle.report().progress < hundredths / 100:
            time.sleep(0.02)
        fleet.kill("worker" if kills % 2 else "recruiter")
        kills += 1
    return kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kill", action="store_true")
    given = parser.parse_args()
    if given.kill:
        survive(given.parts or 1000)
    else:
        measure(given.parts or 10_000, given.runs)


if __name__ == "__main__":
    main()
