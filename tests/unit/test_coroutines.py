"""Coroutines that are run for code that is not async itself, also where a loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Generator
from typing import Any

import pytest

from recruiter.coroutines import Loops


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
