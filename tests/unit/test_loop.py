"""The loop of every process: it says that MongoDB is back when MongoDB has answered, and not before."""

from __future__ import annotations

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


def test_a_step_that_asks_nothing_does_not_say_that_mongodb_is_back() -> None:
    assert told(unanswered, nothing_to_do, unanswered) == ["store.unreachable"]


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
