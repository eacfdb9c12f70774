"""Informs a service manager about the process: systemd's notify protocol, datagrams to the socket NOTIFY_SOCKET.

    READY=1       it is at work: the worker is on the roster, the recruiter leads or stands by
    STATUS=…      what `systemctl status` shows
    STOPPING=1    it was asked to stop
    WATCHDOG=1    from each turn of the main loop; systemd restarts a process that hangs and sends nothing

Without a service manager, nothing is sent.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress

from recruiter.events import Event
from recruiter.log.lines import filled
from recruiter.processes.health_port import HealthPort, ProcessHealth

SOCKET_VARIABLE, WATCHDOG_VARIABLE = "NOTIFY_SOCKET", "WATCHDOG_USEC"
_WATCHDOG_PID = "WATCHDOG_PID"
_PATIENCE = 1.0

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
    """Tells the service manager, and the probes of the health port, the state of this process. It receives every event
    of the process, and the main loop calls `alive` on each turn."""

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
        """The service manager that started this process, if any. Removed from the environment, because our children
        must not use it."""
        address = environment.pop(SOCKET_VARIABLE, None)
        microseconds, pid = environment.pop(WATCHDOG_VARIABLE, ""), environment.pop(_WATCHDOG_PID, "")
        ours = microseconds.isdigit() and pid in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1e6 if ours and int(microseconds) else None)

    def hear(self, event: Event) -> None:
        """Shows an event as the status of the process. The first event that means "at work" also reports READY. The
        last such status is kept, because it is true again when MongoDB is back."""
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
        """Call this on each turn of the main loop."""
        self.health.turned()
        now = time.monotonic()
        if now >= self._next_sign:
            self._next_sign = now + self.every / 2
            self.tell("WATCHDOG=1")

    def tell(self, *lines: str) -> None:
        """Sends these lines to the service manager, if there is one."""
        if self._address is None:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        # The service manager may have ended, or no file may be left to open: our work does not depend on it.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_PATIENCE)
            sender.sendto("\n".join(lines).encode(), address)


def _line(text: str) -> str:
    return " ".join(text.split())
