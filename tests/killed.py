"""A process that is killed at its n-th word with MongoDB; for tests that want it to die at every single one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

from pymongo import monitoring


class Killer(monitoring.CommandListener):
    """Ends this process before the n-th command is sent, or after it was answered."""

    def __init__(self, fatal: int, moment: str) -> None:
        self._fatal = fatal
        self._moment = moment
        self._count = 0
        self.armed = False

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if self.armed:
            self._count += 1
            self._die("before")

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        if self.armed:
            self._die("after")

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...

    def _die(self, moment: str) -> None:
        if (self._count, self._moment) == (self._fatal, moment):
            os.kill(os.getpid(), signal.SIGKILL)


def exit_code_of(function: Callable[..., None], *args: Any) -> int:
    """Runs it in another process, and waits for its end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])
    process = context.Process(target=function, args=args)
    process.start()
    process.join(timeout=60)
    assert process.exitcode is not None
    return process.exitcode
