"""The async face: every call that talks to MongoDB also exists with an `a` in front, for event loops.

There is one implementation. The async call runs it in a thread, so the loop is not blocked. Only `aenqueue`, which may
be called thousands of times concurrently, needs no thread: the thread that writes for all callers answers the coroutine
(`steps/enqueue.py`). Cancelling the awaiting task stops waiting; it does not stop a call that has begun.

A session of an AsyncMongoClient can only be used on the loop of its client. The call in the thread makes each operation
of such a session there (`Caller`).

Calls that only talk to MongoDB share a pool of threads. A call that runs user code gets a separate thread: user code
may take long, and may itself await an async call, so it must not occupy the threads that other calls wait for.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, update_wrapper
from inspect import signature
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_threads: ThreadPoolExecutor | None = None
_runs_user_code: list[None] = []
"""One for each open block of `every_call_runs_user_code`."""


class Caller:
    """The coroutine that waits for a call in a thread. Until it is cancelled, the call can use its loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def on_loop(self, make: Callable[[], Awaitable[Any]]) -> Any:
        """Awaits an operation on the loop, and returns its answer to the thread."""

        async def operation() -> Any:
            self._task = asyncio.current_task()
            if self._cancelled:
                raise asyncio.CancelledError
            return await make()

        return asyncio.run_coroutine_threadsafe(operation(), self.loop).result()

    async def cancel(self) -> None:
        """Returns when no operation runs on the loop. No other one starts: the coroutine may close its session now."""
        self._cancelled = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])


_caller: ContextVar[Caller | None] = ContextVar("recruiter_caller", default=None)


def waiting_caller() -> Caller | None:
    """The coroutine that waits for this call; None for a plain call."""
    return _caller.get()


async def in_a_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs the call without blocking the loop. The pool is larger than that of asyncio: its threads only wait."""
    global _threads
    caller, context = Caller(), contextvars.copy_context()
    context.run(_caller.set, caller)
    try:
        if _runs_user_code:
            return await context.run(lambda: in_its_own_thread(call, *args, **kwargs))
        if _threads is None:
            _threads = ThreadPoolExecutor(64, thread_name_prefix="recruiter")
        return await caller.loop.run_in_executor(_threads, partial(context.run, call, *args, **kwargs))
    except asyncio.CancelledError:
        await caller.cancel()
        raise


def calls_run_user_code() -> bool:
    """Whether a block of `every_call_runs_user_code` is open, in any thread."""
    return bool(_runs_user_code)


@contextmanager
def every_call_runs_user_code() -> Iterator[None]:
    """Inside this block each call gets a separate thread, because even storing a job runs user code."""
    _runs_user_code.append(None)
    try:
        yield
    finally:
        _runs_user_code.pop()


def in_its_own_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    """Runs a call that may take long, or runs user code. Cancelling does not stop it."""
    answer: Future[R] = Future()
    answer.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            answer.set_result(context.run(call, *args, **kwargs))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="recruiter", daemon=True).start()
    return asyncio.wrap_future(answer)


async def finishing_first(call: Callable[[], R], stop: Callable[[], None]) -> R:
    """Runs user code in a separate thread. If the awaiting task is cancelled, `stop` is called; the cancellation
    continues when the call has returned."""
    running = in_its_own_thread(call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([running])
        raise


class StopEvent(Protocol):
    """A `threading.Event`, or any object with `is_set`."""

    def is_set(self) -> bool: ...


class Ending:
    """A stop event: set when the event of the caller is set, or when the task that awaits the call is cancelled."""

    def __init__(self, stop: StopEvent | None = None) -> None:
        self._stop = stop
        self._cancelled = threading.Event()

    def set(self) -> None:
        self._cancelled.set()

    def is_set(self) -> bool:
        return self._cancelled.is_set() or (self._stop is not None and self._stop.is_set())


def async_face(call: Callable[P, R], *, runs_user_code: bool = False) -> Callable[P, Coroutine[Any, Any, R]]:
    """The same call for `await`: `afind = async_face(find)`."""

    async def awaited(*args: P.args, **kwargs: P.kwargs) -> R:
        thread = in_its_own_thread if runs_user_code else in_a_thread
        return await thread(call, *args, **kwargs)

    return named_like(awaited, call)


def named_like(
    awaited: Callable[P, Coroutine[Any, Any, R]], call: Callable[..., Any]
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Gives an async call that is written by hand the name, the parameters and the docstring of its plain call."""
    update_wrapper(awaited, call)
    awaited.__name__ = f"a{call.__name__}"
    awaited.__qualname__ = call.__qualname__.removesuffix(call.__name__) + awaited.__name__
    session = " The session may be of an AsyncMongoClient." if "session" in signature(call).parameters else ""
    awaited.__doc__ = f"Like `{call.__name__}`, without blocking the event loop.{session}"
    return awaited


def _after_fork() -> None:
    """A forked child has none of its parent's threads."""
    global _threads
    _threads = None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
