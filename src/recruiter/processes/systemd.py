"""Tells a service manager about the process: systemd's notify protocol, datagrams to the socket NOTIFY_SOCKET.

    READY=1       it is at work: the worker is on the roster, the recruiter leads or stands by
    STATUS=…      what `systemctl status` shows
    STOPPING=1    it was asked to stop
    WATCHDOG=1    from the main loop, as long as that goes round: one that hangs says nothing, and is started anew

Where nobody listens, nothing is sent.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from recruiter.events import Event
from recruiter.log.lines import filled
from recruiter.processes.health_port import HealthPort, ProcessHealth

SOCKET_VARIABLE, WATCHDOG_VARIABLE = "NOTIFY_SOCKET", "WATCHDOG_USEC"
_WATCHDOG_PID = "WATCHDOG_PID"
_PATIENCE = 1.0
_LONGEST = 4096

_AT_WORK = {
    "worker.joined": "works as {worker}, {slots:#slot}",
    "leader.elected": "leads, term {term}",
    "recruiter.standing_by": "stands by: another recruiter leads",
    "cleaner.at_work": "keeps the archive small",
}
_IN_BETWEEN = {
    "worker.lost": "is off the roster, and joins again",
    "leader.stept_back": "is no longer the leader",
    "store.unreachable": "{loop}: {error}; trying again",
}


class ServiceManager:
    """A listener for events, and for the main loop something to be told that it goes round."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self._address = address
        self.every = watchdog / 2 if address is not None and watchdog is not None else math.inf
        """Seconds after which the main loop should come by again."""
        self.watchdog = watchdog
        self._next_sign = time.monotonic() if math.isfinite(self.every) else math.inf
        self._ready = False
        self._status = ""
        self.health = ProcessHealth()
        """The same facts for probes."""
        self.health_port: HealthPort | None = None

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """The one that has started this process, if any. Taken out of the environment: it is not our children's."""
        address = environment.pop(SOCKET_VARIABLE, None)
        microseconds, pid = environment.pop(WATCHDOG_VARIABLE, ""), environment.pop(_WATCHDOG_PID, "")
        ours = microseconds.isdigit() and pid in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1e6 if ours and int(microseconds) else None)

    @property
    def present(self) -> bool:
        return self._address is not None

    def hear(self, event: Event) -> None:
        self.health.hear(event)
        if event.name in _AT_WORK:
            self._status = filled(_AT_WORK[event.name], event.fields)
            self.at_work(self._status)
        elif event.name in _IN_BETWEEN:
            self.status(filled(_IN_BETWEEN[event.name], event.fields))
        elif event.name == "store.back":
            self.status(self._status or "MongoDB answers again")
        elif event.name == "process.stopping":
            self.tell("STOPPING=1", "STATUS=was asked to stop")

    def at_work(self, status: str) -> None:
        told = [f"STATUS={_line(status)}"]
        if not self._ready:
            self._ready = True
            told.insert(0, "READY=1")
        self.tell(*told)

    def status(self, text: str) -> None:
        self.tell(f"STATUS={_line(text)}")

    def alive(self) -> None:
        """To be called whenever the main loop has come round."""
        self.health.turned()
        now = time.monotonic()
        if now >= self._next_sign:
            self._next_sign = now + self.every / 2
            self.tell("WATCHDOG=1")

    def tell(self, *lines: str) -> None:
        if self._address is None:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_PATIENCE)
            with suppress(OSError):  # nobody is there any more; our work does not depend on it
                sender.sendto("\n".join(lines).encode(), address)


class Relay:
    """Notifies a service manager about a fleet that was started as one service. It has a notify socket for each member:
    the fleet is ready when all members are, and alive as long as all are."""

    def __init__(self, manager: ServiceManager, when_ready: Callable[[], None] | None = None) -> None:
        self._manager = manager
        self._when_ready = when_ready
        """Called once, when all are ready."""
        wanted = manager.present or when_ready is not None
        self._folder = Path(tempfile.mkdtemp(prefix="recruiter-notify-")) if wanted else None
        self._sockets: dict[str, socket.socket] = {}
        self._ready: set[str] = set()
        self._alive: set[str] = set()
        self._statuses: dict[str, str] = {}
        self._stopping = False
        self._numbers = count()
        """A member that takes the place of another has a socket of its own."""

    def expect(self, when_ready: Callable[[], None]) -> None:
        """Call this too when all members are ready, those that are started from now on included."""
        self._when_ready = when_ready

    def environment(self, member: str) -> dict[str, str]:
        """What this member must be told, so that it tells us."""
        if self._folder is None:
            return {}
        place = self._folder / f"{member}-{next(self._numbers)}"
        self._forget(member)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.setblocking(False)
        listener.bind(str(place))
        self._sockets[member] = listener
        told = {SOCKET_VARIABLE: str(place)}
        if math.isfinite(self._manager.every) and self._manager.watchdog is not None:
            told[WATCHDOG_VARIABLE] = str(int(self._manager.watchdog * 1e6))
        return told

    def _forget(self, member: str) -> None:
        """What was heard of the one before."""
        before = self._sockets.pop(member, None)
        if before is not None:
            before.close()
        for heard in (self._ready, self._alive):
            heard.discard(member)
        self._statuses.pop(member, None)

    def pass_on(self) -> None:
        """To be called again and again."""
        changed = False
        for member, listener in self._sockets.items():
            with suppress(BlockingIOError):
                while True:
                    changed |= self._hear(member, listener.recv(_LONGEST).decode(errors="replace"))
        if changed:
            self._tell()
        if self._sockets and self._alive == set(self._sockets):
            self._alive.clear()
            self._manager.tell("WATCHDOG=1")

    def stopping(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._manager.tell("STOPPING=1")

    def close(self) -> None:
        for listener in self._sockets.values():
            listener.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _hear(self, member: str, message: str) -> bool:
        changed = False
        for line in message.splitlines():
            name, _, value = line.partition("=")
            if name == "WATCHDOG":
                self._alive.add(member)
            elif name == "STATUS":
                self._statuses[member] = value
                changed = True
            elif name == "READY":
                self._ready.add(member)
                changed = True
        return changed

    def _tell(self) -> None:
        told = [member for member in self._sockets if member in self._statuses]
        status = "; ".join(f"{member} {self._statuses[member]}" for member in told)
        if self._ready == set(self._sockets):
            self._manager.at_work(status)
            if self._when_ready is not None:
                self._when_ready()
                self._when_ready = None
        else:
            self._manager.status(status)


def _line(text: str) -> str:
    return " ".join(text.split())
