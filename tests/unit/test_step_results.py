"""Results of steps as arguments of other steps: checked where they are given, put in place where the step runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import pytest
from bson import ObjectId

from recruiter.domain.arguments.check import Signature
from recruiter.domain.arguments.results import StepResult, WithResults, filled, may_fit, unfilled_in
from recruiter.errors import InvalidArguments, UnsupportedValue
from recruiter.store.codec import decode, encode

STEP, OTHER = ObjectId(), ObjectId()


@dataclass
class Picture:
    name: str
    width: int
    taken: datetime


def merge(parts: list[int], names: dict[str, int], *more: int, **options: float) -> None: ...


def anything(value): ...  # type: ignore[no-untyped-def]


def travelled(args: dict[str, Any], *results: dict[str, Any]) -> Any:
    """Through MongoDB, and with the results in place."""
    return filled(decode(encode({"args": args}))["args"], decode(encode({"results": list(results)}))["results"])


def test_results_in_lists_dicts_and_variable_arguments() -> None:
    signature = Signature(merge)
    one, other = StepResult(STEP, int), StepResult(OTHER, int)
    args = signature.bind(([one, 2], {"x": other}, one), {"factor": other})
    assert isinstance(args, WithResults)
    assert {place.step for place in unfilled_in(args)} - {None} == {STEP, OTHER}

    stored = travelled(args, {"step": STEP, "value": 7}, {"step": OTHER, "value": 8})

    assert signature.unbind(stored) == (([7, 2], {"x": 8}, 7), {"factor": 8})


def test_a_list_of_results_is_no_single_value() -> None:
    def one(number: int, options: dict[str, int]) -> None: ...

    result = StepResult(STEP, int)
    with pytest.raises(InvalidArguments, match="number: expected int, got a list of results"):
        Signature(one).bind(([result], {}), {})
    with pytest.raises(InvalidArguments, match=r"options: expected dict\[str, int\], got a list of results"):
        Signature(one).bind((1, [result]), {})


def test_a_tuple_of_results_is_checked_place_by_place() -> None:
    def pair(both: tuple[int, str]) -> None: ...

    one, other = StepResult(STEP, int), StepResult(OTHER, str)
    stored = travelled(
        Signature(pair).bind(((one, other),), {}), {"step": STEP, "value": 7}, {"step": OTHER, "value": "a"}
    )
    assert Signature(pair).unbind(stored) == ((), {"both": (7, "a")})
    with pytest.raises(InvalidArguments, match="both: expected int, got the result of a step, which is str"):
        Signature(pair).bind(((other, one),), {})


@pytest.mark.parametrize(
    ("returns", "annotation", "fits"),
    [
        (int, int, True),
        (int, float, True),
        (float, int, False),
        (str, int, False),
        (bool, int, True),
        (Any, int, True),
        (int, Any, True),
        (None, int, False),
        (int | None, int, True),
        (str, int | None, False),
        (list[int], list[str], True),
        (list[int], dict[str, int], False),
        (Picture, Picture, True),
        (Picture, int, False),
        (int, Annotated[int, "of pixels"], True),
        (str, Annotated[int, "of pixels"], False),
    ],
)
def test_only_what_cannot_fit_is_refused(returns: Any, annotation: Any, fits: bool) -> None:
    assert may_fit(returns, annotation) is fits


def test_what_stands_beside_results_is_checked_too() -> None:
    with pytest.raises(InvalidArguments, match=r"parts: expected int, got str"):
        Signature(merge).bind(([StepResult(STEP, int), "two"], {}), {})
    with pytest.raises(UnsupportedValue):
        Signature(anything).bind(([StepResult(STEP), object()],), {})
