"""The loop of every process: when it says that MongoDB is back, which signals stop it; and the exit code of a fleet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from signal import SIGKILL, SIGTERM

import pytest

from recruiter.errors import StoreUnreachable
from recruiter.events import Event, Events
from recruiter.processes.fleet import exit_code, how_it_ended
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


@pytest.mark.parametrize(
    ("of_members", "code"),
    [
        ([0, 0, 0], 0),
        ([0, 4, 0], 4),
        ([-SIGTERM, 4, 0], 4),  # told to stop while it was still importing: the one that failed says why
        ([-SIGTERM, 0, 0], 0),
        ([0, -SIGKILL, 0], 1),  # 137 would say that this process was killed
    ],
)
def test_the_first_that_failed_by_itself_is_told(of_members: list[int], code: int) -> None:
    assert exit_code(of_members) == code


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (0, "ended by itself with exit code 0"),
        (4, "ended by itself with exit code 4"),
        (-SIGKILL, "was killed from outside by SIGKILL (out of memory?)"),
        (-40, "was killed from outside by signal 40"),
    ],
)
def test_how_a_member_ended_in_words(code: int, how: str) -> None:
    assert how_it_ended(code) == how
