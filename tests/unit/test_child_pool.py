"""The child pool looks several times for what a dead child has left behind: at once, not all of it can be seen."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from recruiter.clock import StoppedClock
from recruiter.events import Events
from recruiter.processes.child import process_group
from recruiter.processes.worker.child_handle import ChildHandle
from recruiter.processes.worker.child_pool import ChildPool
from tests.fake_child import FakeChild
from tests.samples import NOW


class Children:
    def __init__(self) -> None:
        self.clock = StoppedClock(NOW)
        self.all: list[FakeChild] = []
        self.pool = ChildPool(self.spawn, 1, self.clock, Events(), lambda _: None)
        self.pool.replenish("w1")

    def spawn(self, _worker: str, now: float) -> ChildHandle:
        self.all.append(FakeChild(now=now))
        self.pool.welcome(self.all[-1].handle, frozenset(["add"]), 0, 17)
        return self.all[-1].handle

    def one_dies(self) -> None:
        self.all[-1].die(-9)
        self.pool.remove(self.all[-1].handle)

    def later(self, seconds: float) -> None:
        self.clock.move(timedelta(seconds=seconds))
        self.pool.replenish("w1")


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.all[-1].die(0)
    for handle in children.pool.handles:
        handle.close()


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The fork servers below which was looked."""
    sweeps: list[int] = []
    monkeypatch.setattr(process_group, "end_orphans", lambda server, _guards: sweeps.append(server))
    return sweeps


def test_it_looks_at_once_and_again_for_a_while(children: Children, sweeps: list[int]) -> None:
    children.one_dies()
    assert sweeps == [17]

    for seconds in (0.05, 0.1, 0.1, 0.5):
        children.later(seconds)
    assert len(sweeps) == 3, "after 0.1 and 0.5 seconds"

    children.later(100)
    children.later(100)
    assert len(sweeps) == 4, "once more, and then no more"


def test_without_a_death_it_does_not_look(children: Children, sweeps: list[int]) -> None:
    children.later(100)

    assert sweeps == []
