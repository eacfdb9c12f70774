"""What the leader remembers of steps that wait for others."""

from __future__ import annotations

import pytest
from bson import ObjectId

from recruiter.domain.planning import waits as module
from recruiter.domain.planning.waits import Waits

FLOW, OTHER_FLOW = ObjectId(), ObjectId()


def test_it_knows_the_last_one_that_a_step_was_seen_to_wait_for() -> None:
    waits = Waits()
    waits.saw(FLOW, ["a", "b"], "x")
    waits.saw(FLOW, ["b"], "y")

    assert waits.of(FLOW, ["a", "b", "c"]) == {"a": "x", "b": "y"}
    assert waits.of(OTHER_FLOW, ["a", "b"]) == {}


def test_it_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    waits = Waits()

    for number in range(10):
        waits.saw(FLOW, [number], "x")

    assert len(waits.of(FLOW, range(10))) <= 4
    assert waits.of(FLOW, [9]) == {9: "x"}
