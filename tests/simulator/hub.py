"""Virtual time: many processes take turns in one thread, and a seed decides everything.

Each thread of each process is a greenlet. It runs until it waits, for a call to the server, for an event or for time to
pass; then the next thread in virtual time runs. Nothing reads a real clock, so a seed replays exactly.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from greenlet import getcurrent, greenlet


class ProcessDied(BaseException):
    """This process was killed: none of its threads continues."""


class Coroutine(greenlet):  # type: ignore[misc]  # it has no types
    """A simulated thread."""

    threads: Threads | None = None
    """Of its process; None for what belongs to no process."""
    turn = 0
    """The number of its last place in the queue: earlier places no longer count."""


class Hub:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.pids = itertools.count(1)
        self._queue: list[tuple[float, int, Coroutine]] = []
        self._turns = itertools.count(1)
        self._until = 0.0
        self._started: list[Coroutine] = []
        self._main = getcurrent()

    def monotonic(self) -> float:
        return self.now

    def chance(self, probability: float) -> bool:
        return probability > 0.0 and self.random.random() < probability

    def start(self, function: Callable[[], None], threads: Threads | None = None, after: float = 0.0) -> Coroutine:
        thread = Coroutine(function, self._main)
        thread.threads = threads
        self._started.append(thread)
        if threads is not None:
            threads.alive.append(thread)
        self._enqueue(self.now + after, thread)
        return thread

    def _enqueue(self, at: float, thread: Coroutine) -> None:
        thread.turn = next(self._turns)
        heapq.heappush(self._queue, (at, thread.turn, thread))

    def sleep(self, seconds: float) -> None:
        """Lets the other threads run until this time has passed, or another thread wakes this one."""
        thread = getcurrent()
        assert isinstance(thread, Coroutine)
        threads = thread.threads
        if threads is not None and threads.dead:
            raise ProcessDied
        at = self.now + seconds if seconds > 0.0 else self.now
        first = not self._queue or at < self._queue[0][0]
        if first and at <= self._until and (threads is None or threads.frozen_until <= at):
            self.now = at  # no other thread is due before: it continues
            return
        self._enqueue(at, thread)
        self._main.switch()

    def wake(self, thread: Coroutine) -> None:
        """Ends the sleep of a thread now."""
        self._enqueue(self.now, thread)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        self._until = until
        while self._queue and not done():
            at, turn, thread = heapq.heappop(self._queue)
            if at > until:
                heapq.heappush(self._queue, (at, turn, thread))
                self.now = until
                return
            threads = thread.threads
            if turn != thread.turn or thread.dead or (threads is not None and threads.dead):
                continue
            if threads is not None and threads.frozen_until > at:
                self._enqueue(threads.frozen_until, thread)
                continue
            self.now = max(self.now, at)
            thread.switch()

    def close(self) -> None:
        """Ends every thread: a waiting thread keeps its whole world alive, and no garbage collector sees that."""
        for thread in self._started:
            if thread:
                thread.parent = getcurrent()
                thread.throw()
        self._started.clear()
        self._queue.clear()


class Threads:
    """The threads of one process: they are frozen together and die together."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.pid = next(hub.pids)
        self.alive: list[Coroutine] = []
        self.frozen_until = 0.0
        self.dead = False
        self.on_death: list[Callable[[], None]] = []

    @staticmethod
    def current() -> Threads | None:
        """The threads of the process that runs now."""
        thread = getcurrent()
        return thread.threads if isinstance(thread, Coroutine) else None

    def start(self, function: Callable[[], None]) -> Coroutine:
        def run() -> None:
            with suppress(ProcessDied):
                function()

        return self._hub.start(run, self)

    def freeze(self, seconds: float) -> None:
        self.frozen_until = max(self.frozen_until, self._hub.now + seconds)

    def die(self) -> None:
        """Unwinds every thread: none of them can make a call from now on. To a thread of this process it does not
        return."""
        if not self.dead:
            self.dead = True
            for call in self.on_death:
                call()
        for thread in self.alive:
            if thread and thread is not getcurrent():
                thread.parent = getcurrent()
                thread.throw(ProcessDied)
        if getcurrent() in self.alive:
            raise ProcessDied


class Turn:
    """A lock for the threads of one process."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._taken = False

    def __enter__(self) -> None:
        while self._taken:
            self._hub.sleep(0.003)
        self._taken = True

    def __exit__(self, *_: object) -> None:
        self._taken = False


class Event:
    """As `threading.Event`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._is_set = False
        self._waiting: list[Coroutine] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for thread in self._waiting:
            self._hub.wake(thread)
        self._waiting.clear()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        thread = getcurrent()
        assert isinstance(thread, Coroutine)
        if not self._is_set:
            self._waiting.append(thread)
            try:
                self._hub.sleep(seconds)
            finally:
                if thread in self._waiting:
                    self._waiting.remove(thread)
        return self._is_set


class Condition:
    """As `threading.Condition`. No simulated thread waits for anything else while it holds the lock."""

    def __init__(self, hub: Hub, lock: threading.Lock) -> None:
        self._lock = lock
        self._notified = Event(hub)

    def wait(self) -> None:
        self._lock.release()
        try:
            self._notified.clear()
            self._notified.wait(math.inf)
        finally:
            self._lock.acquire()

    def notify_all(self) -> None:
        self._notified.set()


class Thread:
    """As `threading.Thread`: a thread of the process that starts it."""

    def __init__(self, target: Callable[[], None], **_options: Any) -> None:
        self._target = target

    def start(self) -> None:
        threads = Threads.current()
        assert threads is not None
        threads.start(self._target)

    def join(self, timeout: float | None = None) -> None:
        """Simulated processes are killed and never stop, so no caller has to wait for their threads."""
