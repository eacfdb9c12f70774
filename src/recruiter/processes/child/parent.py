"""Dying with one's parent, so that nothing is left running when a parent is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

server_pid = 0
"""In children: the process they were forked from (preload.py)."""


def die_with_parent(by: signal.Signals, parent: int) -> None:
    """Asks the kernel to send this signal when the parent ends. It works even while a job holds the interpreter in C
    code, which no watching thread could. Linux only; elsewhere children notice by their closed pipes."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)  # it ended before we could ask
