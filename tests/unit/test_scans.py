"""Index ranges of an order: together they are exactly what lies between two positions, in that order."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from recruiter.store.search.scans import IndexRange, Order, Position, index_ranges

ORDER: Order = (("priority", -1), ("at", 1), ("_id", 1))
EVERYTHING = list(product(range(4), range(4), range(4)))
POSITIONS = st.none() | st.sampled_from(EVERYTHING)


def _fulfils(document: dict[str, Any], condition: dict[str, Any]) -> bool:
    ((name, comparison),) = condition.items()
    if name == "$expr":
        ((operator, (field, literal)),) = comparison.items()
        name, comparison = field.removeprefix("$"), {operator: literal["$literal"]}
    checks = {"$eq": int.__eq__, "$gt": int.__gt__, "$lt": int.__lt__, "$gte": int.__ge__, "$lte": int.__le__}
    return all(checks[operator](document[name], value) for operator, value in comparison.items())


def _found(part: IndexRange) -> list[Position]:
    """What MongoDB would answer."""
    conditions, order = part
    documents = [dict(zip(("priority", "at", "_id"), place, strict=True)) for place in EVERYTHING]
    fitting = [each for each in documents if all(_fulfils(each, condition) for condition in conditions)]
    fitting.sort(key=lambda each: [each[name] * direction for name, direction in order])
    return [tuple(each.values()) for each in fitting]


def _in_order(place: Position) -> Position:
    return -place[0], place[1], place[2]


@given(after=POSITIONS, upto=POSITIONS)
def test_one_after_the_other_they_are_what_lies_between(after: Position | None, upto: Position | None) -> None:
    assume(after is None or upto is None or _in_order(after) <= _in_order(upto))

    found = [place for part in index_ranges(ORDER, after, upto) for place in _found(part)]

    expected = sorted(EVERYTHING, key=_in_order)
    if upto is not None:
        expected = expected[: expected.index(upto) + 1]
    if after is not None:
        expected = [place for place in expected if _in_order(place) > _in_order(after)]
    assert found == expected


@given(after=POSITIONS, upto=POSITIONS)
def test_each_is_a_range_of_one_field(after: Position | None, upto: Position | None) -> None:
    """Fields before it are fixed: then an index over the order answers it with one range, already sorted."""
    for conditions, order in index_ranges(ORDER, after, upto):
        names = [name for name, _ in ORDER]
        fixed = names[: len(names) - len(order)]
        equal = [next(iter(condition)) for condition in conditions if "$eq" in next(iter(condition.values()))]
        assert equal == fixed
