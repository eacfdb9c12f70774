"""The graph of a flow, what decides whether a step may start, and how a flow is shown as a tree."""

from __future__ import annotations

import pytest

from recruiter.domain.flow import (
    FOLDED,
    StepState,
    branches,
    in_order,
    layers,
)
from recruiter.domain.job import JobId
from recruiter.errors import InvalidFlow

PENDING, DONE, FAILED = StepState.PENDING, StepState.SUCCEEDED, StepState.FAILED


class TestGraph:
    def test_a_cycle_is_refused_and_named(self) -> None:
        with pytest.raises(InvalidFlow, match="wait for each other") as refused:
            in_order({"root": [], "a": ["root", "c"], "b": ["a"], "c": ["b"], "after": ["c"]}, str)

        told = str(refused.value).rpartition(": ")[2].split(" → ")
        assert told[0] == told[-1]
        assert sorted(told[1:]) == ["a", "b", "c"]

    def test_a_chain_of_thousands_is_no_problem(self) -> None:
        graph: dict[JobId, list[JobId]] = {n: [n - 1] if n else [] for n in range(20_000)}

        assert len(in_order(graph)) == len(layers(graph)) == 20_000


class TestTree:
    def test_each_step_stands_under_the_one_it_waits_for_or_beside_the_several(self) -> None:
        graph: dict[JobId, list[JobId]] = {"a": [], "b": ["a"], "x": ["b"], "d": ["a"], "c": ["b", "d"]}

        drawn = [(branch.prefix, *branch.steps) for branch in branches(graph, lambda step: step)]

        assert drawn == [("", "a"), ("├─ ", "b"), ("│  └─ ", "x"), ("├─ ", "d"), ("└─ ", "c")]

    def test_one_that_waits_for_many_does_not_share_their_line_though_it_looks_like_them(self) -> None:
        parts: list[JobId] = [f"part{n}" for n in range(FOLDED)]
        graph: dict[JobId, list[JobId]] = {"a": [], **{part: ["a"] for part in parts}, "last": parts}

        drawn = [branch.steps for branch in branches(graph, lambda _: "all the same")]

        assert drawn == [("a",), tuple(parts), ("last",)]
