"""Ending user code from inside: when its time is over, JobTimedOut is raised where it stands.

    in the main thread of a child    an alarm signal, which also interrupts sleeping and waiting
    in any other thread              an exception thrown into it, which arrives with its next line of Python
    in an event loop                 asyncio's own timeout

None of them can end code that never comes back from C; for that, the supervisor ends the process (processes/floor.py).
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

from recruiter.domain.duration import humanize
from recruiter.errors import JobTimedOut


def time_is_over(timeout: float) -> JobTimedOut:
    return JobTimedOut(f"the job's time of {humanize(timedelta(seconds=timeout))} is over")


@contextmanager
def alarm(timeout: float) -> Iterator[None]:
    """For the main thread of a process that is ours: nobody else uses its alarm."""
    inside = True

    def ring(_number: int, _frame: FrameType | None) -> None:
        if inside:
            raise time_is_over(timeout)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def throw(timeout: float) -> Iterator[None]:
    """For any thread of any process."""
    lock = threading.Lock()
    inside = True
    thread = threading.get_ident()

    def interrupt() -> None:
        with lock:
            if inside:
                _throw_into(thread, JobTimedOut)

    timer = threading.Timer(timeout, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    except JobTimedOut as error:
        error.args = error.args or time_is_over(timeout).args  # it was thrown as a class, without words
        raise
    finally:
        with lock:
            inside = False
        timer.cancel()


def _throw_into(thread: int, exception: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))
