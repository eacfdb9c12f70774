"""One loop for every process: run a step, wait for a wake-up or a delay, until asked to stop.

A step returns how many seconds it can wait. When MongoDB does not answer, the loop logs it once, waits longer and
longer with jitter, and logs when MongoDB is back. No process dies because of an outage.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from recruiter.errors import StoreError
from recruiter.events import Events
from recruiter.processes.systemd import ServiceManager
from recruiter.store.database import Store
from recruiter.store.errors import answers, trace_of

UNTIL_WOKEN_SECONDS = 3600.0
"""The delay of a step that has nothing to do until another thread wakes its loop."""
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 5.0
SAME_WISH = 0.5
"""Seconds in which further signals mean the same stop: a service manager signals a whole group, parents pass it on."""


_SHOWN_WITHIN = 2.0
"""Seconds for a write that nothing depends on, but that the main loop waits for."""


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


class Stop:
    """Whether this process has been asked to stop; calls the listeners."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._calls: list[Callable[[], None]] = []
        self._calls_at_once: list[Callable[[], None]] = []

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        if not self._asked.is_set():
            self._asked.set()
            for call in self._calls:
                call()

    def when_asked(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def when_at_once(self, call: Callable[[], None]) -> None:
        """For the second signal: the process ends right after these."""
        self._calls_at_once.append(call)

    def listen_to_signals(self) -> None:
        """TERM, INT, QUIT and HUP ask to stop; a second signal ends the process immediately.

        Signals arrive through a pipe and are acted on by a thread: a Python signal handler may interrupt the main
        thread anywhere, also inside the very lock that it would need itself.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        threading.Thread(target=self._obey_signals, args=(read_end,), name="signals", daemon=True).start()

    def _obey_signals(self, read_end: int) -> None:
        """The thread for signals: the first asks to stop, one more than SAME_WISH later ends the process."""
        asked_at = 0.0
        while numbers := os.read(read_end, 16):
            for number in numbers:
                if number not in _STOP_SIGNALS:
                    continue  # the pipe gets every signal for which the process has a handler
                if not self.asked:
                    asked_at = time.monotonic()
                elif time.monotonic() - asked_at > SAME_WISH:
                    for call in self._calls_at_once:
                        call()
                    os._exit(128 + number)
                self.ask()


class Loop:
    """Repeats a step until asked to stop. A step returns the seconds to wait before the next one."""

    def __init__(
        self,
        name: str,
        step: Callable[[], float],
        stop: Stop,
        events: Events,
        longest_wait: float = _LONGEST_WAIT,
        manager: ServiceManager | None = None,
    ) -> None:
        self._name = name
        self._step = step
        self._stop = stop
        self._events = events
        self._woken = threading.Event()
        self._failures = 0
        self._answers = 0
        """The number of answered calls when the last call failed."""
        self._longest_wait = longest_wait
        self._manager = manager or ServiceManager()
        stop.when_asked(self.wake)

    def wake(self) -> None:
        """Do not wait any longer."""
        self._woken.set()

    def run(self) -> None:
        while not self._stop.asked:
            self._woken.clear()
            self._wait(self.attempt())

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._manager.alive()
        while (left := until - time.monotonic()) > 0 and not self._stop.asked:
            if self._woken.wait(min(left, self._manager.every)):
                return
            self._manager.alive()

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self.run, name=self._name, daemon=True)
        thread.start()
        return thread

    def attempt(self) -> float:
        """Runs one step; returns the seconds to wait, even if MongoDB did not answer."""
        try:
            delay = self._step()
        except StoreError as error:
            if not self._failures:
                self._events.emit("store.unreachable", loop=self._name, error=str(error))
            return self._back_off()
        except Exception as error:
            # A bug in Recruiter. Dying would stop every job; continuing affects only the work that the bug concerns.
            self._events.emit("loop.failed", loop=self._name, trace=trace_of(error))
            return self._back_off()
        if self._failures and answers() > self._answers:  # a step without a call shows nothing about MongoDB
            self._failures = 0
            self._events.emit("store.back", loop=self._name)
        return delay

    def _back_off(self) -> float:
        longest = min(self._longest_wait, _FIRST_WAIT * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._answers = answers()
        return longest * random.uniform(0.5, 1.0)


class Presence:
    """How a recruiter or a cleaner shows that it is there. It does so from its main loop: if that hangs, it is seen."""

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
        """Writes that this process is alive, once in a few seconds at most; sets the clock by the server's."""
        asked_at = self._clock.monotonic()
        if asked_at < self._at:
            return
        self._at = asked_at + self._every
        facts = {**self._facts, "clock_offset": self._clock.offset.total_seconds()}
        with suppress(StoreError):  # only for display; the work continues without it and reports its own errors
            server_time = self._store.processes.show(self._id, facts, _SHOWN_WITHIN)
            self._clock.agree(server_time, self._clock.monotonic() - asked_at)

    def leave(self) -> None:
        with suppress(StoreError):  # it will be removed by itself
            self._store.processes.leave(self._id)
