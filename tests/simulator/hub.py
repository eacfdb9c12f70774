"""Virtual time: many processes take turns in one thread, and a seed decides everything.

Each thread of each process is a greenlet. It runs until it waits, for a call to the server or for time to pass; then
the next one in virtual time runs. Nothing reads a real clock, so a seed replays exactly.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from contextlib import suppress

from greenlet import getcurrent, greenlet


class ProcessDied(BaseException):
    """This process was killed: nothing in it goes on."""


class Hub:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._queue: list[tuple[float, int, greenlet, Threads | None]] = []
        self._numbers = itertools.count()
        self._until = 0.0
        self._started: list[greenlet] = []
        self._main = getcurrent()

    def monotonic(self) -> float:
        return self.now

    def chance(self, probability: float) -> bool:
        return probability > 0.0 and self.random.random() < probability

    def start(self, function: Callable[[], None], threads: Threads | None = None, after: float = 0.0) -> greenlet:
        thread = greenlet(function, self._main)
        self._started.append(thread)
        if threads is not None:
            threads.alive.append(thread)
        self._enqueue(after, thread, threads)
        return thread

    def _enqueue(self, after: float, thread: greenlet, threads: Threads | None) -> None:
        heapq.heappush(self._queue, (self.now + after, next(self._numbers), thread, threads))

    def sleep(self, seconds: float) -> None:
        """Lets the others go on until so much time has passed."""
        thread = getcurrent()
        threads: Threads | None = getattr(thread, "threads", None)
        at = self.now + seconds if seconds > 0.0 else self.now
        first = not self._queue or at < self._queue[0][0]
        if first and at <= self._until and (threads is None or threads.frozen_until <= at):
            self.now = at  # nobody else is due before: it goes on by itself
            return
        heapq.heappush(self._queue, (at, next(self._numbers), thread, threads))
        self._main.switch()

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        self._until = until
        while self._queue and not done():
            at, number, thread, threads = heapq.heappop(self._queue)
            if at > until:
                heapq.heappush(self._queue, (at, number, thread, threads))
                self.now = until
                return
            if thread.dead or (threads is not None and threads.dead):
                continue
            if threads is not None and threads.frozen_until > at:
                heapq.heappush(self._queue, (threads.frozen_until, number, thread, threads))
                continue
            self.now = max(self.now, at)
            thread.threads = threads
            thread.switch()

    def close(self) -> None:
        """Ends every thread: one that waits holds on to its whole world, and no garbage collector sees that."""
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
        self.alive: list[greenlet] = []
        self.frozen_until = 0.0
        self.dead = False
        self.on_death: Callable[[], None] = lambda: None

    def start(self, function: Callable[[], None]) -> greenlet:
        def run() -> None:
            with suppress(ProcessDied):
                function()

        return self._hub.start(run, self)

    def freeze(self, seconds: float) -> None:
        self.frozen_until = max(self.frozen_until, self._hub.now + seconds)

    def die(self) -> None:
        """Every thread is unwound; none of them can call anything any more. Returns, unless one of them calls it."""
        if not self.dead:
            self.dead = True
            self.on_death()
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
