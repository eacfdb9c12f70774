"""The child pool starts, replaces and ends the child processes of a worker.

A child that has grown too large is recycled: it finishes its running jobs, and ends. Its successor starts immediately
and gets the free places, so that one long job keeps no other place empty.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from types import ModuleType

import psutil

from recruiter.clock import Clock
from recruiter.errors import ApplicationError, RecruiterError
from recruiter.events import Events
from recruiter.log import LogOptions
from recruiter.processes.child import process_group
from recruiter.processes.child.claims import Claims
from recruiter.processes.child.main import child_main, report_application, report_ends
from recruiter.processes.worker.child_handle import ChildHandle, Process
from recruiter.programs import signal_name
from recruiter.store.connection import Target

_SWEEPS = (0.0, 0.1, 0.5, 2.0, 10.0)
"""Seconds after the death of a child at which the worker searches for its orphans."""
_SPAWN_PAUSE = 0.5
"""Rest before a replacement for a child that died before it was ready."""
_REPORTED_WITHIN_SECONDS = 20.0
"""Time in which the instruments of the application must have sent their reports about ended jobs."""
_STARTED_WITHIN_SECONDS = 1.0
"""Longest time that the worker waits for the fork server. It may be loading the application, or stand still."""

Spawn = Callable[[str, float], ChildHandle]
"""Starts a child for the worker of this id, now."""


class ChildPool:
    """Replaces dead children and ends their orphans. One thread owns it; others may read `handles`."""

    def __init__(
        self,
        spawn: Spawn,
        size: int,
        clock: Clock,
        events: Events,
        added: Callable[[ChildHandle], None],
        reporters: Reporters | None = None,
    ):
        self.handles: list[ChildHandle] = []
        self._spawn = spawn
        self._size = size
        self._clock = clock
        self._events = events
        self._added = added
        """Called with each new child."""
        self._reporters = reporters or Reporters()
        self._spawn_at = 0.0
        self._server = 0
        self._sweeps: deque[float] = deque()
        """When to look again for what dead children have left behind."""
        self._unseen: list[Process] = []
        """Processes whose end the fork server has not reported."""
        self._told_of_server = False

    def replenish(self, worker: str) -> None:
        """Starts the missing children. A child that is being recycled counts as missing: a new one replaces it, and
        leaves places to the jobs that still run in it."""
        now = self._clock.monotonic()
        if self._sweeps and now >= self._sweeps[0]:
            self._end_orphans(now)
        while sum(not child.recycling for child in self.handles) < self._size and now >= self._spawn_at:
            try:
                child = self._spawn(worker, now)
            except (OSError, EOFError) as error:  # no memory, too many processes: later perhaps
                self._spawn_at = now + _SPAWN_PAUSE
                if isinstance(error, TimeoutError):
                    self._handle_silent_server(error)
                else:
                    self._events.emit("child.broken", pid=0, trace=f"cannot start a child: {error}")
                return
            self._told_of_server = False
            replaced = {other.replaces for other in self.handles}
            leaving = (other for other in self.handles if other.recycling and other not in replaced)
            child.replaces = next(leaving, None)
            self.handles.append(child)
            self._added(child)

    def welcome(self, child: ChildHandle, tasks: frozenset[str], pid: int, server: int) -> None:
        """It is ready, and has sent its identity."""
        child.tasks, child.pid, self._server = tasks, pid, server
        self._events.emit("child.started", pid=pid)

    def remove(self, child: ChildHandle) -> None:
        """Forgets a dead child, whose jobs have been handled. If it was never ready, the next one starts later."""
        self.handles.remove(child)
        for other in self.handles:
            if other.replaces is child:
                other.replaces = child.replaces
        if child.tasks is None:
            self._spawn_at = self._clock.monotonic() + _SPAWN_PAUSE
        child.close()
        if child.process.exitcode is None:
            self._unseen.append(child.process)
        now = self._clock.monotonic()
        self._sweeps = deque(now + seconds for seconds in _SWEEPS)
        self._end_orphans(now)

    def _handle_silent_server(self, error: TimeoutError) -> None:
        """Reports once that the fork server does not answer. If the server was stopped and no job runs, it is killed,
        with its children: the next child comes from a new one."""
        if not self._told_of_server:
            self._told_of_server = True
            self._events.emit("child.broken", pid=0, trace=f"cannot start a child: {error}")
        server = self._own_server()
        with contextlib.suppress(psutil.Error):  # it has just ended
            if (
                server is not None
                and server.status() == psutil.STATUS_STOPPED
                and not any(c.load for c in self.handles)
            ):
                server.kill()

    def end_server(self) -> None:
        """Ends a frozen fork server, which would never report the end of its children."""
        server = self._own_server()
        with contextlib.suppress(psutil.Error):  # it has just ended
            if server is not None:
                server.kill()

    def _own_server(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            server = psutil.Process(self._server)
            if self._server and server.ppid() == os.getpid():
                return server
        return None

    def close(self) -> None:
        """Call this when all children have ended. Python waits at its exit until the end of each child has been
        reported."""
        if any(process.exitcode is None for process in self._unseen):
            self.end_server()

    def _end_orphans(self, now: float) -> None:
        """Ends the processes that the jobs of dead children have left behind. It is repeated (`_sweeps`), because one
        pass may miss some: while its parent is dying, a process is found neither below it nor below the fork server."""
        reporters = self._reporters.pids()
        if reporters is None:
            return  # one is being started, and its pid is not known yet: the next turn sweeps
        while self._sweeps and self._sweeps[0] <= now:
            self._sweeps.popleft()
        if self._server:
            process_group.end_orphans(self._server, {other.process.pid or 0 for other in self.handles} | reporters)


@dataclass(frozen=True)
class ForkServer:
    """The fork server: a process that has loaded the application. Children are forked from it."""

    context: ForkServerContext
    bootstrap: str | None
    log: LogOptions = LogOptions()
    """How children write their log."""
    starter: _Starter = field(default_factory=lambda: _Starter())
    reporters: Reporters = field(default_factory=lambda: Reporters())

    @classmethod
    def open(cls, bootstrap: str | None, log: LogOptions = LogOptions()) -> ForkServer:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["recruiter.processes.child.preload"])
        os.environ["RECRUITER_SUPERVISOR"] = str(os.getpid())  # both are for preload.py
        if bootstrap is not None:
            os.environ["RECRUITER_PRELOAD"] = bootstrap
        return cls(context, bootstrap, log)

    def ask_target(self) -> Target | None:
        """Loads the application in a separate process; returns its target, if it names one. Raises ApplicationError
        when it cannot be loaded, and InvalidTarget."""
        question, answer = self.context.Pipe(duplex=False)
        process = self.context.Process(target=report_application, args=(answer, self.bootstrap))
        try:
            _start(process)
        except (EOFError, OSError) as error:
            raise ApplicationError(
                "the fork server, the process that starts the children of this worker, was killed while the worker "
                f"started ({error}); the application is not to blame: find out who killed it (memory may have "
                "run out), and start the worker again"
            ) from None
        finally:
            answer.close()
        try:
            target_or_error: Target | RecruiterError | None = question.recv()
        except EOFError:
            process.join()
            raise ApplicationError(_ended_while_loading(process.exitcode)) from None
        finally:
            question.close()
        process.join()
        if isinstance(target_or_error, RecruiterError):
            raise target_or_error
        return target_or_error

    def report(self, target: Target, jobs: Sequence[bytes]) -> None:
        """Reports the ends of these jobs to the instruments of the application, in a separate process, and waits
        until it has ended. Call it from one thread only."""
        given = (self.bootstrap, target, self.log, list(jobs))
        process = self.context.Process(target=report_ends, args=given, daemon=True)
        with self.reporters.starting:
            _start(process)
            self.reporters.pid = process.pid
        process.join(_REPORTED_WITHIN_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join(_STARTED_WITHIN_SECONDS)
        self.reporters.pid = None

    def spawn(self, worker: str, target: Target, concurrency: int, now: float) -> ChildHandle:
        """Starts one child. Raises TimeoutError if the fork server does not answer; then try again."""
        return self.starter.start(worker, lambda: self._spawn(worker, target, concurrency, now))

    def _spawn(self, worker: str, target: Target, concurrency: int, now: float) -> ChildHandle:
        claims = Claims(self.context)
        inbox, to_child = os.pipe()
        from_child, outbox = os.pipe()
        words, control = os.pipe()
        child_ends = (
            Connection(inbox, writable=False),
            Connection(outbox, readable=False),
            Connection(words, writable=False),
        )
        given = (*child_ends, claims, self.bootstrap, target, worker, concurrency, self.log)
        process = self.context.Process(target=child_main, args=given, daemon=False)
        try:
            _start(process)
        except BaseException:
            for end in (to_child, from_child, control):
                os.close(end)
            raise
        finally:
            for connection in child_ends:
                connection.close()
        return ChildHandle(process, to_child, from_child, control, claims, concurrency, now)


class Reporters:
    """The process that reports ends, if there is one: the sweep for orphans must leave it alone."""

    def __init__(self) -> None:
        self.starting = threading.Lock()
        self.pid: int | None = None

    def pids(self) -> set[int] | None:
        """None while a process is being started."""
        if not self.starting.acquire(blocking=False):
            return None
        try:
            return set() if self.pid is None else {self.pid}
        finally:
            self.starting.release()


class _Starter:
    """Starts children in a thread: a fork server that stands still must not stop its caller."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._worker = ""
        self._started: list[ChildHandle | BaseException] = []

    def start(self, worker: str, spawn: Callable[[], ChildHandle]) -> ChildHandle:
        """Calls `spawn`, returns its child. Raises TimeoutError if the fork server does not answer soon; then a later
        call returns that child."""
        if self._thread is None:
            forkserver.ensure_running()  # here: it ends with the thread that has started it
            self._worker, self._started = worker, []
            self._thread = threading.Thread(target=self._run, args=(spawn,), name="start", daemon=True)
            self._thread.start()
            self._thread.join(_STARTED_WITHIN_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError("the fork server, the process that starts the children of this worker, does not answer")
        self._thread = None
        (child,) = self._started
        if isinstance(child, BaseException):
            raise child
        if self._worker != worker:  # it was started for an expired registration
            child.kill()
            child.close()
            return self.start(worker, spawn)
        return child

    def _run(self, spawn: Callable[[], ChildHandle]) -> None:
        try:
            self._started.append(spawn())
        except BaseException as error:
            self._started.append(error)


_UNKNOWN_END = 255
"""The exit code that multiprocessing reports when the fork server has ended."""


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
    with _starting:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            process.start()
        finally:
            sys.modules["__main__"] = main


_starting = threading.Lock()
"""Held while `__main__` is another module."""


_QUIET = "ignore:resource_tracker:UserWarning"


def start_resource_tracker() -> None:
    """Starts Python's resource tracker, which removes the semaphores of a worker that was killed, without its warning.

    The warning would be a bare line in a log of JSON documents, and the log has better ones. Call this before the
    first child is started: the tracker inherits the warnings that are ignored now.
    """
    sys.warnoptions.append(_QUIET)
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(_QUIET)
