"""How soon the jobs of a killed worker start again: with 1, 2 and 5 workers, idle and busy.

    python benchmarks/own_jobs.py                            # ten of each, about eight minutes
    python benchmarks/own_jobs.py --workers 2 --times 3

Two jobs run on a worker, which is killed. Another worker is there by then: the start of a process is not measured.
The figure is the time from the kill until its jobs have started again; the goal is the dead-after time and two seconds.
*Busy* means that every slot has work and a backlog of other jobs waits.
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
from contextlib import closing
from pathlib import Path

import psutil

from recruiter import Recruiter
from recruiter.embedded.server import EmbeddedServer
from recruiter.store.connection import Target
from recruiter.store.database import Store

DEAD_AFTER_SECONDS = 4.0
BACKLOG = 400
STARTS = "OWN_JOBS_STARTS"

recruiter = Recruiter()


@recruiter.task
def interrupted(name: str) -> None:
    """Notes its start and its worker; the first time it runs until it is killed."""
    path = Path(os.environ[STARTS]) / name
    worker = psutil.Process().parents()[2].pid  # above the guard and the fork server
    first = not path.exists()
    with path.open("a") as starts:
        starts.write(f"{time.monotonic()} {worker}\n")
    if first:
        time.sleep(60)


@recruiter.task
def work() -> None:
    time.sleep(0.1)


class Fleet:
    def __init__(self, folder: Path, target: str, workers: int) -> None:
        self.folder = folder
        self.environment = {**os.environ, "RECRUITER_TARGET": target, STARTS: str(folder)}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.start("recruiter")
        for _ in range(workers):
            self.start_worker()

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "recruiter.cli.main", "start", *arguments, "--bootstrap", __file__]
        log = open(self.folder / f"{arguments[0]}.log", "ab")  # noqa: SIM115
        process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        self.processes[process.pid] = process

    def start_worker(self) -> None:
        """Returns when it has joined the roster."""
        joined = self.joined()
        self.start("worker", "--processes", "2", "--considered-dead-after", f"{DEAD_AFTER_SECONDS:g}s")
        while self.joined() == joined:
            time.sleep(0.1)

    def joined(self) -> int:
        log = self.folder / "worker.log"
        return log.read_text().count("joined the roster") if log.exists() else 0

    def starts(self, name: str) -> list[tuple[float, int]]:
        path = self.folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(at), int(worker)) for at, worker in (line.split() for line in lines)]

    def kill(self, worker: int) -> float:
        self.processes[worker].send_signal(signal.SIGKILL)
        self.processes.pop(worker).wait()
        return time.monotonic()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def once(fleet: Fleet, number: int, *, busy: bool) -> float:
    """Seconds until the jobs of a killed worker have started again."""
    if busy:
        work.enqueue_many([() for _ in range(BACKLOG)])
    names = [f"{'busy' if busy else 'idle'}-{number}-{job}" for job in range(2)]
    for name in names:
        interrupted.job(name).with_priority(1).enqueue()
    while not all(fleet.starts(name) for name in names):
        time.sleep(0.05)
    fleet.start_worker()
    time.sleep(1.5)  # a heartbeat
    ((_, worker),) = fleet.starts(names[0])
    own = [name for name in names if fleet.starts(name)[0][1] == worker]
    if busy:
        work.enqueue_many([() for _ in range(BACKLOG)])
    killed_at = fleet.kill(worker)
    while not all(len(fleet.starts(name)) > 1 for name in own):
        time.sleep(0.02)
    took = max(fleet.starts(name)[1][0] for name in own) - killed_at
    for name in set(names) - set(own):  # it runs elsewhere: its worker is killed too, and not measured
        fleet.start_worker()
        fleet.kill(fleet.starts(name)[0][1])
        while len(fleet.starts(name)) < 2:
            time.sleep(0.05)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--times", type=int, default=10)
    options = parser.parse_args()
    print(f"dead-after {DEAD_AFTER_SECONDS:g} s\n\n| workers | | median | worst |\n|---|---|---|---|", flush=True)
    for workers in options.workers or (1, 2, 5):
        with tempfile.TemporaryDirectory() as folder, EmbeddedServer() as server:
            target = server.uri.replace("/?", "/own_jobs?")
            recruiter.point_at(target)
            with closing(Store(Target.parse(target))) as store:
                store.prepare()
            fleet = Fleet(Path(folder), target, workers)
            try:
                for busy in (False, True):
                    took = [once(fleet, number, busy=busy) for number in range(options.times)]
                    figures = f"{statistics.median(took):.2f} s | {max(took):.2f} s"
                    print(f"| {workers} | {'busy' if busy else 'idle'} | {figures} |", flush=True)
            finally:
                fleet.close()
                recruiter.close()


if __name__ == "__main__":
    main()
