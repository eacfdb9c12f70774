"""What several processes would tell a service manager, told by one: for a fleet that was started as one service."""

from __future__ import annotations

import math
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from recruiter.processes.systemd import SOCKET_VARIABLE, WATCHDOG_VARIABLE, ServiceManager

_LONGEST = 4096


class Relay:
    """A notify socket for each member. Ready when all are; alive as long as all are."""

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

    def environment(self, member: str) -> dict[str, str]:
        """What this member must be told, so that it tells us."""
        if self._folder is None:
            return {}
        place = self._folder / member
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.setblocking(False)
        listener.bind(str(place))
        self._sockets[member] = listener
        told = {SOCKET_VARIABLE: str(place)}
        if math.isfinite(self._manager.every) and self._manager.watchdog is not None:
            told[WATCHDOG_VARIABLE] = str(int(self._manager.watchdog * 1e6))
        return told

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
