"""Coroutines run for code that is not async: on the loop that waits for it, and ended before its caller goes on."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from recruiter.async_face import in_a_thread, waiting_caller
from recruiter.coroutines import Loops


def test_an_operation_runs_on_the_loop_and_its_answer_reaches_the_thread() -> None:
    async def thread() -> int:
        return threading.get_ident()

    def call() -> tuple[int, int]:
        caller = waiting_caller()
        assert caller is not None
        return threading.get_ident(), caller.on_loop(thread)

    called_in, operated_in = asyncio.run(in_a_thread(call))

    assert operated_in == threading.get_ident()
    assert called_in != operated_in


def test_a_cancelled_coroutine_waits_until_its_operation_has_ended() -> None:
    """Given a call whose operation cleans up when it is cancelled; when the coroutine is cancelled, then it continues
    after the cleaning: it may abort the transaction of its session now."""
    happened: list[str] = []

    async def operation() -> None:
        happened.append("begun")
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.05)
            happened.append("ended")

    def call() -> None:
        caller = waiting_caller()
        assert caller is not None
        caller.on_loop(operation)

    async def main() -> None:
        waiting = asyncio.create_task(in_a_thread(call))
        while not happened:
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        happened.append("continued")

    asyncio.run(main())

    assert happened == ["begun", "ended", "continued"]


def test_after_a_cancellation_no_operation_starts() -> None:
    """Given a call that has not come to its operation when the coroutine is cancelled, then the operation never
    starts."""
    cancelled, over, started = threading.Event(), threading.Event(), list[bool]()

    async def operation() -> None:
        started.append(True)

    def call() -> None:
        caller = waiting_caller()
        assert caller is not None
        cancelled.wait(10)
        try:
            caller.on_loop(operation)
        finally:
            over.set()

    async def main() -> None:
        waiting = asyncio.create_task(in_a_thread(call))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        cancelled.set()
        while not over.is_set():
            await asyncio.sleep(0.001)

    asyncio.run(main())

    assert not started


def test_ctrl_c_in_a_running_loop_ends_the_coroutine_first() -> None:
    """Given a coroutine that runs for somebody in a loop, when Ctrl-C comes, then it has ended when that is raised."""
    begun, ended = threading.Event(), threading.Event()
    main = threading.get_ident()

    async def job() -> None:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    def press_ctrl_c() -> None:
        assert begun.wait(10)
        signal.pthread_kill(main, signal.SIGINT)

    async def in_a_notebook() -> bool:
        # The loop's own thread waits for us, as in a cell of a notebook that calls `run`.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                Loops().run(job())
            return ended.is_set()
        finally:
            signal.signal(signal.SIGINT, handler)

    threading.Thread(target=press_ctrl_c).start()
    assert asyncio.run(in_a_notebook())
