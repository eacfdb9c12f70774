"""The cost of a flow: the drain rate of the steps of a flow, against as many jobs of the same task without one.

plain            N + 1 jobs, enqueued before the workers start
fan_in           N steps without dependencies, and a last step that waits for all of them
fan_out_and_in   a first step, N steps that wait for it, and a last step that waits for all of them

The rate is counted from the first ended jobs until all jobs have ended and no worker holds a job. It includes the
release of steps, but not `start()`.

    python benchmarks/flows.py [--parts N] [--runs N]       the rates, one worker with two children; no-op jobs
    python benchmarks/flows.py --work MS                    the same, with this CPU time per job
    python benchmarks/flows.py --kill [--parts N] [--seed N]    worker and leader are killed at every stage of a fan-out
                                                            and fan-in; nothing may be lost or succeed twice

Starts a private MongoDB and real processes; prints a table. Compare ratios inside one run: machines are noisy.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from recruiter import FlowHandle, FlowState
from recruiter.domain.names import BLOCKED_LANE
from recruiter.embedded import EmbeddedServer
from recruiter.store.database import Store

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

import noop  # noqa: E402
from drain import cpu  # noqa: E402

from tests.applications import flows  # noqa: E402

QUICK = {"RECRUITER_CONSIDERED_DEAD_AFTER": "2s", "RECRUITER_LEASE_TIME": "1s", "RECRUITER_HEARTBEAT": "0.2s"}


class Fleet:
    """Our own processes, ended by pid whatever happens."""

    def __init__(self, target: str, bootstrap: str, log: Path | None = None, **environment: str) -> None:
        """Its processes append their log to a file, if there is one."""
        self._log = log
        self._environment = {**os.environ, "RECRUITER_TARGET": target, "RECRUITER_LOG_LEVEL": "error", **environment}
        self._bootstrap = bootstrap
        self.members: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """The part of a name after a blank distinguishes processes of the same kind."""
        kind = name.partition(" ")[0]
        command = [sys.executable, "-m", "recruiter.cli.main", "start", kind, "--bootstrap", self._bootstrap]
        more = ["--processes", "2"] if kind == "worker" else []
        with open(self._log or os.devnull, "ab") as log:
            stderr = None if self._log is None else log
            self.members[name] = subprocess.Popen([*command, *more], env=self._environment, stderr=stderr)

    def kill(self, name: str) -> None:
        self.members[name].send_signal(signal.SIGKILL)
        self.members[name].wait()
        self.start(name)

    def stop(self) -> None:
        for member in self.members.values():
            member.terminate()
        for member in self.members.values():
            member.wait(timeout=60)


@dataclass(frozen=True)
class Parts:
    """The given number of jobs: no-ops, or jobs that use `work` milliseconds of CPU time."""

    count: int
    milliseconds: float

    @property
    def task(self) -> Any:
        return noop.work if self.milliseconds else noop.noop

    @property
    def argument(self) -> float | str:
        return self.milliseconds or "x"

    def calls(self, more: int = 0) -> list[tuple[int, float | str]]:
        return [(number, self.argument) for number in range(self.count + more)]


def plain(parts: Parts) -> None:
    parts.task.enqueue_many(parts.calls(1))


def fan_in(parts: Parts) -> None:
    flow = noop.recruiter.flow("fan-in")
    flow.add(parts.task, 0, parts.argument, after=flow.add_many(parts.task, parts.calls()))
    flow.start()


def fan_out_and_in(parts: Parts) -> None:
    flow = noop.recruiter.flow("fan-out and fan-in")
    first = flow.add(parts.task, 0, parts.argument)
    some = flow.add_many(parts.task, parts.calls(), after=first)
    flow.add(parts.task, 0, parts.argument, after=some)
    flow.start()


def drained(target: str, mongod: int, make: Callable[[Parts], None], parts: Parts) -> tuple[float, dict[str, float]]:
    """Jobs per second, from the first that has ended to the last; and the CPU time of each process in that time, in µs
    per job."""
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
        pids = {"mongod": mongod, **{name: member.pid for name, member in fleet.members.items()}}
        before = {name: cpu(pid) for name, pid in pids.items()}
        while count() < jobs:  # from the metadata: a search for the last one would walk past all that were deleted
            time.sleep(0.005)
        while store.roster.held():  # the count includes uncommitted changes
            time.sleep(0.002)
        took = time.perf_counter() - began
        used = {name: (cpu(pid) - before[name]) / (jobs - begun) * 1e6 for name, pid in pids.items()}
        return (jobs - begun) / took, {**used, "together": sum(used.values())}
    finally:
        fleet.stop()


def measure(parts: Parts, runs: int) -> None:
    kinds = (plain, fan_in, fan_out_and_in)
    rates: dict[str, list[float]] = {kind.__name__: [] for kind in kinds}
    costs: dict[str, list[dict[str, float]]] = {kind.__name__: [] for kind in kinds}
    with EmbeddedServer() as server:
        target = server.uri.replace("/?", "/flows?")
        noop.recruiter.point_at(target)
        noop.recruiter.store.prepare()
        for number in range(runs):
            first = number % len(kinds)
            for kind in (*kinds[first:], *kinds[:first]):  # a run may pay for the previous one
                rate, used = drained(target, server.pid or 0, kind, parts)
                rates[kind.__name__].append(rate)
                costs[kind.__name__].append(used)
                print(f"  {kind.__name__:16} {rate:8,.0f} /s   {used['together']:5.0f} µs of CPU per job", flush=True)
        noop.recruiter.close()
    print(f"{parts.count:,} parts of {parts.milliseconds:g} ms, {runs} rounds")
    print("against plain jobs of the same round: the median of all rounds, and the range")
    for name in rates:
        rate = statistics.median(rates[name])
        medians = {who: statistics.median(used[who] for used in costs[name]) for who in costs[name][0]}
        told = ", ".join(f"{who} {used:.0f}" for who, used in medians.items())
        lower = [1 - rate / plain for plain, rate in zip(rates["plain"], rates[name], strict=True)]
        longer = [plain / rate - 1 for plain, rate in zip(rates["plain"], rates[name], strict=True)]
        both = zip(costs[name], costs["plain"], strict=True)
        of_cpu = [used["together"] / least["together"] - 1 for used, least in both]
        print(f"  {name:16} {rate:8,.0f} /s, lower by {_spread(lower)}; takes {_spread(longer)} longer", end="")
        print(f", and {_spread(of_cpu)} more CPU time")
        print(f"  {'':16} µs of CPU per job: {told}")


def _spread(each: list[float]) -> str:
    return f"{statistics.median(each):.0%} ({min(each):.0%} to {max(each):.0%})"


def survive(parts: int, seed: int) -> None:
    """A fan-out and fan-in; worker and leader are killed at every stage of it."""
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        target = server.uri.replace("/?", "/flows?")
        flows.recruiter.point_at(target)
        store = flows.recruiter.store
        store.prepare()
        fleet = Fleet(target, flows.__file__, None, **QUICK)
        began = time.perf_counter()
        try:
            for name in ("recruiter", "worker"):
                fleet.start(name)
            handle = made(folder, parts)
            kills = killed(fleet, handle, store, parts, random.Random(seed))
            report = handle.wait("3 minutes")
            while store.scheduled.collection.find_one({}, {"_id": 1}) is not None:  # the step that waits for its end
                time.sleep(0.05)
        finally:
            fleet.stop()
        took = time.perf_counter() - began
        ended = list(store.archived.collection.find({"flow.id": handle.id}))
        flows.recruiter.close()
        ran = Counter(flows.lines(folder))
    succeeded = Counter(job["flow"]["step"] for job in ended if job["done"])
    (total,) = [job["result"] for job in ended if job["task"] == "total"]
    told = ", ".join(f"{count} × {name}" for name, count in sorted(kills.items()))
    print(f"seed {seed}: {report.state.value} after {sum(kills.values())} kills ({told}) in {took:.0f} s")
    print(f"  {len(succeeded):,} steps succeeded, {sum(succeeded.values()) - len(succeeded)} of them twice")
    print(f"  {sum(ran.values()):,} runs of {len(ran):,} steps: {sum(ran.values()) - len(ran):,} ran again")
    assert (report.state, report.counts) == (FlowState.SUCCEEDED, {"succeeded": parts + 2})
    assert len(ended) == len(succeeded) == sum(succeeded.values()) == parts + 3
    assert total == sum(range(parts))
    assert set(ran) == {"begin", "total", "end", *(f"part {number}" for number in range(parts))}


def made(folder: str, parts: int) -> FlowHandle:
    flow = flows.recruiter.flow("fan-out")
    one = flow.add(flows.begin, folder)
    jobs = [flows.part.job(folder, one.result if number % 3 else 1, number, 0.02) for number in range(parts)]
    # some with a delay, some with a result
    late = [job.schedule_in("10ms") if number % 3 == 2 else job for number, job in enumerate(jobs)]
    some = [flow.add(job, after=one) for job in late]
    flow.add(flows.total, folder, [part.result for part in some])
    flow.on_success(flows.end, folder)
    return flow.start()


def killed(fleet: Fleet, handle: FlowHandle, store: Store, parts: int, chance: random.Random) -> Counter[str]:
    """Kills both at each stage, in any order, and replaces them; returns how often which."""
    waiting, ended = store.scheduled.collection, store.archived.collection
    steps = {"flow.id": handle.id}
    blocked = {**steps, "lane": BLOCKED_LANE}

    def so_far(hundredths: int) -> bool:
        return ended.count_documents(steps) >= (parts + 2) * hundredths / 100

    stages: list[Callable[[], bool]] = [
        lambda: True,  # the first step waits
        lambda: ended.find_one(steps, {"_id": 1}) is not None,  # it has ended; the release of the parts begins
        lambda: waiting.count_documents(blocked) < parts,  # some of them have been, or have ended
        *(partial(so_far, hundredths) for hundredths in range(4, 100, 4)),
        lambda: ended.count_documents(steps) > parts,  # all parts have ended; the release of the last step begins
    ]
    kills: Counter[str] = Counter()
    for reached in stages:
        while not reached():
            time.sleep(0.002)
        for name in chance.sample(("worker", "recruiter"), 2):
            time.sleep(chance.choice((0.0, 0.01, 0.1, 0.5)) * chance.random())
            fleet.kill(name)
            kills[name] += 1
    return kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=float, default=0.0, metavar="MS")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.kill:
        survive(given.parts or 1000, given.seed)
    else:
        measure(Parts(given.parts or 10_000, given.work), given.runs)


if __name__ == "__main__":
    main()
