"""Interrupts user code while it runs, because its time has expired or the job was cancelled.

    in an event loop                 its task is cancelled
    in the main thread of a child    a signal, which also interrupts sleeping and waiting, and whose handler raises
    in any other thread              an exception thrown into it, which arrives with its next line of Python

None of them can end code that never comes back from C; for that, the supervisor ends the process
(processes/worker/overruns.py).

Code of Recruiter that a job calls is `shielded` where it speaks to MongoDB: the interruption is raised when the call
has returned. All threads of the process share the driver's locks and connections, and an exception between two of its
instructions could leave a lock locked forever.
"""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import signal
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, Token
from datetime import timedelta
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from recruiter.domain.duration import humanize
from recruiter.errors import JobCancelled, JobTimedOut

P = ParamSpec("P")
R = TypeVar("R")

SIGNAL: signal.Signals = getattr(signal, "SIGALRM", signal.SIGTERM)  # Windows has none, and no child processes
_interrupted_by_signal: Interruptible | None = None
_enclosing: ContextVar[Interruptible | None] = ContextVar("recruiter_interruptible", default=None)
"""The job whose user code runs here."""


class Interruptible:
    """One attempt, while its user code can be interrupted. `with interruptible:` around a call,
    `awaiting` around a coroutine.

    The first interruption counts, even if it comes before the code begins. An interruption that comes when the code has
    just ended is not raised in the code that follows.
    """

    def __init__(self, by_signal: bool = False, on_interrupted: Callable[[], None] = lambda: None) -> None:
        self.error: JobTimedOut | JobCancelled | None = None
        """The interruption."""
        self._by_signal = by_signal
        self._on_interrupted = on_interrupted
        """Called when the interruption has been sent: from then on the code is responsible for ending."""
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._task: asyncio.Task[Any] | None = None
        self._before: Token[Interruptible | None] | None = None
        self._outer: Interruptible | None = None
        """The job inside which this job runs, if there is one."""
        self._shielded = False
        self._postponed = False
        """Whether it was interrupted while it was shielded."""

    @property
    def inside(self) -> bool:
        return self._thread is not None or self._task is not None

    def interrupt(self, error: JobTimedOut | JobCancelled) -> None:
        """From any thread: raises this where the code stands."""
        with self._lock:
            self.error = self.error or error
            if self._task is not None:
                self._task.get_loop().call_soon_threadsafe(self._cancel)
                return
            self._on_interrupted()
            if self._thread is not None and self._by_signal:
                signal.pthread_kill(self._thread, SIGNAL)
            elif self._shielded:
                self._postponed = True
            elif self._thread is not None:
                _throw(self._thread, ctypes.py_object(_as_class(self.error)))

    def _cancel(self) -> None:
        """In the event loop, where nothing else runs between this check and the cancellation."""
        with self._lock:
            if self._task is not None:
                self._on_interrupted()
                self._task.cancel()

    def __enter__(self) -> None:
        global _interrupted_by_signal
        with self._lock:
            if self.error is not None:
                raise self.error
            self._thread = threading.get_ident()
            self._outer = _enclosing.get()
            self._before = _enclosing.set(self)
            if self._by_signal:
                _interrupted_by_signal = self  # from here on the handler may raise

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """From here on nothing is raised, even if an interruption was raised in `__exit__` itself."""
        while not self._try_to_leave():
            pass  # an interruption arrived in here: too late

    def _try_to_leave(self) -> bool:
        """Makes sure that no interruption can arrive; false if one was raised in here, which ends it at any line."""
        global _interrupted_by_signal
        try:
            if self._by_signal:
                _interrupted_by_signal = None
            with self._lock:
                thread, self._thread = self._thread, None
            if self._before is not None:
                before, self._before = self._before, None
                _enclosing.reset(before)
            if thread is not None and self.error is not None and not self._by_signal:
                _throw(thread, None)  # takes back an interruption that has not arrived
        except (JobTimedOut, JobCancelled):
            return False
        return True

    @property
    def reaches_this_thread(self) -> bool:
        """Whether its own interruption, or that of a job around it, may be raised in the calling code."""
        outer = self._outer
        return self._thread == threading.get_ident() or (outer is not None and outer.reaches_this_thread)

    def shield(self, call: Callable[[], R]) -> R:
        """Returns the value of the call. An interruption that comes meanwhile is raised afterwards."""
        if self._outer is not None:
            return self._outer.shield(lambda: self._hold_back_own(call))
        return self._hold_back_own(call)

    def _hold_back_own(self, call: Callable[[], R]) -> R:
        """`shield` against its own interruption only; `shield` adds those of the jobs around it. Where none can be
        raised, nothing is held back: in a thread without the job, in a coroutine, and inside another shield."""
        if self._shielded or self._thread != threading.get_ident():
            return call()
        try:
            with self._lock:
                self._shielded = True  # from here on an interruption is only noted, in `_postponed`
            # An earlier one arrives here at the latest: Python checks at the start of each function.
            return call()
        finally:
            with self._lock:
                self._shielded = False  # first: from here on the handler of signals raises by itself
                postponed, self._postponed = self._postponed, False
            if postponed and self.error is not None:
                raise self.error

    def by_signal(self) -> None:
        """In the handler of the signal: raises the interruption, now or at the end of the shielded call."""
        if self._shielded:
            self._postponed = True
        elif self.error is not None:
            raise self.error

    async def awaiting(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Awaits the coroutine of a job. An interruption cancels the task, and is raised here as itself."""
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            if self.error is not None:
                coroutine.close()
                raise self.error
            self._task = task
        self._outer = _enclosing.get()
        before = _enclosing.set(self)
        try:
            return await coroutine
        except asyncio.CancelledError:
            error: BaseException | None = getattr(self, "error")  # noqa: B009 – it may have changed since
            if error is None:
                raise  # not our cancellation
            task.uncancel()
            raise error from None
        finally:
            _enclosing.reset(before)
            with self._lock:
                self._task = None


def shielded(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a function inside which no interruption may be raised: it is raised when the function has returned."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        job = _enclosing.get()
        if job is None:
            return function(*args, **kwargs)
        return job.shield(lambda: function(*args, **kwargs))

    return call


def may_be_interrupted() -> bool:
    """Whether this code may be interrupted at any instruction, because a job runs it in its thread."""
    job = _enclosing.get()
    return job is not None and job.reaches_this_thread


def pass_on() -> None:
    """At the end of a job that ran inside another job: raises the interruption of the outer job, which the inner job
    may have caught as its own failure."""
    outer = _enclosing.get()
    if outer is not None and outer.inside and outer.error is not None:
        raise outer.error


def _throw(thread: int, error: ctypes.py_object[type[BaseException]] | None) -> None:
    """Raises the error in this thread, with its next line of Python; None takes back an error that has not arrived."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)


def _as_class(error: BaseException) -> type[BaseException]:
    """A class that makes errors like this one, where only a class can be thrown."""
    cls = type(error)

    def __init__(self: BaseException) -> None:
        BaseException.__init__(self, *error.args)
        self.__dict__.update(error.__dict__)

    names = {"__init__": __init__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (cls,), names)


def obey_signals() -> None:
    """For a process of Recruiter, in its main thread: from now on an Interruptible may be `by_signal`.

    Call it before each job: an earlier job may have set its own handler, blocked the signal or set an alarm.
    """
    if signal.getsignal(SIGNAL) is not _raise_interruption:
        signal.signal(SIGNAL, _raise_interruption)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})


def _raise_interruption(_number: int, _frame: FrameType | None) -> None:
    interruptible = _interrupted_by_signal
    if interruptible is not None and interruptible.error is not None:
        interruptible.by_signal()


def time_is_over(timeout: float) -> JobTimedOut:
    return JobTimedOut(f"the job's time of {humanize(timedelta(seconds=timeout))} is over")


# -- threads that a job can start ----------------------------------------------------------------------------------


class ServiceThread:
    """A thread that works for all callers of a process and belongs to none of them. It runs `work` as long as there is
    something to do; `work` returns when there is nothing, for now.

    A caller may be a job, and a job may be interrupted at any instruction. If that happens while it starts a thread,
    Python may throw the exception into the new thread instead, which then dies before it has begun, and
    `threading.Thread.start` waits for it forever. So a caller starts the thread without waiting, and checks later
    whether it is alive.
    """

    def __init__(self, work: Callable[[], None], pending: Callable[[], bool]) -> None:
        self._work = work
        self._pending = pending
        self._alive = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether it works, or waits for work."""
        return self._alive.locked()

    def ensure(self) -> None:
        """Call it when there is something to do, and again if that has not been done for a while."""
        if not self._alive.locked():
            _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        # Callers first leave their work and then check the thread; the thread first stops and then checks for work. So
        # either sees the other.
        while self._alive.acquire(blocking=False):
            try:
                self._work()
            finally:
                self._alive.release()
            if not self._pending():
                return
