from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType

import pytest
from bson import Binary, decode, encode
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from pydantic import Field

from recruiter.domain.arguments.check import Signature
from recruiter.domain.arguments.typed import decode_result, encode_result
from recruiter.domain.arguments.values import MAX_DEPTH, from_bson, to_bson
from recruiter.errors import InvalidArguments, UnsupportedValue
from tests.golden.names import ROME, Address, Color, Level, Person, Point, Size

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]

OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True, uuid_representation=UuidRepresentation.STANDARD)
UserId = NewType("UserId", int)


def through_bson(value: Any) -> Any:
    return decode(encode({"value": value}, codec_options=OPTIONS), codec_options=OPTIONS)["value"]


def travelled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bound here, stored, and unbound by a signature that has seen nothing of this one."""
    return Signature(function).unbind(through_bson(Signature(function).bind(args, kwargs)))


def carry(annotation: Any, value: Any) -> Any:
    """The value after a journey through a parameter with this annotation."""

    def task(value: Any) -> None: ...

    task.__annotations__ = {"value": annotation}
    return travelled(task, value)[1]["value"]


class TestUnbinding:
    def test_plain_texts_become_what_the_annotation_says(self) -> None:
        def task(day: date, total: Decimal, path: Path, color: Color, where: Point) -> None: ...

        written = {"day": "2030-01-31", "total": "1.10", "path": "/a", "color": "red", "where": {"x": 1}}
        assert Signature(task).unbind(written)[1] == {
            "day": date(2030, 1, 31),
            "total": Decimal("1.10"),
            "path": Path("/a"),
            "color": Color.RED,
            "where": Point(1.0),
        }


class TestKindsOfParameters:
    def test_positional_only(self) -> None:
        def task(a: int, b: int = 2, c: int = 3, /, d: int = 4, **options: int) -> None: ...

        assert travelled(task, 1, 20, d=5, a=7) == ((1, 20), {"d": 5, "a": 7})
        assert travelled(task, 1) == ((1,), {})
        assert Signature(task).unbind({"a": 1, "c": 30}) == ((1, 2, 30), {})

    def test_options_cannot_smuggle_a_parameter_past_its_check(self) -> None:
        def task(a: int = 1, **options: Any) -> None: ...

        with pytest.raises(InvalidArguments, match="a is a parameter of its own"):
            Signature(task).unbind({"options": {"a": "not an int"}})

    def test_classes_with_fields(self) -> None:
        @dataclass
        class Scaled:
            n: int
            by: InitVar[int] = 2

        assert travelled(Scaled, 1, by=3) == ((), {"n": 1, "by": 3})
        with pytest.raises(InvalidArguments, match="by: expected int"):
            Signature(Scaled).bind((1, "x"), {})
        with pytest.raises(InvalidArguments, match="number: expected int"):
            Signature(Address).bind((), {"Street": "a", "number": "x"})


class TestAnnotationsThatCannotBeRead:
    def test_one_unresolved_name_does_not_spoil_the_others(self) -> None:
        def task(thing: Missing, count: int) -> None: ...

        signature = Signature(task)
        assert signature.bind(({"a": 1}, 5), {}) == {"thing": {"a": 1}, "count": 5}
        assert len(signature.notes) == 1
        assert "thing: 'Missing' is not checked" in signature.notes[0]
        with pytest.raises(InvalidArguments, match="count: expected int"):
            signature.bind((1, "x"), {})

    def test_an_annotation_without_sense_is_noted(self) -> None:
        def task(a: Any) -> None: ...

        task.__annotations__ = {"a": 5}
        signature = Signature(task)
        assert signature.bind(([1],), {}) == {"a": [1]}
        assert "is not checked" in signature.notes[0]


MOMENTS = [
    datetime(2030, 1, 1, 12, 0, 0, 123000, tzinfo=UTC),
    datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=UTC),
    datetime(2030, 1, 1, 12, 0, 0, 123456),
    datetime(2030, 7, 1, 12, tzinfo=ROME),
    datetime(2030, 10, 27, 2, 30, tzinfo=ROME),
    datetime(2030, 10, 27, 2, 30, tzinfo=ROME, fold=1),
    datetime(2030, 3, 31, 2, 30, tzinfo=ROME),  # does not exist; still comes back
    datetime(2030, 3, 31, 2, 30, tzinfo=ROME, fold=1),
    datetime.min,
    datetime.max.replace(tzinfo=UTC),
]
FAITHFUL: list[Any] = [
    *((datetime, moment) for moment in MOMENTS),
    (time, time(1, 2, tzinfo=UTC)),
    (Binary, Binary(b"x", 5)),
    (frozenset[tuple[int, str]], frozenset({(1, "a")})),
    (dict[str, Any], {"__recruiter__": "decimal", "value": "1"}),
]
"""Values that a random test rarely makes; tests/property/test_arguments_travel.py makes the others."""


@pytest.mark.parametrize(("annotation", "value"), FAITHFUL, ids=repr)
@pytest.mark.parametrize("typed", [True, False])
def test_each_value_comes_back_equal(annotation: Any, value: Any, typed: bool) -> None:
    back = carry(annotation if typed else Any, value)
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, datetime):
        assert (back.tzinfo, back.fold, back.utcoffset()) == (value.tzinfo, value.fold, value.utcoffset())


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Level, Level.LOW),
        (Size, Size.SMALL),
        (Point | dict[str, float], {"x": 1.0}),
        (Point, Point(math.nan)),
        (Person, Person("Ada", date(1815, 12, 10))),
        (list[Address | None], [Address(Street="a"), None]),
        (dict[tuple[int, int], date], {(1, 2): date(2030, 1, 1)}),
        (int | str, "5"),
        (date | datetime | str, datetime(2030, 1, 1)),
        (Iterable[int], {1, 2}),
        (IPv4Address, IPv4Address("10.0.0.1")),
        (Literal["a", "b"], "b"),
        (Annotated[int, Field(ge=1)], 5),
        (UserId, UserId(5)),
    ],
    ids=repr,
)
def test_an_annotation_rebuilds(annotation: Any, value: Any) -> None:
    back = carry(annotation, value)
    assert repr(back) == repr(value)  # NaN is not equal to itself
    assert type(back) is type(value)


def test_the_deepest_value_fits_into_bson_with_room_around_it() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert through_bson(to_bson(value)) == value
    with pytest.raises(UnsupportedValue, match="levels deep"):
        to_bson([value])
    pairs: Any = 1
    for _ in range(MAX_DEPTH):
        pairs = {"$ref": pairs}
    with pytest.raises(UnsupportedValue, match="levels deep"):
        to_bson(pairs)


@pytest.mark.parametrize("zone", ["Nowhere/Land", "../../etc/passwd", "Europe", 5])
def test_an_unknown_zone_keeps_the_moment(zone: Any) -> None:
    stored = {"__recruiter__": "datetime", "value": "2030-07-01T12:00:00+02:00", "zone": zone, "fold": 0}
    assert from_bson(stored) == datetime(2030, 7, 1, 10, tzinfo=UTC)


class TestResults:
    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (None, None),
            (str, "ok"),
            (Any, {"a": (1, Decimal("1.1"))}),
            (Point, Point(1.0)),
            (list[Color], [Color.RED]),
            (int, "not what was promised"),
            (int, (1, 2)),
            (None, 5),
        ],
        ids=repr,
    )
    def test_a_result_comes_back(self, annotation: Any, value: Any) -> None:
        assert decode_result(through_bson(encode_result(value, annotation)), annotation) == value
