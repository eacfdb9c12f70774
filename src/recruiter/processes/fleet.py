"""Several of our processes together, as children of this one: all start, and all stop when one does or when asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from recruiter.processes.loop import Stop
from recruiter.processes.notify import ServiceManager
from recruiter.processes.relay import Relay

PARENT_VARIABLE = "RECRUITER_PARENT"
"""Tells a process which parent to die with."""


class Fleet:
    """What is secret goes through the environment; the arguments of a process can be read by everybody."""

    def __init__(
        self,
        stop: Stop,
        environment: Mapping[str, str],
        manager: ServiceManager,
        when_ready: Callable[[], None] | None = None,
    ) -> None:
        self._stop = stop
        self._relay = Relay(manager, when_ready)
        self._environment = {**os.environ, **environment, PARENT_VARIABLE: str(os.getpid())}
        self._members: list[subprocess.Popen[bytes]] = []

    def add(self, name: str, *arguments: str) -> None:
        """Starts `recruiter ARGUMENTS…`, in a group of its own: the terminal's Ctrl-C is for us to pass on."""
        self._members.append(
            subprocess.Popen(
                [sys.executable, "-m", "recruiter.cli.main", *arguments],
                env={**self._environment, **self._relay.environment(name)},
                process_group=0,
            )
        )

    def run(self) -> int:
        """Waits until one ends or a stop is asked for, then stops the rest; returns the code to exit with."""
        try:
            while not self._stop.asked and all(member.poll() is None for member in self._members):
                self._relay.pass_on()
                time.sleep(0.05)
        finally:
            self._relay.stopping()
            self.stop()
            self._relay.close()
        return exit_code([member.returncode for member in self._members])

    def stop(self) -> None:
        for member in self._members:
            if member.poll() is None:
                member.terminate()
        for member in self._members:
            member.wait()

    def kill(self) -> None:
        for member in self._members:
            if member.poll() is None:
                member.terminate()  # the second signal: at once, but with their own children


def exit_code(of_members: Sequence[int]) -> int:
    """The first that is not 0; what a signal ended is told as a shell does.

    One that our own signal ended before it could listen had nothing to say.
    """
    code = next((code for code in of_members if code not in (0, -signal.SIGTERM)), 0)
    return code if code >= 0 else 128 - code
