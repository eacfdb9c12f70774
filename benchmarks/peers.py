"""How Recruiter compares with queues on Redis, measured beside it in the same run.

    python benchmarks/peers.py [--jobs N] [--runs N] [--json FILE] [--only NAME ...] [--parts enqueue drain latency]

The job does nothing and has two small arguments; every system has two processes that run jobs. In each run the systems
take turns at each measure, so that what else the machine does hits all alike; ratios are those of one run. Recruiter
has its default guarantees: every write majority and journaled, every finished job kept. Starts a private MongoDB and a
private Redis. What each peer is set to, and why that is fair, is in its file in `benchmarks/peers/`.

It is not the same work: a peer's job counts when it begins, ours when it is in the archive. Redis has its own defaults:
a snapshot now and then, and nothing on disk for what came after it.
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
from drain import measure_drain, measure_latency

from recruiter.embedded import EmbeddedServer
from recruiter.embedded.process import MongodProcess
from recruiter.embedded.server import listens

APPS = Path(__file__).parent / "peers"
sys.path.insert(0, str(APPS))

from stamps import make_stamps  # noqa: E402

PEERS = ("taskiq", "dramatiq", "rq", "celery", "huey")
ONE, BULK, DRAIN, P50, P99 = "enqueue /s", "bulk enqueue /s", "drain /s", "start latency p50 ms", "p99 ms"
PARTS = ("enqueue", "drain", "latency")
MEASURES = (ONE, BULK, DRAIN, P50, P99)
SAMPLE = 2_000
LATENCIES = 100
PATIENCE = 60.0

Figures = dict[str, float]


class PeerFailed(Exception):
    """It did not run its jobs; the others are measured without it."""


class App(Protocol):
    """What a file in `benchmarks/peers/` has; `enqueue_many` only if the peer has a call for it."""

    WORKERS: Sequence[Sequence[str]]

    def enqueue(self, numbers: Iterable[int], /) -> None: ...


class System(Protocol):
    name: str

    def measure_enqueue(self) -> Figures: ...

    def measure_drain(self, jobs: int) -> Figures: ...

    def measure_latency(self) -> Figures: ...


class Ours:
    name = "recruiter"

    def __init__(self, server: EmbeddedServer) -> None:
        self._target = server.uri.replace("/?", "/bench?")
        self._mongod = server.pid or 0
        noop.recruiter.point_at(self._target)
        noop.recruiter.store.prepare()

    def measure_enqueue(self) -> Figures:
        figure = _rate(SAMPLE, _one_by_one, range(SAMPLE))
        noop.recruiter.store.scheduled.collection.delete_many({})
        return {ONE: figure}

    def measure_drain(self, jobs: int) -> Figures:
        figures = measure_drain(noop.recruiter, self._target, jobs, 2, self._mongod)
        return {BULK: figures[BULK], DRAIN: figures[DRAIN]}

    def measure_latency(self) -> Figures:
        figures = measure_latency(self._target, LATENCIES)
        noop.recruiter.point_at(self._target)
        return figures


class Peer:
    def __init__(self, name: str, app: App, redis: Redis, began: memoryview[float]) -> None:
        self.name = name
        self._app = app
        self._redis = redis
        self._began = began
        self._fill: Callable[[Iterable[int]], None] = getattr(app, "enqueue_many", app.enqueue)

    def measure_enqueue(self) -> Figures:
        self._clear()
        return {ONE: _rate(SAMPLE, self._app.enqueue, range(SAMPLE))}

    def measure_drain(self, jobs: int) -> Figures:
        self._clear()
        filled = _rate(jobs, self._fill, range(jobs))
        with Workers(self._app.WORKERS, self._redis.folder / "workers.log") as workers:
            for number in range(jobs):
                self._await(number, workers)
        times = sorted(self._began[:jobs])
        drained = {DRAIN: (jobs - 1) / (times[-1] - times[0])}
        return drained if self._fill == self._app.enqueue else {BULK: filled, **drained}

    def measure_latency(self) -> Figures:
        """From the moment before a job is enqueued to its start, on an idle system, as `drain.py` does."""
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
                latencies.append((self._began[number] - called) * 1000)
        latencies.sort()
        return {P50: statistics.median(latencies), P99: latencies[int(len(latencies) * 0.99) - 1]}

    def _clear(self) -> None:
        self._redis.clear()
        self._began[:] = memoryview(bytes(self._began.nbytes)).cast("d")

    def _await(self, number: int, workers: Workers) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._began[number]:
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
    """Those that can be measured here; of the others it is said what they lack."""
    binary = shutil.which("redis-server")
    if binary is None:
        print("No peers: there is no redis-server in PATH; your distribution has one.", file=sys.stderr)
        return []
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recruiter-peers-")))
    redis = Redis(binary, folder)
    stack.callback(redis.stop)
    began = make_stamps(folder / "stamps", max(jobs, SAMPLE, LATENCIES + 1))
    found: list[System] = []
    for name in names:
        try:
            app = cast(App, importlib.import_module(f"{name}_app"))
        except ModuleNotFoundError as error:
            print(f"Without {name}: no module {error.name}; pip install '.[peers]'", file=sys.stderr)
        else:
            found.append(Peer(name, app, redis, began))
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
        turn = run % len(systems)  # nobody is always the first
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
        print(f"{name + ' ' + version(name):20}" + "".join(f"{cell:>22}" for cell in cells))
    print(f"\n{'recruiter : peer':20}{heading}")
    ours = figures["recruiter"]
    for name, measured in figures.items():
        if name != "recruiter":
            cells = [
                _ratio(ours[each], measured[each]) if each in measured and each in ours else "–" for each in MEASURES
            ]
            print(f"{name:20}" + "".join(f"{cell:>22}" for cell in cells))
    print(
        "\nRates: above 1 Recruiter is faster. Latencies: below 1 it is. Ratios are medians of those inside each run."
        "\nRecruiter: majority and journal for every write, every finished job kept; a job counts when it is archived."
        "\nPeers: a job counts when it begins; none keeps finished jobs durably. Redis as it comes: no append-only"
        "\nfile, a snapshot when 10,000 keys changed in 60 s (or fewer in longer); a crash loses what came since."
    )


def _ratio(ours: list[float], theirs: list[float]) -> str:
    return f"{statistics.median(our / their for our, their in zip(ours, theirs, strict=True)):,.2f}"


def _rate(jobs: int, enqueue: Callable[[Iterable[int]], None], numbers: Iterable[int]) -> float:
    started = time.perf_counter()
    enqueue(numbers)
    return jobs / (time.perf_counter() - started)


def _one_by_one(numbers: Iterable[int]) -> None:
    for number in numbers:
        noop.noop.enqueue(number, "x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=PEERS, default=PEERS, metavar="NAME", help=", ".join(PEERS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or nothing that we started would be ended
    with ExitStack() as stack:
        peers = find_peers(options.only, options.jobs, stack)
        ours = Ours(stack.enter_context(EmbeddedServer()))
        stack.callback(noop.recruiter.close)
        print(f"Load of the machine before: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
        figures = measure_all([ours, *peers], options.jobs, options.runs, options.parts)
    print_tables(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
