"""The child pool starts, replaces and ends the child processes of a worker.

A child that has grown too large is recycled: it finishes what it runs, and ends. Its successor starts at once and gets
the places that are free, so that one long job keeps no other place empty.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import cast

from recruiter.clock import Clock
from recruiter.errors import ApplicationError
from recruiter.events import Events
from recruiter.log import LogOptions
from recruiter.processes.child import process_group
from recruiter.processes.child.claims import Claims
from recruiter.processes.child.main import child_main, report_application
from recruiter.processes.worker.child_handle import ChildHandle
from recruiter.programs import signal_name
from recruiter.store.connection import Target

_SWEEPS = (0.0, 0.1, 0.5, 2.0, 10.0)
"""Seconds after the death of a child at which to look for what it has left behind."""
_SPAWN_PAUSE = 0.5
"""Rest before a replacement for a child that died before it was ready."""

Spawn = Callable[[str, float], ChildHandle]
"""Starts a child for the worker of this id, at this moment."""


class ChildPool:
    """One thread owns it; others may look at `handles`."""

    def __init__(self, spawn: Spawn, size: int, clock: Clock, events: Events, added: Callable[[ChildHandle], None]):
        self.handles: list[ChildHandle] = []
        self._spawn = spawn
        self._size = size
        self._clock = clock
        self._events = events
        self._added = added
        """Called with each new child."""
        self._spawn_at = 0.0
        self._server = 0
        self._sweeps: deque[float] = deque()
        """When to look again for what dead children have left behind."""

    def replenish(self, worker: str) -> None:
        """Starts as many children as are missing. Those that are being recycled count for nobody."""
        now = self._clock.monotonic()
        if self._sweeps and now >= self._sweeps[0]:
            self._sweep(now)
        while sum(not child.recycling for child in self.handles) < self._size and now >= self._spawn_at:
            try:
                child = self._spawn(worker, now)
            except (OSError, EOFError) as error:  # no memory, too many processes: later perhaps
                self._events.emit("child.broken", pid=0, trace=f"cannot start a child: {error}")
                self._spawn_at = now + _SPAWN_PAUSE
                return
            replaced = {other.successor_of for other in self.handles}
            leaving = (other for other in self.handles if other.recycling and other not in replaced)
            child.successor_of = next(leaving, None)
            self.handles.append(child)
            self._added(child)

    def welcome(self, child: ChildHandle, tasks: frozenset[str], pid: int, server: int) -> None:
        """It is ready, and has said who it is."""
        child.tasks, child.pid, self._server = tasks, pid, server
        self._events.emit("child.started", pid=pid)

    def remove(self, child: ChildHandle) -> None:
        """It is dead, and what it leaves behind has been seen to."""
        self.handles.remove(child)
        for other in self.handles:
            if other.successor_of is child:
                other.successor_of = child.successor_of
        if child.tasks is None:
            self._spawn_at = self._clock.monotonic() + _SPAWN_PAUSE
        child.close()
        now = self._clock.monotonic()
        self._sweeps = deque(now + seconds for seconds in _SWEEPS)
        self._sweep(now)

    def _sweep(self, now: float) -> None:
        """Ends what dead children have left behind. Not all of it can be seen at once: while its parent is dying, a
        process is neither found below that one nor below the fork server."""
        while self._sweeps and self._sweeps[0] <= now:
            self._sweeps.popleft()
        if self._server:
            process_group.end_orphans(self._server, {other.process.pid or 0 for other in self.handles})


@dataclass(frozen=True)
class ForkServer:
    """Where children come from: a process that has loaded the application, and is forked."""

    context: ForkServerContext
    bootstrap: str | None
    log: LogOptions = LogOptions()
    """How children write their log."""

    @classmethod
    def open(cls, bootstrap: str | None, log: LogOptions = LogOptions()) -> ForkServer:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["recruiter.processes.child.preload"])
        os.environ["RECRUITER_SUPERVISOR"] = str(os.getpid())  # both are for preload.py
        if bootstrap is not None:
            os.environ["RECRUITER_PRELOAD"] = bootstrap
        return cls(context, bootstrap, log)

    def ask_target(self) -> Target | None:
        """Where the application keeps its jobs, if it says so. Raises ApplicationError when it cannot be loaded."""
        question, answer = self.context.Pipe(duplex=False)
        process = self.context.Process(target=report_application, args=(answer, self.bootstrap))
        try:
            _start(process)
        except (EOFError, OSError) as error:
            raise ApplicationError(
                "the fork server, the process that starts the children of this worker, was killed while the worker "
                f"started ({error}); that says nothing about the application: look for who killed it (memory may have "
                "run out), and start the worker again"
            ) from None
        finally:
            answer.close()
        try:
            target, trace = question.recv()
        except EOFError:
            process.join()
            raise ApplicationError(_ended_while_loading(process.exitcode)) from None
        finally:
            question.close()
        process.join()
        if trace is not None:
            raise ApplicationError(trace)
        return cast(Target | None, target)

    def spawn(self, worker: str, target: Target, concurrency: int, now: float) -> ChildHandle:
        """Starts one child."""
        claims = Claims(self.context)
        inbox, to_child = os.pipe()
        from_child, outbox = os.pipe()
        words, control = os.pipe()
        theirs = (
            Connection(inbox, writable=False),
            Connection(outbox, readable=False),
            Connection(words, writable=False),
        )
        given = (*theirs, claims, self.bootstrap, target, worker, concurrency, self.log)
        process = self.context.Process(target=child_main, args=given, daemon=False)
        try:
            _start(process)
        except BaseException:
            for end in (to_child, from_child, control):
                os.close(end)
            raise
        finally:
            for connection in theirs:
                connection.close()
        return ChildHandle(process, to_child, from_child, control, claims, concurrency, now)


_UNKNOWN_END = 255
"""What multiprocessing says of a process whose fork server is gone."""


def _ended_while_loading(code: int | None) -> str:
    if code is not None and code < 0:
        return (
            f"the process that loads the application was killed by {signal_name(-code)}; that says nothing about the "
            "application: look for who killed it (memory may have run out), and start again"
        )
    if code == _UNKNOWN_END:
        return (
            "the process that loads the application ended, and nobody knows how: its fork server was killed (memory "
            f"may have run out: start again), or the application ended the process with code {code}"
        )
    return f"the application cannot be loaded: it ended the process that loaded it, with code {code}"


def _start(process: BaseProcess) -> None:
    """Starts it without our __main__: multiprocessing would load the whole command line into every child."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main


_QUIET = "ignore:resource_tracker:UserWarning"


def start_resource_tracker() -> None:
    """Starts Python's resource tracker, which removes the semaphores of a worker that was killed, without its warning.

    The warning would be a bare line in a log of JSON documents, and the log has better ones. To be called before the
    first child is started: the tracker inherits the warnings that are ignored now.
    """
    sys.warnoptions.append(_QUIET)
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(_QUIET)
