"""Presence: how a recruiter or a cleaner shows that it is there, from its main loop: if that hangs, it is seen."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from typing import Literal

from recruiter.errors import StoreError
from recruiter.store.database import Store

_WITHIN = 2.0
"""Seconds for a write that nothing depends on, but that the main loop waits for."""


class Presence:
    def __init__(self, store: Store, role: Literal["recruiter", "cleaner"], host: str = "", every: float = 5.0) -> None:
        self._store = store
        self._clock = store.clock
        self._every = every
        self._at = 0.0
        self._id = f"{host or socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._facts = {
            "role": role,
            "host": host or socket.gethostname(),
            "pid": os.getpid(),
            "since": self._clock.now(),
        }

    def show(self) -> None:
        """Now and then, however often it is called. Sets the clock by the server's on the way."""
        asked_at = self._clock.monotonic()
        if asked_at < self._at:
            return
        self._at = asked_at + self._every
        facts = {**self._facts, "clock_offset": self._clock.offset.total_seconds()}
        with suppress(StoreError):  # it is for people to see; work goes on without, and says what is wrong itself
            server_time = self._store.processes.show(self._id, facts, _WITHIN)
            self._clock.agree(server_time, self._clock.monotonic() - asked_at)

    def leave(self) -> None:
        with suppress(StoreError):  # it will be removed by itself
            self._store.processes.leave(self._id)
