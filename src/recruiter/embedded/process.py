"""A mongod as a child process that cannot outlive its owner.

Ending it in `stop()` and at exit is not enough: an owner killed with -9 runs neither. So on Linux the kernel
is asked to do it (prctl PR_SET_PDEATHSIG): when the parent is gone, the child gets SIGKILL, which MongoDB's
journal survives. Two things about this call decide how the file looks:

- "The parent" is the *thread* that made the child, not the process. A `start()` called from a short-lived
  thread (asyncio.to_thread, a test's worker thread) would have its mongod killed when that thread ends. So
  a thread of its own makes the child and waits for the child's end: it lives exactly as long as the mongod.
- The child must make the call itself, after the fork. Python's `preexec_fn` is unsafe beside other threads,
  and there are always some. So a few lines of Python run first in the child and then *become* mongod by exec,
  which keeps the pid and the setting. They look whether the owner died before the call: for that no signal
  comes.

Elsewhere (macOS) there is no such call: there a mongod ends with `stop()` and at exit, not after a kill -9.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

GRACE = 15.0

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
    """One run of mongod, from its start to its end."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.owner = os.getpid()
        self._ended = threading.Event()
        made: Future[subprocess.Popen[bytes]] = Future()
        threading.Thread(
            target=_keep, args=(command, log, made, self._ended), name="recruiter-mongod", daemon=True
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
        """Wait for its end, at most so long; whether it ended."""
        return self._ended.wait(seconds)

    def terminate(self, grace: float = GRACE) -> None:
        """Let it shut down cleanly, and kill it if it takes longer than `grace` seconds."""
        if self.running and self.owner == os.getpid():
            self._process.terminate()
            if not self.wait(grace):
                self.kill()

    def kill(self) -> None:
        """A crash: SIGKILL, and wait until it is gone."""
        # A fork of the owner has this object too, and must not end a mongod that is not its own.
        if self.running and self.owner == os.getpid():
            self._process.kill()
            self._ended.wait()


def mongod_command(binary: Path, data: Path, port: int, replica_set: str, extra: Sequence[str]) -> list[str]:
    """The command line; what is in `extra` replaces our tuning."""
    tuning = [part for name, value in TUNING.items() if name not in extra for part in (name, value)]
    return [
        *(str(binary), "--dbpath", str(data), "--replSet", replica_set),
        *("--bind_ip", "127.0.0.1", "--port", str(port), "--nounixsocket", "--quiet"),
        *("--setParameter", "diagnosticDataCollectionEnabled=false"),
        *tuning,
        *extra,
    ]


def _keep(
    command: Sequence[str],
    log: Path,
    made: Future[subprocess.Popen[bytes]],
    ended: threading.Event,
) -> None:
    """Make the child and stay until it ends; the kernel ties the child's life to this thread's."""
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
            # mongod ends at once if the locale is not installed here.
            env={**os.environ, "LC_ALL": "C"},
            # Its own session: a Ctrl-C in the terminal is for the owner, who still needs MongoDB to end well.
            start_new_session=True,
        )
