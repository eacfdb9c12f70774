"""Reaching user code from outside while it runs: its time is over, or somebody has cancelled it.

    in an event loop                 its task is cancelled
    in the main thread of a child    a signal, which also interrupts sleeping and waiting, and whose handler raises
    in any other thread              an exception thrown into it, which arrives with its next line of Python

None of them can end code that never comes back from C; for that, the supervisor ends the process
(processes/worker/overruns.py).
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import threading
from collections.abc import Coroutine
from datetime import timedelta
from types import FrameType
from typing import Any

from recruiter.domain.duration import humanize
from recruiter.errors import JobCancelled, JobTimedOut

SIGNAL = signal.SIGALRM
_reached_by_signal: Reach | None = None


class Reach:
    """One attempt, while its user code can be interrupted. `with reach:` around a call, `awaiting` around a coroutine.

    The first interruption counts, and it also counts if it comes before the code begins.
    """

    def __init__(self, by_signal: bool = False) -> None:
        self.error: JobTimedOut | JobCancelled | None = None
        """What it was interrupted with."""
        self._by_signal = by_signal
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._task: asyncio.Task[Any] | None = None

    def interrupt(self, error: JobTimedOut | JobCancelled) -> None:
        """From any thread: raises this where the code stands."""
        with self._lock:
            self.error = self.error or error
            if self._task is not None:
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
            elif self._thread is not None and self._by_signal:
                signal.pthread_kill(self._thread, SIGNAL)
            elif self._thread is not None:
                thread, thrown = ctypes.c_ulong(self._thread), ctypes.py_object(_as_class(self.error))
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, thrown)

    def __enter__(self) -> None:
        global _reached_by_signal
        with self._lock:
            if self.error is not None:
                raise self.error
            self._thread = threading.get_ident()
            if self._by_signal:
                _reached_by_signal = self  # from here on the handler may raise

    def __exit__(self, *_: object) -> None:
        global _reached_by_signal
        if self._by_signal:
            _reached_by_signal = None
        with self._lock:
            self._thread = None

    async def awaiting(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            if self.error is not None:
                coroutine.close()
                raise self.error
            self._task = task
        try:
            return await coroutine
        except asyncio.CancelledError:
            error: BaseException | None = getattr(self, "error")  # noqa: B009 – it may have changed since
            if error is None:
                raise  # somebody else's
            task.uncancel()
            raise error from None
        finally:
            with self._lock:
                self._task = None


def _as_class(error: BaseException) -> type[BaseException]:
    """A class that makes errors like this one, where only a class can be thrown."""
    cls = type(error)

    def __init__(self: BaseException) -> None:
        BaseException.__init__(self, *error.args)
        self.__dict__.update(error.__dict__)

    names = {"__init__": __init__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (cls,), names)


def obey_signals() -> None:
    """For a process that is ours, in its main thread: from now on a Reach may be `by_signal`."""
    signal.signal(SIGNAL, _ring)


def _ring(_number: int, _frame: FrameType | None) -> None:
    reach = _reached_by_signal
    if reach is not None and reach.error is not None:
        raise reach.error


def time_is_over(timeout: float) -> JobTimedOut:
    return JobTimedOut(f"the job's time of {humanize(timedelta(seconds=timeout))} is over")
