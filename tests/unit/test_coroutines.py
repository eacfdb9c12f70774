"""Coroutines that are run for code that is not async itself, also where a loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Generator
from typing import Any

import pytest

from recruiter.coroutines import Loops, adrive, drive


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


def steps() -> Generator[int, Any, list[object]]:
    """Wants 1 and 2 done; an error of one of them is an answer too."""
    answers: list[object] = []
    for wanted in (1, 2):
        try:
            answers.append((yield wanted))
        except ZeroDivisionError as error:
            answers.append(type(error))
    return answers


class TestDriving:
    def test_what_a_generator_yields_is_done_and_answered(self) -> None:
        assert drive(steps(), lambda wanted: 10 * wanted) == [10, 20]

    def test_an_error_is_thrown_into_it(self) -> None:
        assert drive(steps(), lambda wanted: 1 // (wanted - 1)) == [ZeroDivisionError, 1]

    def test_an_error_that_it_does_not_catch_leaves(self) -> None:
        with pytest.raises(IndexError):
            drive(steps(), lambda wanted: ()[wanted])

    def test_an_error_may_be_thrown_as_another(self) -> None:
        def fail(_wanted: int) -> None:
            raise GeneratorExit

        assert drive(steps(), fail, lambda _: ZeroDivisionError()) == [ZeroDivisionError, ZeroDivisionError]

    def test_the_same_is_awaited(self) -> None:
        async def do(wanted: int) -> int:
            await asyncio.sleep(0)
            return 1 // (wanted - 1)

        assert asyncio.run(adrive(steps(), do)) == [ZeroDivisionError, 1]
