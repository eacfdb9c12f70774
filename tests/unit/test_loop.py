"""The loop of every process: it says that MongoDB is back when MongoDB has answered, and not before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from recruiter.errors import StoreUnreachable
from recruiter.events import Event, Events
from recruiter.processes.loop import Loop, Stop
from recruiter.store.errors import store_call


@store_call
def answered() -> None: ...


def unanswered() -> None:
    raise StoreUnreachable("MongoDB does not answer")


def nothing_to_do() -> None: ...


def told(*steps: Callable[[], None]) -> list[str]:
    """What a loop says while it takes these steps."""
    events, heard = Events(), list[Event]()
    events.listen(heard.append)
    left = iter(steps)

    def step() -> float:
        next(left)()
        return 0.0

    loop = Loop("progress", step, Stop(), events)
    for _ in steps:
        loop.attempt()
    return [event.name for event in heard]


def test_an_answer_says_it_once() -> None:
    assert told(unanswered, unanswered, answered, answered, nothing_to_do) == ["store.unreachable", "store.back"]


def test_the_answer_of_another_loop_counts_too() -> None:
    events, heard = Events(), list[Event]()
    events.listen(heard.append)
    steps = iter([unanswered, nothing_to_do])
    loop = Loop("progress", lambda: next(steps)() or 0.0, Stop(), events)

    loop.attempt()
    answered()
    loop.attempt()

    assert [event.name for event in heard] == ["store.unreachable", "store.back"]


def test_only_the_signals_that_ask_to_stop_do_so() -> None:
    """Given a process whose application handles a signal of its own, when that comes twice, then it goes on."""
    program = """
import sys
import subprocess
import os, signal, time
from recruiter.processes.loop import SAME_WISH, Stop

heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
stop = Stop()
stop.listen_to_signals()
for _ in range(2):
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(SAME_WISH + 0.2)
assert len(heard) == 2 and not stop.asked
os.kill(os.getpid(), signal.SIGTERM)
while not stop.asked:
    time.sleep(0.01)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
