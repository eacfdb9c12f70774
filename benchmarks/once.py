"""Steps that survive, under kills: the process of a job is killed right after a step's result was stored, again and
again. Each external effect of a finished step must be there once.

    python benchmarks/once.py [--kills 100] [--jobs 25] [--seed 1]

The effect is a line in a file that is only appended to. Each job has four steps; after each of them it waits until the
benchmark, which reads the job's document, has seen the stored result and has decided: continue, or SIGKILL the child
or the whole worker. For comparison, the same steps are also done without `once`. Exits with 1 if a finished step has
left other than one line.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from recruiter import Recruiter, RetryForever, current_job
from recruiter.embedded import EmbeddedServer
from recruiter.store.database import Store

STEPS = ("charge", "pack", "ship", "mail")
QUICK = {"RECRUITER_CONSIDERED_DEAD_AFTER": "2s", "RECRUITER_LEASE_TIME": "1s", "RECRUITER_HEARTBEAT": "0.2s"}

recruiter = Recruiter()


@recruiter.task(retry=RetryForever("0s"), max_crashes=10_000)
def order(folder: str, number: int) -> str:
    """Does each step twice over: with `once` and, for comparison, without."""
    receipts = []
    for step in STEPS:
        receipts.append(current_job.once(step, effect, folder, "once", f"{number} {step}"))
        effect(folder, "bare", f"{number} {step}")
        waits(Path(folder), f"{number}-{step}")
    return " ".join(receipts)


def effect(folder: str, file: str, line: str) -> str:
    """Appends a line with one write, so that lines of several processes do not mix."""
    descriptor = os.open(Path(folder) / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
    return line


def waits(folder: Path, name: str) -> None:
    """Records its process id and waits for permission to continue; a later run need not stop here."""
    if (folder / f"{name}.go").exists():
        return
    part = folder / f"{name}.{os.getpid()}"
    part.write_text(str(os.getpid()))
    part.rename(folder / f"{name}.here")
    while not (folder / f"{name}.go").exists():
        time.sleep(0.002)


class Fleet:
    """Our own processes, ended by pid whatever happens."""

    def __init__(self, target: str) -> None:
        self._environment = {**os.environ, "RECRUITER_TARGET": target, "RECRUITER_LOG_LEVEL": "error", **QUICK}
        self.members: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "recruiter.cli.main", "start", name, "--bootstrap", __file__]
        more = ["--processes", "4"] if name == "worker" else []
        self.members[name] = subprocess.Popen([*command, *more], env=self._environment)

    def kill_worker(self) -> None:
        self.members["worker"].kill()
        self.members["worker"].wait()
        self.start("worker")

    def stop(self) -> None:
        for member in self.members.values():
            member.terminate()
        for member in self.members.values():
            member.wait(timeout=60)


def killing(fleet: Fleet, store: Store, folder: Path, kills: int, jobs: int, chance: random.Random) -> Counter[str]:
    """Kills at stored steps, as often as asked, and lets the jobs continue, until all of them have ended."""
    done: Counter[str] = Counter()
    while store.archived.collection.count_documents({}) < jobs:
        for here in folder.glob("*.here"):
            number, _, step = here.stem.partition("-")
            kept = store.scheduled.collection.find_one({"args.number": int(number), "checkpoints.name": step})
            assert kept is not None, f"step {step} of order {number} goes on before its result is stored"
            pid = int(here.read_text())
            here.unlink()
            if sum(done.values()) >= kills or chance.random() < 0.3:
                (folder / f"{here.stem}.go").touch()
            elif chance.random() < 0.04:
                fleet.kill_worker()
                done["worker"] += 1
            else:
                with suppress(ProcessLookupError):  # it died with its worker
                    os.kill(pid, signal.SIGKILL)
                    done["child"] += 1
        time.sleep(0.005)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        target = server.uri.replace("/?", "/once?")
        recruiter.point_at(target)
        recruiter.store.prepare()
        fleet = Fleet(target)
        began = time.monotonic()
        try:
            fleet.start("recruiter")
            fleet.start("worker")
            order.enqueue_many([(folder, number) for number in range(options.jobs)])
            chance = random.Random(options.seed)
            done = killing(fleet, recruiter.store, Path(folder), options.kills, options.jobs, chance)
        finally:
            fleet.stop()
        took = time.monotonic() - began
        succeeded = recruiter.store.archived.collection.count_documents({"done": True})
        recruiter.close()
        left = {name: Counter((Path(folder) / name).read_text().splitlines()) for name in ("once", "bare")}
    wanted = Counter(f"{number} {step}" for number in range(options.jobs) for step in STEPS)
    told = ", ".join(f"{count} × {kind}" for kind, count in sorted(done.items()))
    print(f"{succeeded} of {options.jobs} jobs succeeded after {sum(done.values())} kills ({told}) in {took:.0f} s")
    for name, lines in left.items():
        again = sum((lines - wanted).values())
        steps = f"{len(lines):>4} finished steps of {len(wanted)}"
        print(f"  {name:<5} {steps}, {sum(lines.values())} effects, {again} too many")
    return int(left["once"] != wanted or succeeded != options.jobs)


if __name__ == "__main__":
    sys.exit(main())
