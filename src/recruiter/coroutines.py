"""One implementation for plain and for async code.

What must work in both is a generator. It yields what it wants done, and gets the answer, or the error thrown into it.
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
    """Runs it to its end; returns what it returns. `do` does what it yields; an error of `do` is thrown into it."""
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
    """Like `drive`; what `do` returns is awaited."""
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
    def __init__(self) -> None:
        self._here = threading.local()
        self._lock = threading.Lock()
        self._all: list[asyncio.Runner] = []

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What the coroutine returns or raises. It sees the context of the caller, and changes nothing in it."""
        if _in_a_loop():
            return self._elsewhere(coroutine)
        return self._run(coroutine, contextvars.copy_context())

    def close(self) -> None:
        with self._lock:
            runners, self._all = self._all, []
        self._here = threading.local()
        if not runners:
            return
        if _in_a_loop():  # where no other loop can be run, not even to be closed
            thread = threading.Thread(target=_close, args=(runners,))
            thread.start()
            thread.join()
        else:
            _close(runners)

    def _run(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:
        return self._finish(self._task(coroutine, context))

    def _task(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> asyncio.Task[Any]:
        return self._runner().get_loop().create_task(coroutine, context=context)

    def _finish(self, task: asyncio.Task[Any]) -> Any:
        loop = task.get_loop()
        while not task.done():
            try:
                return loop.run_until_complete(task)
            except SystemExit:
                if task.done():
                    raise
                # Of a task that an earlier job started and left alone: it is nobody's but its own.
            except KeyboardInterrupt:
                task.cancel()
                raise
        return task.result()

    def _elsewhere(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """This thread's loop is running, and waits for us: the coroutine needs another thread.

        An interruption of this thread, such as Ctrl-C, interrupts the coroutine too: it must not go on when its job is
        another worker's.
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
            with suppress(RuntimeError):  # its loop is closed: it has ended in this moment
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
