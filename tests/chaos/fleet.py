"""The fleet under test: real processes, forked from one that has imported everything, started again when they die."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.chaos import application, ledger
from tests.warm import Forked, warm

ROOT = Path(__file__).parents[2]
FIRST_OF_PRODUCER, FIRST_OF_SUCCESSOR = 1_000_000_000, 1_000_000
"""Producers count from multiples of the one, and their successors on from multiples of the other: no two of them ever
name the same job."""
_ROUND_OFFSET = 311
"""Successors begin at other places in the round of kinds, so that no kind is rare where producers die often."""
_SCRIPTS = ("producer", "inline")
"""Roles of processes that may leave SIGTERM to Python."""


class Member:
    """One process with a role. `keep` starts it again when it has ended and should not have."""

    def __init__(self, name: str, role: str, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.role = role
        self._command = list(command)
        self._environment = environment
        self._log = log
        self.wanted = True
        self.starts = 0
        self.process = self._start()

    def _start(self) -> Forked:
        """Warm: on a busy machine a cold start takes longer than it takes until the next fault."""
        self.starts += 1
        return warm().fork(self._command, self._environment, self._log, cwd=ROOT)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def keep(self) -> None:
        if self.wanted and not self.running:
            self.process = self._start()

    def signal(self, number: int) -> None:
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def family(self) -> list[int]:
        """Itself and everything below it."""
        with suppress(psutil.Error):
            return [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]
        return [self.pid]

    def children(self) -> list[Child]:
        """The processes that run jobs, each with its guard: supervisor ── fork server ── guard ── child."""
        below: dict[int, list[int]] = {}
        with suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True):
                with suppress(psutil.Error):
                    below.setdefault(process.ppid(), []).append(process.pid)
        guards = [guard for server in below.get(self.pid, ()) for guard in below.get(server, ())]
        return [Child(pid, guard) for guard in guards for pid in below.get(guard, ())]


class Child(NamedTuple):
    """A process that runs jobs, and the one from which it was forked and which dies with it."""

    pid: int
    guard: int


class Producer(Member):
    """A producer that takes up the work of its dead predecessor, under new numbers: nobody knows how far that came."""

    def __init__(self, index: int, count: int, per_second: float, environment: dict[str, str], log: Path) -> None:
        self._place, self._left, self._per_second = index, count, per_second
        super().__init__(f"producer-{index}", "producer", [], environment, log)

    def _start(self) -> Forked:
        if self.starts:
            self._left = max(self._left - self._sent(self.pid), 0)
        first = (self._place + 1) * FIRST_OF_PRODUCER + self.starts * (FIRST_OF_SUCCESSOR + _ROUND_OFFSET)
        self._command = ["-m", "tests.chaos.producer", *map(str, (first, self._left, self._per_second, first))]
        return super()._start()

    def _sent(self, pid: int) -> int:
        """How many jobs the process that has ended has sent."""
        lines = ledger.read(Path(self._environment["CHAOS_LEDGER"]), f"sent-{pid}")
        return sum(len(line["jobs"]) for line in lines if line["what"] == "acknowledged")

    @property
    def done(self) -> bool:
        return self.process.poll() == 0


class Fleet:
    """Recruiters, workers, processes that run jobs by themselves, a cleaner, producers and a user on one database."""

    def __init__(
        self, target: str, folder: Path, settings: Mapping[str, str], jobs: int, per_second: float, seed: int
    ) -> None:
        self._folder = folder
        self._keeping = threading.Lock()
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RECRUITER_")},
            **settings,
            "RECRUITER_TARGET": target,
            "RECRUITER_LOG_LEVEL": "warning",
            "CHAOS_LEDGER": str(folder),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        }
        recruiters = [self._member(f"recruiter-{n}", "leader", "start", "recruiter") for n in range(2)]
        shapes = (*[("--processes", "2")] * 3, ("--processes", "1", "--concurrency", "4"))
        self.workers = [self._member(f"worker-{n}", "worker", "start", "worker", *s) for n, s in enumerate(shapes)]
        cleaner = self._member("cleaner", "cleaner", "start", "cleaner")
        inline = [self._member(f"inline-{way}", "inline", "-m", "tests.chaos.inline", way) for way in ("all", "watch")]
        self.user = self._member("user", "user", "-m", "tests.chaos.users", str(seed))
        self.producers = [
            Producer(n, jobs // 2, per_second / 2, self.environment, folder / f"producer-{n}.log") for n in range(2)
        ]
        self.members: list[Member] = [*recruiters, *self.workers, cleaner, *inline, self.user, *self.producers]

    def _member(self, name: str, role: str, *command: str) -> Member:
        bootstrap = ["--bootstrap", application.__file__] if command[0] == "start" else []
        return Member(name, role, [*command, *bootstrap], self.environment, self._folder / f"{name}.log")

    def keep(self) -> None:
        """Starts again what has died; a producer that is done stays away. Any thread may call it."""
        with self._keeping:
            for member in self.members:
                if not (isinstance(member, Producer) and member.done):
                    member.keep()

    def stop(self, within: float = 60.0) -> list[str]:
        """Asks everybody to stop; returns what went wrong with that. Whatever is left afterwards is killed by pid."""
        wrong: list[str] = []
        for member in self.members:
            member.wanted = False
            member.signal(signal.SIGCONT)
            member.signal(signal.SIGTERM)
        for member in self.members:
            try:
                code = member.process.wait(within)
                if code != 0 and not (member.role in _SCRIPTS and code == -signal.SIGTERM):
                    wrong.append(f"{member.name} ended with exit code {code} when it was asked to stop")
            except subprocess.TimeoutExpired:
                wrong.append(f"{member.name} did not stop within {within:g} s")
                for pid in member.family():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                member.process.wait()
        return wrong

    def orphans(self) -> list[str]:
        """Processes of this run that nobody owns any more: they carry its ledger in their environment."""
        found: list[str] = []
        forked = warm().pids()  # their environment cannot be seen from outside
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.pid in forked or process.environ().get("CHAOS_LEDGER") == str(self._folder)
                if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {process.cmdline()}")
        return found
