"""Jobs that have to go and do not leave: those that use too much memory, and those that ignore a cancellation.

Those whose time is over, and which of several jobs is to blame, are in test_dispatcher.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from recruiter.processes.child import pipe
from recruiter.processes.worker import overruns
from recruiter.processes.worker.overruns import ByForce, Cancelled, HeldUp
from tests.fake_child import FakeChild, held


@pytest.fixture
def child() -> Iterator[FakeChild]:
    child = FakeChild(places=1)
    yield child
    child.die(0)
    child.handle.close()


def runs(child: FakeChild, **options: Any) -> int:
    """Starts a job in the child; returns its number."""
    child.handle.send([held(**options)], pipe.Time(0.0, time.monotonic()))
    (number,) = child.start()
    return number


def uses(child: FakeChild, memory: int) -> None:
    setattr(child.handle, "memory_of_all", lambda: memory)  # noqa: B010 – there is no process to be measured


class TestMemory:
    def test_a_job_that_uses_more_than_all_may_is_found(self, child: FakeChild) -> None:
        number = runs(child)
        uses(child, 1001)

        found = overruns.too_large(child.handle, hard_limit=1000)

        assert list(found) == [number]
        reason = found[number]
        assert isinstance(reason, ByForce)
        assert "1,001 bytes" in str(reason.error)

    def test_the_memory_of_one_job_does_not_fail_the_others_of_its_child(self, child: FakeChild) -> None:
        """Nobody knows which of them used it: no attempt is counted, and each counts a worker death."""
        numbers = [runs(child), runs(child)]
        uses(child, 1001)

        found = overruns.too_large(child.handle, hard_limit=1000)

        assert list(found) == numbers
        assert all(isinstance(reason, HeldUp) for reason in found.values())

    def test_a_child_that_runs_nothing_is_not_to_blame(self, child: FakeChild) -> None:
        uses(child, 5000)

        assert overruns.too_large(child.handle, hard_limit=1000) == {}

    def test_what_it_may_use_it_may_use(self, child: FakeChild) -> None:
        runs(child)
        uses(child, 1000)

        assert overruns.too_large(child.handle, hard_limit=1000) == {}


class TestCancelled:
    def test_a_job_that_goes_on_is_found_when_it_has_had_its_time(self, child: FakeChild) -> None:
        number = runs(child)
        now = time.monotonic()
        (run,) = child.handle.running()
        assert child.handle.cancel(run.job.id, {"by": "ada"}, now)

        assert overruns.past_their_time(child.handle, now + 0.4) == {}
        assert overruns.past_their_time(child.handle, now + 0.6) == {number: Cancelled({"by": "ada"})}
