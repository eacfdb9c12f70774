from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from ipaddress import IPv4Address
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from bson import Binary, ObjectId, decode, encode
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from pydantic import BaseModel, Field, PrivateAttr, field_serializer

from recruiter.domain.arguments.check import Signature
from recruiter.domain.arguments.typed import decode_result, encode_result
from recruiter.domain.arguments.values import MAX_DEPTH, from_bson, to_bson
from recruiter.errors import InvalidArguments, UnsupportedValue

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]

OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True, uuid_representation=UuidRepresentation.STANDARD)
ROME = ZoneInfo("Europe/Rome")
UserId = NewType("UserId", int)


def through_bson(value: Any) -> Any:
    return decode(encode({"value": value}, codec_options=OPTIONS), codec_options=OPTIONS)["value"]


def travelled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bound here, stored, and unbound by a signature that has seen nothing of this one."""
    return Signature.of(function).unbind(through_bson(Signature.of(function).bind(args, kwargs)))


def carry(annotation: Any, value: Any) -> Any:
    """The value after a journey through a parameter with this annotation."""

    def task(value: Any) -> None: ...

    task.__annotations__ = {"value": annotation}
    return travelled(task, value)[1]["value"]


def send(to: str, name: str = "you", *, copies: int = 1) -> str:
    return f"{to} {name} {copies}"


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Size(StrEnum):
    SMALL = "s"


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Point3(Point):
    z: float = 0.0


@dataclass
class Pair:
    x: float
    y: float = 0.0


@dataclass(frozen=True)
class Order:
    id: UUID
    total: Decimal
    placed: datetime
    color: Color
    lines: list[Point] = field(default_factory=list)
    extra: Any = None


class Address(BaseModel):
    street: str = Field(alias="Street")
    number: int = 1
    since: date | None = None


class Person(NamedTuple):
    name: str
    born: date


class Handle:
    pass


class TestBinding:
    @pytest.mark.parametrize(
        ("args", "kwargs", "problem"),
        [
            ((), {}, "missing a required argument: 'to'"),
            (("a", "b", 3), {}, "too many positional"),
            (("a",), {"nme": "b"}, "got an unexpected keyword argument 'nme'"),
            (("a",), {"to": "b"}, "multiple values for argument 'to'"),
            ((5,), {}, r"to: expected str, got int:"),
            (("a", None), {}, r"name: expected str, got NoneType:"),
            (("a",), {"copies": "5"}, r"copies: expected int, got str:"),
            (("a",), {"copies": True}, r"copies: expected int, got bool:"),
            (("a",), {"copies": 1.5}, r"copies: expected int, got float:"),
        ],
    )
    def test_what_does_not_fit_is_named(self, args: Any, kwargs: Any, problem: str) -> None:
        with pytest.raises(InvalidArguments, match=rf"send\(\): {problem}"):
            Signature.of(send).bind(args, kwargs)


class TestUnbinding:
    @pytest.mark.parametrize(
        ("document", "problem"),
        [
            ({}, "missing to"),
            ([], "missing to"),
            ({"to": "a", "cc": "b"}, "no parameter 'cc'"),
            (["a", "b", 3], "too many"),
            ({"to": 5}, "to: expected str, got int"),
            ({"to": {"$gt": ""}}, "to: expected str"),
            ({"to": {"__recruiter__": "eval", "value": "1"}}, "to: .*'eval' is not a kind of value"),
            ({"to": {"__recruiter__": "date", "value": []}}, "to: .* is not a date"),
            ({"to": "a", "copies": "many"}, "copies: expected int"),
            (5, "a document or a list"),
            (None, "a document or a list"),
            ("to", "a document or a list"),
        ],
    )
    def test_a_document_that_does_not_fit_is_refused(self, document: Any, problem: str) -> None:
        with pytest.raises(InvalidArguments, match=problem):
            Signature.of(send).unbind(document)

    def test_plain_texts_become_what_the_annotation_says(self) -> None:
        def task(day: date, total: Decimal, path: Path, color: Color, where: Point) -> None: ...

        written = {"day": "2030-01-31", "total": "1.10", "path": "/a", "color": "red", "where": {"x": 1}}
        assert Signature.of(task).unbind(written)[1] == {
            "day": date(2030, 1, 31),
            "total": Decimal("1.10"),
            "path": Path("/a"),
            "color": Color.RED,
            "where": Point(1.0),
        }

    def test_a_validator_that_raises_anything_is_a_refusal(self) -> None:
        @dataclass
        class Picky:
            x: int

            def __post_init__(self) -> None:
                raise KeyError("no")

        def task(picky: Any) -> None: ...

        task.__annotations__ = {"picky": Picky}
        with pytest.raises(InvalidArguments, match="KeyError"):
            Signature.of(task).unbind({"picky": {"x": 1}})


class TestKindsOfParameters:
    def test_each_of_the_rest_is_checked(self) -> None:
        def task(*rest: int, **options: str) -> None: ...

        signature = Signature.of(task)
        with pytest.raises(InvalidArguments, match=r"rest\[1\]: expected int"):
            signature.bind((1, "2"), {})
        with pytest.raises(InvalidArguments, match=r"options\.a: expected str"):
            signature.bind((), {"a": 1})
        with pytest.raises(InvalidArguments, match=r"rest\[0\]: expected int"):
            signature.unbind({"rest": ["x"]})
        with pytest.raises(InvalidArguments, match="rest: expected a list"):
            signature.unbind({"rest": 5})
        with pytest.raises(InvalidArguments, match="options: expected a document"):
            signature.unbind({"options": [5]})

    def test_positional_only(self) -> None:
        def task(a: int, b: int = 2, c: int = 3, /, d: int = 4, **options: int) -> None: ...

        assert travelled(task, 1, 20, d=5, a=7) == ((1, 20), {"d": 5, "a": 7})
        assert travelled(task, 1) == ((1,), {})
        assert Signature.of(task).unbind({"a": 1, "c": 30}) == ((1, 2, 30), {})

    def test_options_cannot_smuggle_a_parameter_past_its_check(self) -> None:
        def task(a: int = 1, **options: Any) -> None: ...

        with pytest.raises(InvalidArguments, match="a is a parameter of its own"):
            Signature.of(task).unbind({"options": {"a": "not an int"}})

    def test_classes_with_fields(self) -> None:
        @dataclass
        class Scaled:
            n: int
            by: InitVar[int] = 2

        assert travelled(Scaled, 1, by=3) == ((), {"n": 1, "by": 3})
        with pytest.raises(InvalidArguments, match="by: expected int"):
            Signature.of(Scaled).bind((1, "x"), {})
        with pytest.raises(InvalidArguments, match="number: expected int"):
            Signature.of(Address).bind((), {"Street": "a", "number": "x"})


class TestAnnotationsThatCannotBeRead:
    def test_one_unresolved_name_does_not_spoil_the_others(self) -> None:
        def task(thing: Missing, count: int) -> None: ...

        signature = Signature.of(task)
        assert signature.bind(({"a": 1}, 5), {}) == {"thing": {"a": 1}, "count": 5}
        assert len(signature.notes) == 1
        assert "thing: 'Missing' is not checked" in signature.notes[0]
        with pytest.raises(InvalidArguments, match="count: expected int"):
            signature.bind((1, "x"), {})

    def test_an_annotation_without_sense_is_noted(self) -> None:
        def task(a: Any) -> None: ...

        task.__annotations__ = {"a": 5}
        signature = Signature.of(task)
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
    (str, "héllo\0"),
    (int, 2**63),
    (int, -(2**63)),
    (int, 2**200),
    (float, -0.0),
    (bytes, b"\x00\xff"),
    *((datetime, moment) for moment in MOMENTS),
    (date, date(2030, 1, 1)),
    (time, time(1, 2, 3, 456789)),
    (time, time(1, 2, tzinfo=UTC)),
    (timedelta, timedelta.min),
    (timedelta, timedelta.max),
    (Decimal, Decimal("1.10")),
    (Path, Path("/tmp/x")),
    (UUID, UUID(int=2**127)),
    (ObjectId, ObjectId("5f0000000000000000000005")),
    (Binary, Binary(b"x", 5)),
    (tuple[int, ...], (1, 2)),
    pytest.param(set[str], {"a", "b"}, id="set of text"),
    (frozenset[tuple[int, str]], frozenset({(1, "a")})),
    (dict[str, Any], {"a.b": 1, "$x": {"$where": "1"}, "": [None], "$ref": "x", "$id": 5}),
    (dict[str, Any], {"__recruiter__": "decimal", "value": "1"}),
    (list[Any], [1, [2, {"a": (3, {4})}]]),
]


@pytest.mark.parametrize(("annotation", "value"), FAITHFUL, ids=repr)
@pytest.mark.parametrize("typed", [True, False])
def test_comes_back_equal(annotation: Any, value: Any, typed: bool) -> None:
    back = carry(annotation if typed else Any, value)
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, datetime):
        assert (back.tzinfo, back.fold, back.utcoffset()) == (value.tzinfo, value.fold, value.utcoffset())


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Color, Color.RED),
        (Level, Level.LOW),
        (Size, Size.SMALL),
        (Point, Point(1.0, 2.0)),
        (Point | dict[str, float], {"x": 1.0}),
        (Point, Point(math.nan)),
        (Person, Person("Ada", date(1815, 12, 10))),
        (Address, Address(Street="a", number=2, since=date(2030, 1, 1))),
        (list[Address | None], [Address(Street="a"), None]),
        (dict[int, str], {1: "a", 2: "b"}),
        (dict[Color, list[Point]], {Color.RED: [Point(1.0)]}),
        (dict[tuple[int, int], date], {(1, 2): date(2030, 1, 1)}),
        (Decimal | str, Decimal("1.10")),
        (Decimal | str, "1.10"),
        (int | str, "5"),
        (date | datetime | str, datetime(2030, 1, 1)),
        (date | datetime | str, "2030-01-01"),
        (list[int] | tuple[int, ...], (1,)),
        (Sequence[int], (1, 2)),
        (Mapping[str, int], {"a": 1}),
        (Iterable[int], [1, 2]),
        (Iterable[int], {1, 2}),
        (IPv4Address, IPv4Address("10.0.0.1")),
        (Literal["a", "b"], "b"),
        (Annotated[int, Field(ge=1)], 5),
        (UserId, UserId(5)),
        (Order, Order(UUID(int=7), Decimal("1.10"), MOMENTS[3], Color.RED, [Point(1.0)], {"a": (1, {2})})),
    ],
    ids=repr,
)
def test_an_annotation_rebuilds(annotation: Any, value: Any) -> None:
    back = carry(annotation, value)
    assert repr(back) == repr(value)  # NaN is not equal to itself
    assert type(back) is type(value)


class Uneven(BaseModel):
    secret: str

    @field_serializer("secret")
    def hide(self, _: str) -> str:
        return "***"


class Remembers(BaseModel):
    _memory: int = PrivateAttr(0)


def remembering() -> Remembers:
    model = Remembers()
    model._memory = 5
    return model


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (Point, Point3(1, 2, 3), "would come back as a value of type Point"),
        (Pair | Point, Point(1.0), "would come back as a value of type Pair"),
        (Point | dict[str, float], Point(1.0), "would come back as a value of type dict"),
        (Size | str, Size.SMALL, "would come back as a value of type str"),
        (Point, Point("1"), "would come back as"),  # type: ignore[arg-type]
        (Point, Point("one"), "could not be rebuilt"),  # type: ignore[arg-type]
        (Uneven, Uneven(secret="x"), "would come back as"),
        (Remembers, remembering(), "would come back as"),
        (Order, Order(uuid4(), Decimal(1), MOMENTS[0], Color.RED, extra=Color.RED), "would come back as"),
        (
            Order,
            Order(uuid4(), Decimal(1), MOMENTS[0], Color.RED, extra=[print]),
            r"\.extra\[0\]: a function",
        ),
        (Order, Order(uuid4(), Decimal(1), MOMENTS[0], Color.RED, extra=Handle()), "Handle cannot travel"),
        (Callable[[], None], print, "a function cannot travel"),
        (Handle, Handle(), "Handle cannot travel"),
        (dict, {1: 2}, "annotation such as dict"),
        (Iterable[int], [2**20000], "4300 digits"),
    ],
)
def test_what_would_come_back_different_is_refused(annotation: Any, value: Any, problem: str) -> None:
    with pytest.raises(UnsupportedValue, match=rf"^args\.value.*{problem}"):
        carry(annotation, value)


def itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"items": [0, {"callback": print}]}, r"args\.items\[1\]\.callback: a function cannot travel"),
        ((0, [len]), r"args\[1\]\[0\]: a function"),
        ({"a": {(1, object())}}, r"args\.a\[0\]\[1\]: a value of type object cannot travel"),
        (int, "the class int cannot travel"),
        (Color.RED, "needs an annotation"),
        (Size.SMALL, "needs an annotation"),
        (Point(1), "the class Point needs an annotation"),
        (Address(Street="a"), "the class Address needs an annotation"),
        (Person("a", date(2030, 1, 1)), "the class Person needs an annotation"),
        ({1: 2}, "a key must be text, not int"),
        ({Size.SMALL: 2}, "a key must be text"),
        ({"a\0": 2}, "NUL"),
        ({"\ud800": 2}, "lone surrogate"),
        (["\udfff"], r"args\[0\]: .*lone surrogate"),
        (Path("\udcff"), "lone surrogate"),
        (PureWindowsPath("a"), "PureWindowsPath cannot travel"),
        (Binary(b"x", 0), "pass bytes"),
        (time(1, tzinfo=ROME), "pass a datetime"),
        ([10**5000], "4300 digits"),
        (itself(), "contains itself"),
        (1j, "complex cannot travel"),
        (range(3), "range cannot travel"),
        (memoryview(b"a"), "memoryview cannot travel"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_is_named(value: Any, problem: str) -> None:
    with pytest.raises(UnsupportedValue, match=problem):
        to_bson(value)


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


@pytest.mark.parametrize(
    "document",
    [
        {"__recruiter__": "os.system", "value": "true"},
        {"__recruiter__": ["date"], "value": "2030-01-01"},
        {"__recruiter__": None},
        {"__recruiter__": "date"},
        {"__recruiter__": "date", "value": "tomorrow"},
        {"__recruiter__": "int", "value": "9" * 5000},
        {"__recruiter__": "decimal", "value": {"a": 1}},
        {"__recruiter__": "timedelta", "value": {"days": 1e300}},
        {"__recruiter__": "timedelta", "value": {"eons": 1}},
        {"__recruiter__": "set", "value": [[1]]},
        {"__recruiter__": "set", "value": "ab"},
        {"__recruiter__": "dict", "value": [[1, 2, 3]]},
        {"__recruiter__": "datetime", "value": 5},
        {"a": [{"__recruiter__": "path", "value": 5}]},
    ],
)
def test_a_tag_without_sense_is_refused(document: Any) -> None:
    with pytest.raises(UnsupportedValue):
        from_bson(document)


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

    def test_a_result_that_cannot_travel_is_named(self) -> None:
        with pytest.raises(UnsupportedValue, match=r"^result\.a\[0\]: a function"):
            encode_result({"a": [print]})
        with pytest.raises(UnsupportedValue, match=r"^result: the class Point needs an annotation"):
            encode_result(Point(1), int)
