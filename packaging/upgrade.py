"""A rolling upgrade with real processes: an earlier release and this one on the same database, there and back.

    python packaging/upgrade.py [--earlier COMMIT] [--jobs 300]

It needs the git history, so it is not a part of the suite. In each phase producers of the releases that run store jobs
of several kinds: plain, retried, postponed, unique, flows, and a
repeatable job. Processes are stopped as a deployment stops them, with SIGTERM. At the end each job must be in the
archive exactly once, must have succeeded, and must have run exactly once.

The earlier release had plain names of collections, so this one runs with an empty prefix.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from recruiter.embedded import EmbeddedServer

ROOT = Path(__file__).parents[1]
EARLIER = "f1c3ecc"
"""The last state before collections had a prefix and the schema a version."""
PATIENCE_SECONDS = 120.0
APPLICATION = """
import os, sys, time
from pymongo import MongoClient
from recruiter import Recruiter, RetryManyTimes, current_job

recruiter = Recruiter()
effects = MongoClient(os.environ["RECRUITER_TARGET"]).get_default_database().effects


def note(number):
    time.sleep(0.02)
    effects.insert_one({"number": number, "release": os.environ["RELEASE"]})
    return number


@recruiter.task
def plain(number: str) -> str:
    return note(number)


@recruiter.task(retry=RetryManyTimes(5, 1))
def second_try(number: str) -> str:
    if current_job.attempt == 1:
        raise ConnectionError("the first time fails")
    return note(number)


@recruiter.task
def total(parts: list[str]) -> str:
    return note(min(parts).replace("part", "total"))


@recruiter.every("1 second", urn="tick")
def tick() -> None:
    effects.insert_one({"tick": True, "release": os.environ["RELEASE"]})


def produce(name: str, count: int) -> None:
    for n in range(count):
        kind = n % 10
        if kind == 7:
            second_try.enqueue(f"{name} retried {n}")
        elif kind == 8:
            plain.job(f"{name} later {n}").schedule_in("2 seconds").enqueue()
        elif kind == 9:
            key = f"{name} unique {n}"
            plain.job(key).unique(key).enqueue()
            plain.job(key).unique(key).enqueue()
        elif n % 20 == 5:
            calls = [(f"{name} part {n}.{part}",) for part in range(4)]
            recruiter.fan_out(plain, calls, then=total).start()
        else:
            plain.enqueue(f"{name} plain {n}")


if __name__ == "__main__":
    produce(sys.argv[1], int(sys.argv[2]))
"""


class Releases:
    """Starts and stops processes of both releases."""

    def __init__(self, folder: Path, target: str, earlier: str) -> None:
        self._folder, self._target = folder, target
        self._application = folder / "upgraded_shop.py"
        self._application.write_text(APPLICATION)
        archive = subprocess.run(["git", "archive", earlier, "src"], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        self._running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}

    def environment(self, release: str) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith("RECRUITER_")}
        source = self._folder / "src" if release == "earlier" else ROOT / "src"
        own |= {"RECRUITER_TARGET": self._target, "RELEASE": release, "PYTHONPATH": str(source)}
        return own if release == "earlier" else {**own, "RECRUITER_PREFIX": ""}

    def run(self, release: str, *arguments: str) -> str:
        """A command to its end; its output."""
        command = [sys.executable, "-m", "recruiter.cli.main", *arguments]
        ended = subprocess.run(
            command, env=self.environment(release), cwd=self._folder, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            sys.exit(f"{release}: recruiter {' '.join(arguments)} ended with {ended.returncode}: {ended.stderr}")
        return ended.stdout

    def start(self, release: str, *roles: str) -> None:
        for role in roles:
            log = self._log(release, role)
            began = log.stat().st_size if log.exists() else 0
            command = [sys.executable, "-m", "recruiter.cli.main", "start", role]
            command += ["--bootstrap", str(self._application)]
            with log.open("ab") as output:
                self._running[release, role] = subprocess.Popen(
                    command, env=self.environment(release), cwd=self._folder, stdout=output, stderr=output
                )
            self._await_start(release, role, began)

    def _await_start(self, release: str, role: str, began: int) -> None:
        process, log = self._running[release, role], self._log(release, role)
        until(lambda: "started on" in log.read_text()[began:] or process.poll() is not None, f"{release} {role} starts")
        if process.poll() is not None:
            sys.exit(f"{release} {role} did not start: {log.read_text()[began:]}")

    def stop(self, release: str, *roles: str) -> None:
        """One after the other, as a deployment does."""
        for role in roles:
            process = self._running.pop((release, role))
            process.send_signal(signal.SIGTERM)
            if process.wait(PATIENCE_SECONDS):
                sys.exit(f"{release} {role} ended with {process.returncode}: {self._log(release, role).read_text()}")

    def produce(self, release: str, phase: str, jobs: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(self._application), f"{phase} of {release}", str(jobs)]
        return subprocess.Popen(command, env=self.environment(release), cwd=self._folder)

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def errors(self) -> list[str]:
        logs = [path.read_text() for path in self._folder.glob("*.log")]
        return [line for log in logs for line in log.splitlines() if " ERROR" in line or "Traceback" in line]

    def _log(self, release: str, role: str) -> Path:
        return self._folder / f"{release}-{role}.log"


def until(fact: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not fact():
        if time.monotonic() > deadline:
            sys.exit(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(0.05)


def numbers_of(producer: str, jobs: int) -> set[str]:
    """The notes that the jobs of one producer must write, each once."""
    found = set[str]()
    for n in range(jobs):
        kind = {7: "retried", 8: "later", 9: "unique"}.get(n % 10, "plain")
        if kind == "plain" and n % 20 == 5:
            found |= {f"{producer} part {n}.{part}" for part in range(4)} | {f"{producer} total {n}.0"}
        else:
            found.add(f"{producer} {kind} {n}")
    return found


PHASES: list[tuple[str, tuple[str, ...]]] = [
    ("earlier alone", ("earlier",)),
    ("side by side, not prepared", ("earlier", "this")),
    ("side by side, prepared", ("earlier", "this")),
    ("this alone", ("this",)),
    ("back: side by side", ("this", "earlier")),
    ("back: earlier alone", ("earlier",)),
    ("again this alone", ("this",)),
]
ROLES = ("recruiter", "worker", "cleaner")


def upgrade(releases: Releases, database: Any, jobs: int) -> set[str]:
    """Goes through the phases while producers work; returns what must have been noted."""
    expected = set[str]()
    running = set[str]()
    for phase, wanted in PHASES:
        for release in (each for each in wanted if each not in running):
            releases.start(release, *ROLES)
        producing = [releases.produce(release, phase, jobs) for release in wanted]
        until(lambda phase=phase: database.effects.find_one(_of(phase)), f"{phase}: the first job runs")  # type: ignore[misc]
        if phase == "side by side, prepared":
            print(releases.run("this", "prepare").strip().splitlines()[-1])
        for release in running - set(wanted):
            releases.stop(release, *ROLES)
        running = set(wanted)
        for producer in producing:
            if producer.wait(PATIENCE_SECONDS):
                sys.exit(f"a producer failed in phase {phase!r}")
        for release in wanted:
            expected |= numbers_of(f"{phase} of {release}", jobs)
        await_jobs(database, expected, phase)
        ran = Counter(each["release"] for each in database.effects.find(_of(phase)))
        schema = (database.meta.find_one() or {}).get("schema", "-")
        print(f"{phase:28} schema {schema}  ran by earlier {ran['earlier']:5}  by this {ran['this']:5}")
        if set(wanted) - ran.keys():
            sys.exit(f"{phase}: a release ran no job")
    releases.stop("this", *ROLES)
    return expected


def await_jobs(database: Any, expected: set[str], phase: str) -> None:
    """Waits until all jobs have run. Reports the remaining jobs if they do not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while missing := expected - set(noted(database)):
        if time.monotonic() > deadline:
            for document in database.scheduled.find().limit(5):
                print(f"waits: {document}")
            for worker in database.roster.find():
                print(f"worker: {worker}")
            sys.exit(f"{phase}: {len(missing)} jobs did not run, such as {sorted(missing)[:5]}")
        time.sleep(0.1)


def _of(phase: str) -> dict[str, Any]:
    return {"number": {"$regex": f"^{phase} of"}}


def noted(database: Any) -> list[str]:
    return [each["number"] for each in database.effects.find({"number": {"$exists": True}})]


def verdict(database: Any, expected: set[str], errors: list[str]) -> list[str]:
    """The violations."""
    counts = Counter(noted(database))
    ended = list(database.archived.find({"task": {"$ne": "tick"}}, {"result": 1, "done": 1, "why": 1}))
    results = Counter(each.get("result") for each in ended)
    ticks = database.effects.count_documents({"tick": True})
    made = database.archived.count_documents({"task": "tick", "done": True})
    waiting = database.scheduled.count_documents({"task": {"$ne": "tick"}})
    print(f"{len(expected):,} jobs expected, {len(counts):,} ran, {len(ended):,} are in the archive; {ticks} ticks")
    return [
        *(f"never ran: {number}" for number in sorted(expected - counts.keys())[:10]),
        *(f"ran {count} times: {number}" for number, count in sorted(counts.items()) if count > 1),
        *(f"not expected: {number}" for number in sorted(counts.keys() - expected)[:10]),
        *(f"archived {count} times: {number}" for number, count in results.items() if count > 1),
        *(f"did not succeed: {each}" for each in ended if not each["done"]),
        *(f"not archived: {number}" for number in sorted(expected - results.keys())[:10]),
        *([f"{waiting} jobs still wait"] if waiting else []),
        *([] if ticks == made > 0 else [f"{ticks} ticks, but {made} in the archive"]),
        *errors,
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--earlier", default=EARLIER, help=f"the commit to upgrade from (default {EARLIER})")
    parser.add_argument("--jobs", type=int, default=300, help="jobs of each producer in each phase")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recruiter-upgrade-")))
        server = stack.enter_context(EmbeddedServer())
        target = server.uri.replace("/?", "/shop?")
        client: MongoClient[Any] = stack.enter_context(MongoClient(target))
        database = client.get_default_database()
        releases = Releases(folder, target, given.earlier)
        stack.callback(releases.close)
        expected = upgrade(releases, database, given.jobs)
        wrong = verdict(database, expected, releases.errors())
    for line in wrong:
        print(f"WRONG  {line}")
    print("nothing was lost and nothing ran twice" if not wrong else f"{len(wrong)} things are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
