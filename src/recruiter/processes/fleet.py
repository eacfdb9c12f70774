"""A fleet: several Recruiter processes as children of this process. All stop when a member ends, or on request.

A fleet can be reloaded: each member is asked to stop, and a new one replaces it immediately. The old worker takes no
further jobs and finishes its running jobs, while the new worker takes the next jobs with the new code.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from recruiter.events import Events
from recruiter.processes.loop import Stop
from recruiter.processes.systemd import SOCKET_VARIABLE, ServiceManager

PARENT_VARIABLE = "RECRUITER_PARENT"
"""Names the parent that a process must not survive."""
_LONGEST_MESSAGE = 4096


class Fleet:
    """The members. Secrets go through the environment, because every user can read the arguments of a process."""

    def __init__(
        self,
        stop: Stop,
        environment: Mapping[str, str],
        manager: ServiceManager,
        events: Events,
        when_ready: Callable[[], None] | None = None,
    ) -> None:
        self._stop = stop
        self._manager = manager
        self._ready = _Readiness(lambda: self._all_ready(when_ready))
        self._environment = {**os.environ, **environment, PARENT_VARIABLE: str(os.getpid())}
        self._events = events
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments: dict[str, tuple[str, ...]] = {}
        self._leaving: list[subprocess.Popen[bytes]] = []
        """Replaced members, which finish their running jobs."""

    def add(self, name: str, *arguments: str) -> None:
        """Starts `recruiter ARGUMENTS…`, in its own process group: this process passes the terminal's Ctrl-C on."""
        self._arguments[name] = arguments
        self._members[name] = subprocess.Popen(
            [sys.executable, "-m", "recruiter.cli.main", *arguments],
            env={**self._environment, SOCKET_VARIABLE: self._ready.address},
            process_group=0,
        )

    def reload(self, when_ready: Callable[[], None]) -> None:
        """Replaces every member. Calls back when all the new ones are at work."""
        self._ready.close()
        self._ready = _Readiness(when_ready)
        for name, arguments in list(self._arguments.items()):
            leaving = self._members[name]
            leaving.terminate()
            self._leaving.append(leaving)
            self.add(name, *arguments)

    def run(self, each_round: Callable[[], None] = lambda: None) -> int:
        """Waits until a member ends or a stop is asked for, then stops the others; returns the code to exit with."""
        try:
            while not self._stop.asked and all(member.poll() is None for member in self._members.values()):
                self._ready.check(len(self._members))
                self._manager.alive()
                self._leaving = [member for member in self._leaving if member.poll() is None]
                each_round()
                time.sleep(0.05)
            self._say_who_ended()
        finally:
            self._manager.tell("STOPPING=1")
            self.stop()
            self._ready.close()
        return exit_code([member.returncode for member in self._members.values()])

    def _all_ready(self, when_ready: Callable[[], None] | None) -> None:
        self._manager.at_work(f"{', '.join(self._members)} are at work")
        if when_ready is not None:
            when_ready()

    def _say_who_ended(self) -> None:
        """Members that ended without a request; the others are stopped because of them."""
        if not self._stop.asked:
            for name, member in self._members.items():
                if member.poll() is not None:
                    how = how_it_ended(member.returncode)
                    self._events.emit("fleet.member_ended", member=name, member_pid=member.pid, how=how)

    def stop(self) -> None:
        for member in self._members.values():
            if member.poll() is None:
                member.terminate()
        for member in (*self._members.values(), *self._leaving):
            member.wait()

    def kill(self) -> None:
        for member in (*self._members.values(), *self._leaving):
            if member.poll() is None:
                member.terminate()  # the second signal ends them immediately, with their children


class _Readiness:
    """A notify socket, to which each member reports once that it is ready."""

    def __init__(self, when_all: Callable[[], None]) -> None:
        self._when_all: Callable[[], None] | None = when_all
        self._folder = Path(tempfile.mkdtemp(prefix="recruiter-notify-"))
        self.address = str(self._folder / "socket")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self.address)
        self._ready = 0

    def check(self, members: int) -> None:
        """Call this repeatedly. It calls back once, when all members are ready."""
        with suppress(BlockingIOError):
            while True:
                message = self._socket.recv(_LONGEST_MESSAGE).decode(errors="replace")
                self._ready += message.splitlines().count("READY=1")
        if self._when_all is not None and self._ready >= members:
            when_all, self._when_all = self._when_all, None
            when_all()

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def exit_code(of_members: Sequence[int]) -> int:
    """The first that is not 0; and 1 where a signal has ended a member, for the fleet itself was not killed.

    A member that our own signal ended before it could handle signals counts as stopped.
    """
    code = next((code for code in of_members if code not in (0, -signal.SIGTERM)), 0)
    return code if code >= 0 else 1


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended by itself with exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    why = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed from outside by {names.get(-code, f'signal {-code}')}{why}"
