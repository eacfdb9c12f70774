"""What tests share: one real MongoDB for the whole suite, a database of its own for each test, real processes."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from bson import ObjectId
from hypothesis import HealthCheck, settings

from recruiter import Recruiter
from recruiter.embedded import EmbeddedServer
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.testing import Sandbox
from tests.bench import Bench
from tests.depth import examples
from tests.prepared import Databases
from tests.warm import Forked, close_at_once, warm

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds to wait for a fact. A fact that comes costs nothing; a loaded machine may take long to start processes."""

# How long an example takes says something about the machine, not about the code.
settings.register_profile(
    "recruiter", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(100)
)
settings.load_profile("recruiter")

# The signal that interrupts jobs; one that comes late must not end the process.
signal.signal(signal.SIGALRM, signal.SIG_IGN)

close_at_once()
gc.disable()  # until everything is collected

# A shell starts what runs in the background with Ctrl-C ignored, and so would be every process of the suite.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

WAITING = ("chaos", "processes", "acceptance", "web", "mutants", "simulator", "embedded", "contrib", "types")
"""Folders whose tests start processes, and wait for them more than they compute."""
LONGEST = (
    "test_chaos.py",
    "test_browser.py",
    "test_site.py",
    "test_bad_targets.py",
    "test_docs.py",
    "test_progress.py",
)
"""They begin first: whatever begins last decides when the suite ends."""


MEMORY = Path("/dev/shm")
ROOM = 8 * 2**30


def pytest_configure() -> None:
    """Where there is room, everything temporary is in memory. A write that must last waits for the disk, and MongoDB
    does hardly anything else here; what a test sees of it is the same."""
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait and files that compute by turns, so that neither the cores nor the workers stand idle."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    tests, places = Path(__file__).parent, {name: place for place, name in enumerate(WAITING)}
    waiting = [path for path in files if path.relative_to(tests).parts[0] in places]
    waiting.sort(key=lambda path: (path.name not in LONGEST, places[path.relative_to(tests).parts[0]]))
    computing = [path for path in files if path not in waiting]
    turns = (path for pair in zip_longest(waiting, computing) for path in pair if path is not None)
    items[:] = [item for path in turns for item in files[path]]


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay until the end: nobody need look for garbage among them."""
    gc.freeze()
    gc.enable()


def eventually(fact: Callable[[], T], within: float = PATIENCE, every: float = 0.1) -> T:
    """Waits until the fact is true, and returns it. Fails with the last answer when the time is over. It asks ever less
    often, down to `every` so many seconds, and so waits a tenth too long at most: asking takes time from the processes
    that it waits for."""
    began = time.monotonic()
    while True:
        answer = fact()
        if answer:
            return answer
        waited = time.monotonic() - began
        if waited > within:
            pytest.fail(f"not within {within:g} s; last answer: {answer!r}")
        time.sleep(min(max(waited / 10, 0.01), every))


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.executor.close()


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Hundreds of processes are started here. Where no bytecode is written, each would compile everything again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A command that runs in this process leaves its handlers behind: the next Ctrl-C would be for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
    before = [(number, signal.getsignal(number)) for number in numbers]
    yield
    if any(signal.getsignal(number) is not handler for number, handler in before):
        signal.set_wakeup_fd(-1)
        for number, handler in before:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(scope="session")
def databases(server: EmbeddedServer) -> Iterator[Databases]:
    with closing(Databases(server)) as databases:
        yield databases


@pytest.fixture
def target(request: pytest.FixtureRequest, server: EmbeddedServer, databases: Databases) -> Iterator[str]:
    """The address of a database that only this test knows: prepared if the test asks for a store, else not there."""
    if "store" in request.fixturenames:
        with databases.one() as uri:
            yield uri
        return
    with closing(Store(Target.parse(server.uri).in_database(f"test_{ObjectId()}"))) as store:
        yield store.target.uri
        store.client.admin.command("killAllSessions", [])  # processes that were killed in a transaction hold locks
        store.drop()


@pytest.fixture
def store(target: str, databases: Databases) -> Iterator[Store]:
    """This test's own; on a prepared database it has the connection with which that was made."""
    ready = databases.in_use is not None and databases.in_use.target.uri == target
    client = databases.in_use.client if databases.in_use is not None and ready else None
    with closing(Store(Target.parse(target), application_client=client)) as store:
        store.check()
        if not ready:
            store.prepare()
        yield store


@pytest.fixture
def recruiter(target: str, store: Store) -> Iterator[Recruiter]:
    """An application on this test's database, with nothing running."""
    with Recruiter(target) as recruiter:
        yield recruiter


@pytest.fixture
def sandbox(recruiter: Recruiter, target: str) -> Sandbox:
    """A stopped clock, at the beginning of 2030."""
    return Sandbox(recruiter, target, now=datetime(2030, 1, 1, tzinfo=UTC))


class Process:
    """One of our own processes, started like a user would."""

    def __init__(
        self,
        arguments: list[str],
        environment: dict[str, str],
        log: Path,
        script: str | None = None,
        cold: bool = False,
    ) -> None:
        self.log_file = log
        log.touch()
        self.popen: subprocess.Popen[bytes] | Forked
        if not cold and (script is None or script.endswith("calls.py")):
            self.popen = warm().fork([*filter(None, [script]), *arguments], environment, log)
        else:
            program = [script] if script is not None else ["-m", "recruiter.cli.main"]
            with log.open("wb") as output:
                self.popen = subprocess.Popen(
                    [sys.executable, *program, *arguments], env=environment, stdout=output, stderr=subprocess.STDOUT
                )
        self.pid = self.popen.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def says(self, text: str, within: float = PATIENCE) -> None:
        """Waits until the process has said it."""
        try:
            eventually(lambda: text in self.log or self.popen.poll() is not None, within)
            assert text in self.log
        except BaseException:
            print(f"--- log of {self.popen.args!r}\n{self.log}")
            raise

    def descendants(self) -> list[psutil.Process]:
        return list(psutil.Process(self.pid).children(recursive=True))

    def children(self) -> list[int]:
        """The pids of a worker's children: each has a guard, and those are the fork server's. That one is the worker's
        own, like Python's resource tracker."""
        found: list[int] = []
        for server in psutil.Process(self.pid).children():
            if "resource_tracker" in " ".join(server.cmdline()):
                continue
            for guard in server.children():
                with suppress(psutil.NoSuchProcess):  # it has just ended, and its child with it
                    found += [child.pid for child in guard.children() if _is_copy(child, server)]
        return found

    def member(self, name: str) -> psutil.Process:
        """One of the processes of a fleet: a new one has its arguments, a warm one only the name."""
        (found,) = [
            each
            for each in psutil.Process(self.pid).children()
            if each.name() == name or each.cmdline()[-2:] == ["start", name]
        ]
        return found

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self, within: float = PATIENCE) -> int:
        try:
            return self.popen.wait(within)
        except subprocess.TimeoutExpired:
            pytest.fail(f"did not end within {within:g} s:\n{self.log}")

    def stop(self, within: float = PATIENCE) -> int:
        self.signal(signal.SIGTERM)
        return self.wait(within)


def _is_copy(process: psutil.Process, original: psutil.Process) -> bool:
    try:
        return bool(process.cmdline() == original.cmdline())
    except psutil.Error:
        return False  # it has just ended


Starter = Callable[..., Process]


@contextmanager
def starting(target: str, folder: Path) -> Iterator[Starter]:
    """Starts `recruiter ARGUMENTS…`, or a script, on this database; kills the processes that are left at the end."""
    started: list[Process] = []

    def start(*arguments: str, script: str | None = None, cold: bool = False, **environment: str) -> Process:
        settings = {key: value for key, value in os.environ.items() if not key.startswith("RECRUITER_")}
        settings |= {"RECRUITER_TARGET": target, "RECRUITER_LOG_LEVEL": "debug", **environment}
        log = folder / f"process-{len(started)}.log"
        process = Process(list(arguments), settings, log, script, cold)
        started.append(process)
        return process

    yield start
    for process in started:
        family = []
        with suppress(psutil.Error):
            family = [psutil.Process(process.pid), *process.descendants()]
        for member in family:
            with suppress(psutil.Error):
                member.resume()
                member.kill()
        process.popen.wait()


@pytest.fixture
def start(target: str, tmp_path: Path) -> Iterator[Starter]:
    with starting(target, tmp_path) as start:
        yield start


@pytest.fixture
def fleet(start: Starter) -> Starter:
    """Starts a recruiter, a cleaner and a worker; returns the worker when it has joined. Each is forked from the warm
    process; `start("start", "all")` starts its members cold, and is for tests about that."""

    def begin(bootstrap: str, *worker_options: str, **environment: str) -> Process:
        start("start", "recruiter", "--bootstrap", bootstrap, **environment)
        start("start", "cleaner", **environment)
        worker = start("start", "worker", "--bootstrap", bootstrap, *worker_options, **environment)
        worker.says("joined the roster")
        return worker

    return begin
