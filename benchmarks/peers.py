"""Compares Recruiter with queues on Redis, measured in the same run.

    python benchmarks/peers.py [--kind noop|cpu:1|cpu:10|cpu:100|io:20] [--jobs N] [--runs N] [--json FILE]
                               [--only NAME ...] [--parts enqueue drain latency]

The job does nothing, uses N milliseconds of CPU time (`cpu:N`), or waits N milliseconds (`io:N`). Every system has two
processes that run jobs; for jobs that wait, 50 threads or coroutines in each. In each run the systems take turns at
each measure, so that other load on the machine affects all of them; ratios come from one run. Recruiter has its default
guarantees: every write majority and journaled, every finished job kept. Starts a private MongoDB and a private Redis.
The settings of each peer, with the reasons, are in its file in `benchmarks/peers/`.

It is not the same work: a peer's job counts when its code has ended, ours when it is in the archive. Redis has its own
defaults: a snapshot now and then, and nothing on disk for what came after it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, Self, cast

import noop
import psutil
from drain import Processes, measure_latency

from recruiter import Task
from recruiter.embedded import EmbeddedServer
from recruiter.embedded.process import MongodProcess
from recruiter.embedded.server import listens

APPS = Path(__file__).parent / "peers"
sys.path.insert(0, str(APPS))

import kinds  # noqa: E402
from stamps import make_stamps  # noqa: E402

PEERS = ("taskiq", "dramatiq", "rq", "celery", "huey")
ONE, BULK, DRAIN, P50, P99 = "enqueue /s", "bulk enqueue /s", "drain /s", "start latency p50 ms", "p99 ms"
MEMORY = "PSS MB"
PARTS = ("enqueue", "drain", "latency")
MEASURES = (ONE, BULK, DRAIN, MEMORY, P50, P99)
JOBS = {"noop": 20_000, "cpu:1": 6_000, "cpu:10": 1_000, "cpu:100": 120, "io:20": 20_000}
"""Jobs to drain, so that each run takes a few seconds."""
SAMPLE = 2_000
LATENCIES = 100
PATIENCE = 60.0

Figures = dict[str, float]


class PeerFailed(Exception):
    """It did not run its jobs; the others are measured without it."""


class App(Protocol):
    """The functions of a module in `benchmarks/peers/`; `enqueue_many` only if the peer has such a call."""

    WORKERS: Sequence[Sequence[str]]

    def enqueue(self, numbers: Iterable[int], /) -> None: ...


class System(Protocol):
    name: str

    def measure_enqueue(self) -> Figures: ...

    def measure_drain(self, jobs: int) -> Figures: ...

    def measure_latency(self) -> Figures: ...


class Ours:
    """Recruiter, with tasks that are coroutines or functions."""

    def __init__(self, server: EmbeddedServer, name: str = "recruiter", task: Task[..., None] = noop.of_kind) -> None:
        self.name = name
        self._task = task
        self._target = server.uri.replace("/?", "/bench?")
        noop.recruiter.point_at(self._target)
        noop.recruiter.prepare()

    def measure_enqueue(self) -> Figures:
        figure = _rate(SAMPLE, self._one_by_one, range(SAMPLE))
        noop.recruiter.store.scheduled.collection.delete_many({})
        return {ONE: figure}

    def _one_by_one(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._task.enqueue(number, "x")

    def measure_drain(self, jobs: int) -> Figures:
        """From the first job in the archive to the last."""
        archived = noop.recruiter.store.archived.collection
        archived.delete_many({})
        bulk = _rate(jobs, lambda numbers: self._task.enqueue_many([(n, "x") for n in numbers]), range(jobs))
        slots = ["--concurrency", str(kinds.SLOTS_PER_PROCESS)] if kinds.waits() else []
        processes = Processes(self._target)
        try:
            processes.start("worker", "--processes", "2", *slots)
            while not noop.recruiter.store.roster.read():
                time.sleep(0.01)
            processes.start("recruiter")
            done, first, first_count, memory = 0, 0.0, 0, 0.0
            while done < jobs:
                time.sleep(0.05)  # each count takes CPU time of MongoDB, which the peers' stamps do not
                done = archived.estimated_document_count()
                if done and not first:
                    first, first_count = time.perf_counter(), done
                if done >= jobs // 2 and not memory:
                    memory = _pss([processes.members["worker"].pid])
            elapsed = time.perf_counter() - first
        finally:
            processes.stop()
        return {BULK: bulk, DRAIN: (jobs - first_count) / elapsed, MEMORY: memory}

    def measure_latency(self) -> Figures:
        figures = measure_latency(self._target, LATENCIES)
        noop.recruiter.point_at(self._target)
        return figures


class Peer:
    def __init__(self, name: str, app: App, redis: Redis, ended: memoryview[float]) -> None:
        self.name = name
        self._app = app
        self._redis = redis
        self._ended = ended
        self._fill: Callable[[Iterable[int]], None] = getattr(app, "enqueue_many", app.enqueue)

    def measure_enqueue(self) -> Figures:
        self._clear()
        return {ONE: _rate(SAMPLE, self._app.enqueue, range(SAMPLE))}

    def measure_drain(self, jobs: int) -> Figures:
        self._clear()
        filled = _rate(jobs, self._fill, range(jobs))
        with Workers(self._app.WORKERS, self._redis.folder / "workers.log") as workers:
            self._await(jobs // 2, workers)
            memory = _pss(workers.pids)
            for number in range(jobs):
                self._await(number, workers)
        times = sorted(self._ended[:jobs])
        drained = {DRAIN: (jobs - 1) / (times[-1] - times[0]), MEMORY: memory}
        return drained if self._fill == self._app.enqueue else {BULK: filled, **drained}

    def measure_latency(self) -> Figures:
        """The time from `enqueue` to the start of the job, on an idle system, as in `drain.py`."""
        self._clear()
        latencies: list[float] = []
        with Workers(self._app.WORKERS, self._redis.folder / "workers.log") as workers:
            self._app.enqueue([LATENCIES])
            self._await(LATENCIES, workers)
            time.sleep(1.0)  # the first of the two processes is up; let the other come up too
            for number in range(LATENCIES):
                time.sleep(0.1)
                called = time.time()
                self._app.enqueue([number])
                self._await(number, workers)
                latencies.append((self._ended[number] - called) * 1000)
        latencies.sort()
        return {P50: statistics.median(latencies), P99: latencies[int(len(latencies) * 0.99) - 1]}

    def _clear(self) -> None:
        self._redis.clear()
        self._ended[:] = memoryview(bytes(self._ended.nbytes)).cast("d")

    def _await(self, number: int, workers: Workers) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._ended[number]:
            if time.monotonic() > deadline or not workers.running:
                raise PeerFailed(f"{self.name} did not run job {number}:\n{workers.last_words}")
            time.sleep(0.005)


class Workers:
    """A peer's processes, ended by pid whatever happens."""

    def __init__(self, commands: Sequence[Sequence[str]], log: Path) -> None:
        self._commands = commands
        self._log = log
        self._members: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self._members]

    @property
    def running(self) -> bool:
        return all(member.poll() is None for member in self._members)

    @property
    def last_words(self) -> str:
        return "".join(self._log.read_text(errors="replace").splitlines(keepends=True)[-10:])

    def __enter__(self) -> Self:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(APPS), os.environ.get("PYTHONPATH", "")])}
        with self._log.open("wb") as output:
            for command in self._commands:
                self._members.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
        return self

    def __exit__(self, *_: object) -> None:
        members = [psutil.Process(member.pid) for member in self._members if member.poll() is None]
        children = [child for member in members for child in member.children(recursive=True)]
        for member in members:
            member.terminate()
        _, left = psutil.wait_procs([*members, *children], timeout=15)
        for process in left:
            process.kill()
        for each in self._members:
            each.wait()


class Redis:
    """A private redis-server, on 127.0.0.1 only, that reads no configuration file: its own defaults."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self._process = MongodProcess(command, folder / "redis.log")  # whatever it runs ends with us, even at kill -9
        while not listens(self.port):
            if self._process.wait(0.05):
                raise SystemExit(f"redis-server did not start:\n{(folder / 'redis.log').read_text()}")
        os.environ["PEERS_REDIS"] = f"redis://127.0.0.1:{self.port}/0"

    def clear(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            connection.recv(16)

    def stop(self) -> None:
        self._process.terminate()


def find_peers(names: Sequence[str], jobs: int, stack: ExitStack) -> list[System]:
    """The peers that can be measured here; prints the missing requirements of the others."""
    binary = shutil.which("redis-server")
    if binary is None:
        print("No peers: there is no redis-server in PATH; your distribution has one.", file=sys.stderr)
        return []
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recruiter-peers-")))
    redis = Redis(binary, folder)
    stack.callback(redis.stop)
    ended = make_stamps(folder / "stamps", max(jobs, SAMPLE, LATENCIES + 1))
    found: list[System] = []
    for name in names:
        try:
            app = cast(App, importlib.import_module(f"{name}_app"))
        except ModuleNotFoundError as error:
            print(f"Without {name}: no module {error.name}; pip install '.[peers]'", file=sys.stderr)
        else:
            found.append(Peer(name, app, redis, ended))
    return found


def measure_all(
    systems: list[System], jobs: int, runs: int, parts: Sequence[str] = PARTS
) -> dict[str, dict[str, list[float]]]:
    figures: dict[str, dict[str, list[float]]] = {system.name: {} for system in systems}
    known: dict[str, Callable[[System], Figures]] = {
        "enqueue": lambda system: system.measure_enqueue(),
        "drain": lambda system: system.measure_drain(jobs),
        "latency": lambda system: system.measure_latency(),
    }
    measures = [known[part] for part in parts]
    for run in range(runs):
        turn = run % len(systems)  # no system is always the first
        for measure in measures:
            for system in [*systems[turn:], *systems[:turn]]:
                if system.name not in figures:
                    continue
                try:
                    measured = measure(system)
                except PeerFailed as error:
                    print(f"Left out from here on: {error}", file=sys.stderr)
                    del figures[system.name]
                    continue
                for name, value in measured.items():
                    figures[system.name].setdefault(name, []).append(value)
                    print(f"run {run + 1}: {system.name:10} {name:22} {value:10,.1f}", file=sys.stderr)
    return figures


def print_tables(figures: dict[str, dict[str, list[float]]]) -> None:
    heading = "".join(f"{measure:>22}" for measure in MEASURES)
    print(f"\n{'median':20}{heading}")
    for name, measured in figures.items():
        cells = [f"{statistics.median(measured[each]):,.1f}" if each in measured else "–" for each in MEASURES]
        print(f"{name + ' ' + version(name.split()[0]):20}" + "".join(f"{cell:>22}" for cell in cells))
    print(f"\n{'recruiter : peer':20}{heading}")
    ours = figures["recruiter"]
    for name, measured in figures.items():
        if not name.startswith("recruiter"):
            cells = [
                _ratio(ours[each], measured[each]) if each in measured and each in ours else "–" for each in MEASURES
            ]
            print(f"{name:20}" + "".join(f"{cell:>22}" for cell in cells))
    print(
        "\nRates: above 1 Recruiter is faster. Latencies: below 1 it is. Ratios are medians of those inside each run."
        "\nRecruiter: majority and journal for every write, every finished job kept; a job counts when it is archived."
        "\nPeers: a job counts when its code has ended; none keeps finished jobs durably. Redis with its defaults: no"
        "\nappend-only file, a snapshot when 10,000 keys changed in 60 s (or fewer in longer). A crash loses the rest."
    )


def _ratio(ours: list[float], theirs: list[float]) -> str:
    return f"{statistics.median(our / their for our, their in zip(ours, theirs, strict=True)):,.2f}"


def _rate(jobs: int, enqueue: Callable[[Iterable[int]], None], numbers: Iterable[int]) -> float:
    started = time.perf_counter()
    enqueue(numbers)
    return jobs / (time.perf_counter() - started)


def _pss(pids: Iterable[int]) -> float:
    """Megabytes of these processes and their descendants; memory that several share counts once."""
    members = [psutil.Process(pid) for pid in pids]
    family = [*members, *(child for member in members for child in member.children(recursive=True))]
    return sum(member.memory_full_info().pss for member in family) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="noop", help="noop, cpu:N or io:N, in milliseconds")
    parser.add_argument("--jobs", type=int, help="by default enough for a few seconds")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PEERS, default=PEERS, metavar="NAME", help=", ".join(PEERS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or nothing that we started would be ended
    os.environ[kinds.KIND] = options.kind
    jobs = options.jobs or JOBS.get(options.kind, 1_000)
    with ExitStack() as stack:
        peers = find_peers(options.only, jobs, stack)
        server = stack.enter_context(EmbeddedServer())
        ours: list[System] = [Ours(server)]
        if kinds.waits():
            ours = [Ours(server, task=noop.of_kind_async), Ours(server, "recruiter (threads)")]
        stack.callback(noop.recruiter.close)
        print(f"Kind of job: {options.kind}; {jobs:,} jobs to drain")
        print(f"Load of the machine before: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
        figures = measure_all([*ours, *peers], jobs, options.runs, options.parts)
    print_tables(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
