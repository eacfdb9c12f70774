"""The files in the folder of a private server.

data/          MongoDB's files
mongod.log     what mongod says; mongod.log.1 is the run before
server.json    which mongod serves this folder, or last did (kept: the port is used again)
start.lock     held while somebody starts a server here, so that two at once end up with one
owner.lock     temporary folders only: held as long as the owner lives
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from recruiter.errors import ServerDidNotStart

TEMPORARY = "recruiter-mongod-"


@dataclass(frozen=True, slots=True)
class Record:
    """Which mongod serves a folder. When it was started tells it from a stranger that got the same pid later."""

    port: int
    pid: int
    started: float

    @classmethod
    def of(cls, pid: int, port: int) -> Record:
        return cls(port=port, pid=pid, started=_started(pid))

    @property
    def running(self) -> bool:
        try:
            same = _started(self.pid) == self.started
            return same and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


def _started(pid: int) -> float:
    """When this process was started, by a clock that nobody can set: of the kernel, counted from its boot. psutil would
    add the time of the boot, which moves with the clock of the host. Raises psutil.NoSuchProcess."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return float(after_name[_START_TIME])
    except (OSError, IndexError, ValueError):
        return float(psutil.Process(pid).create_time())  # not Linux: there it is what was noted at the start


_START_TIME = 19
"""The 22nd field of /proc/PID/stat; the name of the program, which is the second, may hold spaces."""


def read_record(folder: Path) -> Record | None:
    """The folder's record, or None if there is none that can be read."""
    try:
        found = json.loads((folder / "server.json").read_text())
        return Record(port=int(found["port"]), pid=int(found["pid"]), started=float(found["started"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_record(folder: Path, record: Record) -> None:
    """Replace the folder's record; a reader sees the old one or the new one, never a half."""
    draft = folder / "server.json.new"
    draft.write_text(json.dumps(asdict(record)) + "\n")
    draft.replace(folder / "server.json")


@contextmanager
def start_lock(folder: Path, deadline: float) -> Iterator[None]:
    """Be the only one who starts a server here. The kernel releases it if we die."""
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


def last_words(log: Path, lines: int = 10) -> str:
    """mongod's errors and its last lines, made readable: the errors come long before the end of its log."""
    try:
        entries = [_readable(line) for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "(no log)"
    errors = [entry for entry in entries[:-lines] if entry.startswith(("E ", "F "))][-lines:]
    return "\n".join(f"  {entry}" for entry in errors + entries[-lines:]) or "(the log is empty)"


def _readable(line: str) -> str:
    try:
        entry = json.loads(line)
        return f"{entry['s']} {entry['msg']} {json.dumps(entry.get('attr', {}))}"[:300]
    except (ValueError, TypeError, KeyError):
        return line[:300]


class TemporaryFolder:
    """A folder that goes with its owner: removed by `remove()`, or by the next owner if this one is killed.

    An empty MongoDB takes 300 MB, so leftovers of killed test runs would fill a disk. That the owner is gone
    is known by its lock, not by its pid: the lock also tells the truth where containers share a /tmp.
    """

    def __init__(self) -> None:
        _remove_leftovers(Path(tempfile.gettempdir()))
        self._owner = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=TEMPORARY)).resolve()
        # Locked before it has its name: under that name nobody ever finds it free while we live.
        draft = self.path / "owner.lock.new"
        self._handle = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
        _try_lock(self._handle)
        draft.replace(self.path / "owner.lock")

    def remove(self) -> None:
        """Remove it and all that is in it; in a fork of the owner, which has this object too, do nothing."""
        if self._owner == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._handle)


def _remove_leftovers(parent: Path) -> None:
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
