"""The graph of a flow, what decides whether a step may start, and how a flow is shown as a tree."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from bson import ObjectId

from recruiter.domain.flow import (
    FOLDED,
    FlowStep,
    StepState,
    Verdict,
    branches,
    in_order,
    layers,
    verdict,
)
from recruiter.domain.job import JobId
from recruiter.errors import InvalidFlow

PENDING, DONE, FAILED = StepState.PENDING, StepState.SUCCEEDED, StepState.FAILED
SKIPPED, GONE = StepState.SKIPPED, StepState.GONE


class TestVerdict:
    """Whether a step may start, by the states of the steps that it waits for."""

    @pytest.mark.parametrize(
        ("after", "after_any", "after_failure", "expected"),
        [
            ([DONE, DONE], [], [], Verdict.RELEASE),
            ([DONE, PENDING], [], [], Verdict.WAIT),
            ([PENDING, FAILED], [], [], Verdict.FAIL),  # no other end can help
            ([DONE, GONE], [], [], Verdict.FAIL),
            ([DONE, SKIPPED], [], [], Verdict.SKIP),
            ([PENDING, SKIPPED], [], [], Verdict.WAIT),
            ([DONE], [FAILED, SKIPPED, GONE], [], Verdict.RELEASE),
            ([DONE], [PENDING], [], Verdict.WAIT),
            ([], [], [FAILED, DONE], Verdict.RELEASE),
            ([], [], [DONE, SKIPPED], Verdict.SKIP),
            ([], [], [DONE, PENDING], Verdict.WAIT),
            ([FAILED], [], [FAILED], Verdict.FAIL),
            ([], [], [], Verdict.RELEASE),
        ],
    )
    def test_by_the_states_of_its_dependencies(
        self,
        after: Sequence[StepState],
        after_any: Sequence[StepState],
        after_failure: Sequence[StepState],
        expected: Verdict,
    ) -> None:
        states: dict[JobId, StepState] = dict(enumerate([*after, *after_any, *after_failure]))
        by_need = [need for need, found in enumerate((after, after_any, after_failure)) for _ in found]
        optional, failed = (frozenset(id for id in states if by_need[int(str(id))] == need) for need in (1, 2))
        step = FlowStep(ObjectId(), "step", after=tuple(states), any=optional, failed=failed)

        assert verdict(step, states) is expected


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
