"""Effects exactly once, under faults: jobs add one to counters while processes are killed and frozen and the primary
steps down. With `current_job.transaction()` the sum must be exact; the same jobs without it show why it matters.

    python benchmarks/exactly_once.py [--jobs 2000] [--seed 1]

MongoDB has three nodes. Two recruiters and two workers, with two children each, run both kinds of jobs side by side.
Every second one thing breaks: a child is killed, a worker is killed and replaced, a worker freezes until it is retired,
the leader is killed and replaced, the primary steps down. Exits with 1 if a sum that must be exact is not.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from recruiter import Recruiter, RetryForever, current_job
from recruiter.errors import StoreError
from recruiter.store.connection import Target
from recruiter.store.database import Store

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.replica_set import EmbeddedReplicaSet

COUNTERS = 20
DEAD_AFTER = 3.0
WORK = 0.02
"""Seconds that a job takes at most after it has counted."""

recruiter = Recruiter()


@recruiter.task(retry=RetryForever("1s"), max_crashes=100)
def in_transaction(counter: int) -> None:
    """Increments the counter in its own transaction."""
    with current_job.transaction() as session:
        counters = session.client.get_database(recruiter.target.database).counters
        add_one(counters, f"in transaction {counter}", session=session)
        time.sleep(WORK * random.random())


@recruiter.task(retry=RetryForever("1s"), max_crashes=100)
def without(counter: int) -> None:
    """Increments the counter, and may die before the outcome is stored."""
    add_one(recruiter.store.database["counters"], f"without {counter}")
    time.sleep(WORK * random.random())


def add_one(counters: Any, id: str, **session: Any) -> None:
    counters.update_one({"_id": id}, {"$inc": {"n": 1}}, upsert=True, **session)


class Fleet:
    """Stops every process that it has started."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.nodes = EmbeddedReplicaSet(3)
        self.target = self.nodes.start().replace("/?", "/effects?")
        recruiter.point_at(self.target)
        self.store = Store(Target.parse(self.target))
        self.store.check()
        self.store.prepare()
        self.recruiters = [self._start("recruiter", "--lease-time", "3s") for _ in range(2)]
        self.workers = [self._start("worker", "--processes", "2") for _ in range(2)]
        self.faults: Counter[str] = Counter()

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        options = ("--bootstrap", __file__, "--considered-dead-after", f"{DEAD_AFTER:g}s", "--log-level", "error")
        command = [sys.executable, "-m", "recruiter.cli.main", "start", *arguments, *options]
        return subprocess.Popen(command, env={**os.environ, "RECRUITER_TARGET": self.target})

    def break_something(self) -> None:
        kinds = [self.kill_child] * 5 + [self.kill_worker, self.freeze_worker, self.kill_leader, self.step_down]
        kind = self.chance.choice(kinds)
        with suppress(StoreError, PyMongoError, psutil.Error, ProcessLookupError):
            kind()
            self.faults[kind.__name__.replace("_", " ")] += 1

    def kill_child(self) -> None:
        members = self._family(self.chance.choice(self.workers))[1:]
        if members:  # a worker that has just been replaced has none yet
            os.kill(self.chance.choice(members).pid, signal.SIGKILL)

    def kill_worker(self) -> None:
        place = self.chance.randrange(len(self.workers))
        self.workers[place].kill()
        self.workers[place].wait()
        self.workers[place] = self._start("worker", "--processes", "2")

    def kill_leader(self) -> None:
        lease = self.store.leases.read()
        for place, process in enumerate(self.recruiters):
            if lease is not None and process.pid == lease.pid:
                process.kill()
                process.wait()
                self.recruiters[place] = self._start("recruiter", "--lease-time", "3s")

    def freeze_worker(self) -> None:
        frozen = self._family(self.chance.choice(self.workers))
        for process in frozen:
            process.suspend()
        time.sleep(DEAD_AFTER * 2)
        for process in frozen:
            with suppress(psutil.Error):
                process.resume()

    def step_down(self) -> None:
        primary = self.nodes.primary()
        with MongoClient[dict[str, Any]](f"mongodb://{primary.address}/?directConnection=true") as client:
            client.admin.command("replSetStepDown", 5, secondaryCatchUpPeriodSecs=3)

    def _family(self, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]

    def close(self) -> None:
        for process in [*self.workers, *self.recruiters]:
            with suppress(psutil.Error):
                for member in self._family(process):
                    member.resume()
            process.terminate()
        for process in [*self.workers, *self.recruiters]:
            process.wait(timeout=60)
        self.store.close()
        recruiter.close()
        self.nodes.stop()


def left(store: Store) -> int | None:
    with suppress(StoreError, PyMongoError):
        return store.scheduled.collection.count_documents({})
    return None


def run(fleet: Fleet, jobs: int) -> dict[str, int]:
    in_transaction.enqueue_many([(number % COUNTERS,) for number in range(jobs)])
    without.enqueue_many([(number % COUNTERS,) for number in range(jobs)])
    while left(fleet.store) != 0:
        fleet.break_something()
        time.sleep(1.0)
    sums: Counter[str] = Counter()
    for document in fleet.store.database["counters"].find({}):
        sums[document["_id"].rpartition(" ")[0]] += document["n"]
    return dict(sums)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with closing(Fleet(options.seed)) as fleet:
        began = time.monotonic()
        sums = run(fleet, options.jobs)
        took = time.monotonic() - began
        done = fleet.store.archived.collection.count_documents({"done": True})
    told = ", ".join(f"{count} × {kind}" for kind, count in sorted(fleet.faults.items()))
    print(f"{2 * options.jobs:,} jobs, {done:,} done, in {took:.0f} s; {told}")
    for kind, total in sorted(sums.items()):
        print(f"  {kind:<16} {total:>7,} counted, {total - options.jobs:+d}")
    return int(sums.get("in transaction") != options.jobs or done != 2 * options.jobs)


if __name__ == "__main__":
    sys.exit(main())
