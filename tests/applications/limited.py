"""Jobs that need something, and one that kills its whole worker."""

from __future__ import annotations

import os
import signal
import time

import psutil

from recruiter import Recruiter

recruiter = Recruiter()


@recruiter.task
def poison() -> None:
    """Kills its supervisor, and everybody dies with it."""
    fork_server = psutil.Process(os.getppid())
    os.kill(fork_server.ppid(), signal.SIGKILL)
    time.sleep(60)


@recruiter.task
def innocent(number: int) -> int:
    return number
