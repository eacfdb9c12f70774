"""Event loops for code that is not async itself and has to run a coroutine: one loop a thread, kept for the next."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from typing import Any


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
        loop = self._runner().get_loop()
        task = loop.create_task(coroutine, context=context)
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
        """This thread's loop is running, and waits for us: the coroutine needs another thread."""
        context = contextvars.copy_context()
        outcome: list[Any] = []
        error: list[BaseException] = []

        def run() -> None:
            loops = Loops()
            try:
                outcome.append(loops._run(coroutine, context))
            except BaseException as raised:
                error.append(raised)
            finally:
                loops.close()

        thread = threading.Thread(target=run, name="coroutine")
        thread.start()
        thread.join()
        if error:
            raise error[0]
        return outcome[0]

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
