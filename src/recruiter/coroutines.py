"""One implementation for plain and for async code.

Code that must work in both is a generator. It yields operations, and receives the answer of each, or its error.
`drive` runs such a generator from plain code, `adrive` from a coroutine. `Loops` runs a coroutine from code that is not
async: each thread has one event loop, and keeps it for the next coroutine.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
Y = TypeVar("Y")


def _itself(error: BaseException) -> BaseException:
    return error


def drive(
    steps: Generator[Y, Any, T], do: Callable[[Y], Any], as_thrown: Callable[[BaseException], BaseException] = _itself
) -> T:
    """Runs the generator to its end and returns its value. `do` executes each operation; its error is thrown into the
    generator."""
    try:
        wanted = next(steps)
        while True:
            try:
                answer = do(wanted)
            except BaseException as error:
                wanted = steps.throw(as_thrown(error))
            else:
                wanted = steps.send(answer)
    except StopIteration as finished:
        returned: T = finished.value
        return returned


async def adrive(
    steps: Generator[Y, Any, T],
    do: Callable[[Y], Awaitable[Any]],
    as_thrown: Callable[[BaseException], BaseException] = _itself,
) -> T:
    """Like `drive`, with a `do` that is awaited."""
    try:
        wanted = next(steps)
        while True:
            try:
                answer = await do(wanted)
            except BaseException as error:
                wanted = steps.throw(as_thrown(error))
            else:
                wanted = steps.send(answer)
    except StopIteration as finished:
        returned: T = finished.value
        return returned


class Loops:
    """An event loop for each thread that runs coroutines, used for one coroutine after another."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._lock = threading.Lock()
        self._all: list[asyncio.Runner] = []

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Returns or raises the outcome of the coroutine, which runs in a copy of the caller's context."""
        if _in_a_loop():
            return self._run_in_other_thread(coroutine)
        return self._finish(self._task(coroutine, contextvars.copy_context()))

    def close(self) -> None:
        """Closes the event loops of all threads."""
        with self._lock:
            runners, self._all = self._all, []
        self._here = threading.local()
        if not runners:
            return
        if _in_a_loop():  # no other loop can run in this thread, not even to be closed
            thread = threading.Thread(target=_close, args=(runners,))
            thread.start()
            thread.join()
        else:
            _close(runners)

    def _task(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> asyncio.Task[Any]:
        return self._runner().get_loop().create_task(coroutine, context=context)

    def _finish(self, task: asyncio.Task[Any]) -> Any:
        """Runs the loop of this thread until the task has ended; returns or raises its outcome."""
        loop = task.get_loop()
        while not task.done():
            try:
                return loop.run_until_complete(task)
            except SystemExit:
                if task.done():
                    raise
                # A task that an earlier job left behind has called exit(): ignore it.
            except KeyboardInterrupt:
                task.cancel()
                raise
        return task.result()

    def _run_in_other_thread(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs the coroutine in a new thread, because the loop of this thread is running, and waits for this call.

        An interruption of this thread, such as Ctrl-C, interrupts the coroutine too: it must not continue when another
        worker has its job.
        """
        context = contextvars.copy_context()
        loops, answer = Loops(), Future[Any]()
        task = loops._task(coroutine, context)

        def run() -> None:
            try:
                outcome = partial(answer.set_result, loops._finish(task))
            except BaseException as raised:
                outcome = partial(answer.set_exception, raised)
            loops.close()
            outcome()

        thread = threading.Thread(target=run, name="coroutine")
        try:
            thread.start()
            wait([answer])  # not for the thread: once that was interrupted, Python believes that the thread has ended
        except BaseException:
            with suppress(RuntimeError):  # its loop is closed: it has just ended
                task.get_loop().call_soon_threadsafe(task.cancel)
            if thread.ident is not None:
                wait([answer])
            raise
        return answer.result()

    def _runner(self) -> asyncio.Runner:
        runner: asyncio.Runner | None = getattr(self._here, "runner", None)
        if runner is None:
            runner = self._here.runner = asyncio.Runner()
            with self._lock:
                self._all.append(runner)
        return runner


def _close(runners: list[asyncio.Runner]) -> None:
    for runner in runners:
        loop = runner.get_loop()
        if not loop.is_running() and not loop.is_closed():  # a thread left behind by a job ends with the process
            runner.close()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
