"""A child and everything its jobs start, so that all of it can be ended together.

    supervisor ── fork server ── guard ── child (leads a process group) ── programs of its jobs
                                   └── orphans: programs that became daemons

The guard is the process from which the child was forked. It runs no user code and is the *subreaper* of the child: a
descendant that loses its parent becomes a child of the guard, even in its own session or process group, and so can
always be found. When the child ends, or the fork server ends because the supervisor was killed, the guard ends all
remaining processes, and then exits with the status of its child. If the guard itself is killed, its child dies with it.
The programs of the child then become children of the fork server, and the supervisor ends them (`end_orphans`).

Subreapers exist only on Linux. On other systems the guard ends the process group of the child, and orphans in other
groups survive. On no system can it end processes of another user that it may not signal, or processes that a job has
started through another service (systemd, cron, a container engine).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Collection, Iterable

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PARENT_DIED = signal.SIGUSR2
"""Sent to the guard by the kernel when the fork server dies."""
_LONGEST_SWEEP = 5.0

server_pid = 0
"""In children: the fork server (preload.py)."""


def die_with_parent(by: signal.Signals, parent: int) -> None:
    """Asks the kernel to send this signal when the parent ends. It works even while a job holds the interpreter in C
    code, which no watching thread could. Linux only; elsewhere children notice by their closed pipes."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)  # it ended before we could ask


def adopt_orphans() -> None:
    """Descendants that lose their parent become our children, not children of init."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def part_from_guard() -> None:
    """Forks. It returns in the new process, which leads a process group. This process stays as its guard."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the supervisor
    adopt_orphans()
    guard, server = os.getpid(), os.getppid()
    child = os.fork()
    if child:
        _guard(child, server)
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    die_with_parent(signal.SIGKILL, guard)


def end_others() -> None:
    """Ends everything that the jobs of this child have started, also what became the guard's."""
    me = os.getpid()
    _end(process for process in _family(os.getppid()) if process.pid != me)


def end_orphans(server: int, guards: Collection[int]) -> None:
    """Supervisor: ends what fell to the fork server because its guard was killed."""
    with contextlib.suppress(psutil.Error):
        orphans = [process for process in psutil.Process(server).children() if process.pid not in guards]
        _end(member for orphan in orphans for member in (orphan, *_family(orphan.pid)))


def _guard(child: int, server: int) -> None:
    """Waits until the child has ended, ends all processes that it has left behind, and then ends as the child did."""
    for number in [int(name) for name in os.listdir("/dev/fd")]:
        if number > 2:  # the pipes are the child's alone
            with contextlib.suppress(OSError):
                os.close(number)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    die_with_parent(_PARENT_DIED, server)
    while (status := _reap(child)) is None:
        signal.sigwait({signal.SIGCHLD, _PARENT_DIED})
        if os.getppid() != server:
            os.kill(child, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    deadline = time.monotonic() + _LONGEST_SWEEP
    while (left := _family(os.getpid())) and time.monotonic() < deadline:
        _end(left)
        time.sleep(0.001)
        _reap(0)
    _end_like(status)


def _reap(child: int) -> int | None:
    """Collects the processes that have ended; returns the status of the child, if it is among them."""
    child_status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                child_status = ended[1]
    return child_status


def _end_like(status: int) -> None:
    """Ends this guard with the code or the signal of its child: the supervisor sees only how the guard ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os._exit(code if code >= 0 else 128 - code)


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _end(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.send_signal(signal.SIGKILL)
