"""A child leads a process group, and everything its jobs start belongs to it: so it can be ended with them.

The guard ends what is left when the child itself is gone, also when nobody is left to do it: it waits for the end of a
pipe that only the child holds open, and then ends the group. Without it, the programs that jobs had started would
survive a supervisor that is killed, and run beside their successors.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import psutil

_GUARD = "read _; kill -KILL 0"


def lead() -> None:
    """Makes this process the leader of a group of its own, with a guard."""
    os.setpgid(0, 0)
    read_end, write_end = os.pipe()
    with contextlib.suppress(OSError):  # no shell here: then there is no guard
        subprocess.Popen(
            ["/bin/sh", "-c", _GUARD], stdin=read_end, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    os.close(read_end)
    # The write end stays open as long as this process lives; programs that it starts do not inherit it.
    del write_end


def end_others() -> None:
    """Ends everything in this process's group but itself and its guard: what an interrupted job has left behind."""
    group, me = os.getpgrp(), os.getpid()
    for process in psutil.process_iter(["pid"]):
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != me and os.getpgid(process.pid) == group and not _is_guard(process):
                process.send_signal(signal.SIGKILL)


def _is_guard(process: psutil.Process) -> bool:
    return bool(process.cmdline()[-1:] == [_GUARD])
