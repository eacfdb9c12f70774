"""Measures how soon work resumes after faults: default settings, two recruiters, two workers, three MongoDB nodes.

    python benchmarks/recovery.py                            # ten of each fault, about ten minutes
    python benchmarks/recovery.py --only frozen --times 3

A producer enqueues a job every 20 ms, and each job notes when it starts. *Stalled* is the longest time after the fault
without a start of any job. If the primary is lost, *after the election* is the part of it after the election of the new
primary, and *after a majority* the part after a plain majority write succeeded there: both are MongoDB's own
time. (When a primary freezes, the other secondary may listen to it for ten more seconds, and no write has a majority.)
*Longest enqueue* is the longest call of the producer.

The worker that dies in mid-settlement is a process that joins the roster, is given jobs, opens the transaction of a
settlement and kills itself in it.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from pymongo import MongoClient, WriteConcern
from pymongo.errors import PyMongoError

from recruiter import Recruiter
from recruiter.embedded.server import EmbeddedServer
from recruiter.errors import RecruiterError
from recruiter.store.connection import Target
from recruiter.store.database import Store

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.replica_set import EmbeddedReplicaSet

EVERY = 0.02
WATCHED = 6.0
"""Seconds after the fault, or after the election, in which a gap counts."""
STARTS = "RECOVERY_STARTS"

recruiter = Recruiter()


@recruiter.task
def tick() -> None:
    """Notes when it starts; the monotonic clock of Linux is the same in all processes."""
    with open(os.environ[STARTS], "a") as starts:
        starts.write(f"{time.monotonic()}\n")


@recruiter.task
def only_there() -> None:
    """For the worker that dies: the leader must write on its roster document."""


DIES_IN_MID_SETTLEMENT = """
import os, sys
from recruiter.store.database import Store
from recruiter.store.connection import Target

store = Store(Target.parse(sys.argv[1]))
moment = store.clock.now()
facts = {"host": "dies", "pid": os.getpid(), "groups": None, "tasks": ["only_there"], "slots": 1, "prefetch": 0,
         "joined_at": moment, "seen_at": moment, "session": store.transactions.session_id}
me = sys.argv[2]
store.roster.join(me, facts)
store.roster.become_ready(me, store.leases.term())
def write(session):
    store.roster.collection.update_one({"_id": me}, {"$inc": {"beats": 1}}, session=session)
    os.kill(os.getpid(), 9)
store.transactions._transaction(write)
"""


class Fleet:
    """Stops every process that it has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes = EmbeddedReplicaSet(3)
        self.target = self.nodes.start().replace("/?", "/recovery?")
        self.environment = {**os.environ, "RECRUITER_TARGET": self.target, STARTS: str(folder / "starts")}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.recruiters: dict[int, subprocess.Popen[bytes]] = {}
        recruiter.point_at(self.target)
        self.store = Store(Target.parse(self.target))
        self.store.check()
        self.store.prepare()
        for _ in range(2):
            self.start_recruiter()
            self.start("worker", "--processes", "2")
        self.producer = Producer()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "recruiter.cli.main", "start", *arguments, "--bootstrap", __file__]
        log = open(self.folder / f"{arguments[0]}-{len(self.processes)}.log", "wb")  # noqa: SIM115
        self.processes.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))
        return self.processes[-1]

    def start_recruiter(self) -> None:
        process = self.start("recruiter")
        self.recruiters[process.pid] = process

    def starts(self) -> list[float]:
        with suppress(FileNotFoundError):
            return sorted(float(line) for line in (self.folder / "starts").read_text().split("\n")[:-1])
        return []

    def healthy(self) -> bool:
        """Whether all nodes have all data, and both recruiters are there."""
        with closing(direct(self.nodes.primary())) as client:
            members = client.admin.command("replSetGetStatus")["members"]
        behind = max(each["optimeDate"] for each in members) - min(each["optimeDate"] for each in members)
        there = {each.pid for each in self.store.processes.entries()}
        serving = all(is_serving(node) for node in self.nodes.nodes)
        return serving and behind.total_seconds() < 2 and there >= {*self.recruiters}

    def settle_down(self) -> None:
        """Until all is well, and jobs have been started all the time for two seconds."""
        while not self.healthy():
            time.sleep(0.1)
        while True:
            since = time.monotonic() - 2.0
            starts = [since, *(start for start in self.starts() if start > since), time.monotonic()]
            if max(later - earlier for earlier, later in pairwise(starts)) < 0.5:
                return
            time.sleep(0.1)

    def stop(self) -> None:
        self.producer.stop()
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
            if process.poll() is None:
                process.kill()
        self.store.close()
        recruiter.close()
        self.nodes.stop()


class Producer:
    def __init__(self) -> None:
        self.calls: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            began = time.monotonic()
            try:
                tick.enqueue()
            except RecruiterError as error:
                print(f"enqueue failed: {error}", file=sys.stderr)
            self.calls.append((began, time.monotonic()))

    def longest_since(self, moment: float) -> float:
        return max((ended - max(began, moment) for began, ended in self.calls if ended > moment), default=0.0)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def direct(node: EmbeddedServer) -> MongoClient[dict[str, Any]]:
    """A client for this node alone, that does not wait for long."""
    options: dict[str, Any] = {"directConnection": True, "serverSelectionTimeoutMS": 500, "socketTimeoutMS": 8000}
    return MongoClient(f"mongodb://{node.address}", **options)


def is_serving(node: EmbeddedServer) -> bool:
    """Asked of the node itself. A node that was frozen may roll back its last writes while the others still call it a
    secondary; a fault in that time would leave no majority."""
    with closing(direct(node)) as client, suppress(PyMongoError):
        hello = client.admin.command("hello")
        return bool(hello["isWritablePrimary"] or hello["secondary"])
    return False


def next_primary(fleet: Fleet, but: EmbeddedServer) -> tuple[float, float]:
    """The times when another node becomes primary, and when it accepts majority writes."""
    others = [node for node in fleet.nodes.nodes if node is not but]
    clients = [direct(node) for node in others]
    deadline = time.monotonic() + 60
    try:
        elected_at: float | None = None
        while time.monotonic() < deadline:
            for client in clients:
                with suppress(PyMongoError):
                    if client.admin.command("hello")["isWritablePrimary"]:
                        elected_at = elected_at or time.monotonic()
                        majority = WriteConcern("majority", wtimeout=200)
                        client["recovery"].get_collection("probe", write_concern=majority).insert_one({})
                        return elected_at, time.monotonic()
            time.sleep(0.01)
        raise TimeoutError("no other node became the primary")
    finally:
        for client in clients:
            client.close()


Figures = tuple[float, list[float], float]
"""Seconds without any start, how many of them after the election and after a majority, and the longest enqueue."""

Fault = Callable[[Fleet], tuple[float, tuple[float, float] | None, Callable[[], None]]]
"""Makes a fault; returns when it was made, when there was a new primary if that is the matter, and how to mend it."""


def worker_in_mid_settlement(fleet: Fleet) -> tuple[float, tuple[float, float] | None, Callable[[], None]]:
    name = f"dies:{time.monotonic()}"
    subprocess.run([sys.executable, "-c", DIES_IN_MID_SETTLEMENT, fleet.target, name], check=False)
    died_at = time.monotonic()
    job = only_there.enqueue()

    def mend() -> None:
        fleet.store.roster.leave(name)
        recruiter.cancel(job.id)

    return died_at, None, mend


def leader(fleet: Fleet) -> tuple[float, tuple[float, float] | None, Callable[[], None]]:
    lease = fleet.store.leases.read()
    assert lease is not None
    os.kill(lease.pid, signal.SIGKILL)
    died_at = time.monotonic()
    fleet.recruiters.pop(lease.pid).wait()
    return died_at, None, fleet.start_recruiter


def frozen_leader(fleet: Fleet) -> tuple[float, tuple[float, float] | None, Callable[[], None]]:
    lease = fleet.store.leases.read()
    assert lease is not None
    os.kill(lease.pid, signal.SIGSTOP)
    return time.monotonic(), None, lambda: os.kill(lease.pid, signal.SIGCONT)


def stepdown(fleet: Fleet) -> tuple[float, tuple[float, float] | None, Callable[[], None]]:
    primary = fleet.nodes.primary()
    with closing(direct(primary)) as client:
        while True:
            asked_at = time.monotonic()
            with suppress(PyMongoError):  # no other node has caught up in time
                client.admin.command({"replSetStepDown": 20, "secondaryCatchUpPeriodSecs": 5})
                return asked_at, next_primary(fleet, primary), lambda: None


def killed_primary(fleet: Fleet) -> tuple[float, tuple[float, float] | None, Callable[[], None]]:
    primary = fleet.nodes.primary()
    killed_at = time.monotonic()
    fleet.nodes.kill(primary)
    return killed_at, next_primary(fleet, primary), lambda: fleet.nodes.restart(primary)


def frozen_primary(fleet: Fleet) -> tuple[float, tuple[float, float] | None, Callable[[], None]]:
    primary = fleet.nodes.primary()
    assert primary.pid is not None
    pid = primary.pid
    os.kill(pid, signal.SIGSTOP)
    return time.monotonic(), next_primary(fleet, primary), lambda: os.kill(pid, signal.SIGCONT)


FAULTS: dict[str, tuple[str, Fault, str]] = {
    "settling": ("worker dies in mid-settlement", worker_in_mid_settlement, "2 s"),
    "leader": ("leader killed", leader, "2 s"),
    "leader-frozen": ("leader frozen", frozen_leader, "2 s"),
    "stepdown": ("primary steps down", stepdown, "election + 2 s"),
    "killed": ("primary killed", killed_primary, "election + 2 s"),
    "frozen": ("primary frozen", frozen_primary, "election + 3 s"),
}


def measure(fleet: Fleet, fault: Fault) -> Figures:
    fleet.settle_down()
    made_at, primary, mend = fault(fleet)
    back_at = primary[1] if primary is not None else made_at
    while time.monotonic() < back_at + WATCHED or not any(start > back_at for start in fleet.starts()):
        time.sleep(0.1)
    starts = [made_at, *(start for start in fleet.starts() if start > made_at)]
    stalled, ended_at = max((later - earlier, later) for earlier, later in pairwise(starts))
    longest = fleet.producer.longest_since(made_at)
    mend()
    after = [max(0.0, ended_at - moment) for moment in primary or ()]
    return stalled, after, longest


def row(name: str, goal: str, figures: list[Figures]) -> str:
    def told(values: list[float]) -> str:
        return f"{statistics.median(values):.2f} / {max(values):.2f} s" if values else "–"

    elected, majority = ([figure[1][place] for figure in figures if figure[1]] for place in (0, 1))
    stalled, enqueue = told([figure[0] for figure in figures]), told([figure[2] for figure in figures])
    return f"| {name} | {stalled} | {told(elected)} | {told(majority)} | {enqueue} | {goal} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--only", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--keep-logs", help="a folder for the logs of the processes")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that started processes are stopped
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(given.keep_logs or folder))
        try:
            print(
                "| fault | stalled: median / worst | after the election | after a majority | longest enqueue | goal |"
            )
            print("|---|---|---|---|---|---|")
            for each in given.only:
                name, fault, goal = FAULTS[each]
                print(row(name, goal, [measure(fleet, fault) for _ in range(given.times)]), flush=True)
        finally:
            fleet.stop()


if __name__ == "__main__":
    main()
