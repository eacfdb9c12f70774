"""The results of steps that stand for other steps."""

from __future__ import annotations

from typing import Any

from recruiter.domain.arguments.results import StepResult
from recruiter.store.flow_steps import resolved


def of(step: str) -> Any:
    return StepResult(step).stored()


def test_a_row_of_any_length_has_the_last_result() -> None:
    values: dict[Any, Any] = {f"{number}": of(f"{number + 1}") for number in range(10_000)} | {"10000": 7}
    assert resolved("0", values) == {"step": "0", "of": "10000", "value": 7}


def test_a_result_that_is_not_there_yet_is_named() -> None:
    values: dict[Any, Any] = {"a": of("b"), "b": [of("c"), of("d")], "c": of("e"), "d": 1}
    items = [{"step": "c", "value": None}, {"step": "d", "value": 1}]
    assert resolved("a", values) == {"step": "a", "items": items, "missing": ["e"]}


def test_steps_that_stand_for_each_other_have_no_result() -> None:
    values: dict[Any, Any] = {"a": of("b"), "b": of("a"), "c": [of("c")]}
    assert resolved("a", values) == {"step": "a", "value": None}
    assert resolved("c", values) == {"step": "c", "items": [{"step": "c", "value": None}]}
