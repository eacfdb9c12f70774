"""Whatever is accepted comes back equal, in another process, with and without an annotation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

from bson import ObjectId, Timestamp, decode, encode
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from recruiter.domain.arguments.check import Signature
from recruiter.domain.arguments.typed import decode_result, encode_result, same
from recruiter.domain.arguments.values import from_bson, to_bson
from recruiter.errors import InvalidArguments
from tests.depth import examples

OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True, uuid_representation=UuidRepresentation.STANDARD)


class Color(Enum):
    RED = "red"
    BLUE = 2


class Shape(Enum):
    """Its value fits no other annotation here: in a union with one that it fits, it is refused."""

    ROUND = Timestamp(1, 1)


@dataclass(frozen=True)
class Item:
    name: str
    price: Decimal
    color: Color
    tags: frozenset[str]


class Basket(BaseModel):
    items: list[Item]
    made: datetime
    by_day: dict[date, float]
    note: Any = None


texts = st.text(max_size=8)
zones = st.none() | st.just(UTC) | st.timezones()
finite = st.decimals(allow_nan=False, allow_infinity=False)
scalars: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    int: st.integers() | st.integers(2**62, 2**66),
    float: st.floats(),
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    datetime: st.datetimes(timezones=zones),
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(),
    Decimal: finite,
    UUID: st.uuids(),
    ObjectId: st.binary(min_size=12, max_size=12).map(ObjectId),
    Path: st.text("abc/.é", min_size=1, max_size=8).map(Path),
}
hashable = st.one_of(st.none(), *scalars.values())
members = hashable.filter(lambda value: value == value)  # a set with NaN is not equal to itself either
keys = texts.filter(lambda text: "\0" not in text) | st.sampled_from(["$ref", "$id", "__recruiter__", "a.b", ""])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(members, max_size=4),
        st.frozensets(members, max_size=4),
    )


values = st.recursive(hashable, containers, max_leaves=10)
items = st.builds(Item, texts, finite, st.sampled_from(Color), st.frozensets(texts, max_size=3))
baskets = st.builds(
    Basket,
    items=st.lists(items, max_size=3),
    made=scalars[datetime],
    by_day=st.dictionaries(st.dates(), st.floats(), max_size=3),
    note=values,
)


def through_bson(value: Any) -> Any:
    return decode(encode({"value": value}, codec_options=OPTIONS), codec_options=OPTIONS)["value"]


def annotated(annotation: Any) -> Callable[..., Any]:
    def task(value: Any) -> None: ...

    task.__annotations__ = {"value": annotation}
    return task


def carry(annotation: Any, value: Any) -> Any:
    document = Signature(annotated(annotation)).bind((value,), {})
    return Signature(annotated(annotation)).unbind(through_bson(document))[1]["value"]


@st.composite
def annotated_values(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Any]:
    """An annotation, and a value that fits it."""
    kind = draw(st.sampled_from(list(scalars)))
    if depth == 0 or draw(st.booleans()):
        return kind, draw(scalars[kind])
    inner, example = draw(annotated_values(depth=depth - 1))
    chosen: tuple[Any, Any] = draw(
        st.sampled_from(
            [
                (list[inner], [example, example]),  # type: ignore[valid-type]
                (tuple[inner, int], (example, 1)),  # type: ignore[valid-type]
                (dict[str, inner], {"a": example}),  # type: ignore[valid-type]
                (dict[int, inner], {1: example, 2**70: example}),  # type: ignore[valid-type]
                (inner | None, example),
                (inner | Shape | None, Shape.ROUND),
            ]
        )
    )
    return chosen


@given(values)
@settings(max_examples=examples(200), deadline=None)
def test_values_without_an_annotation_come_back_equal(value: Any) -> None:
    assert same(value, from_bson(through_bson(to_bson(value))))
    assert same(value, carry(Any, value))


@given(annotated_values())
@settings(max_examples=examples(200), deadline=None)
def test_values_with_an_annotation_come_back_equal(annotated_value: tuple[Any, Any]) -> None:
    annotation, value = annotated_value
    assert same(value, carry(annotation, value))


@given(baskets)
@settings(max_examples=examples(60), deadline=None)
def test_models_of_dataclasses_of_enums(basket: Basket) -> None:
    assert same(basket, carry(Basket, basket))
    assert same(basket, decode_result(through_bson(encode_result(basket, Basket)), Basket))


@given(st.tuples(values, texts, st.lists(values, max_size=3), st.dictionaries(st.text("abc", min_size=1), values)))
@settings(max_examples=examples(60), deadline=None)
def test_every_kind_of_parameter(given_values: tuple[Any, str, list[Any], dict[str, Any]]) -> None:
    first, second, rest, options = given_values

    def task(first: Any, /, second: str, *rest: Any, **options: Any) -> None: ...

    document = Signature(task).bind((first, second, *rest), options)
    args, kwargs = Signature(task).unbind(through_bson(document))
    bound = {"first": args[0], "rest": args[2:]} if rest else {"first": args[0]}
    second_back = args[1] if rest else kwargs.pop("second")
    assert same((first, second, options), (bound["first"], second_back, kwargs))
    assert same(tuple(rest), tuple(bound.get("rest", ())))


documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["__recruiter__", "value", "zone", "fold", "items", "$ref"]), inner, max_size=4
        )
        | st.fixed_dictionaries(
            {
                "__recruiter__": st.sampled_from(["int", "decimal", "datetime", "date", "set", "dict", "path"]),
                "value": inner,
            }
        )
    ),
    max_leaves=8,
)


@given(documents, st.sampled_from([Any, int, str, Basket, Item, date, list[Color], dict[int, Item]]))
@settings(max_examples=examples(200), deadline=None)
def test_no_document_does_more_than_fit_or_be_refused(document: Any, annotation: Any) -> None:
    signature = Signature(annotated(annotation))
    for written in (document, {"value": document}, [document]):
        try:
            args, kwargs = signature.unbind(written)
        except InvalidArguments as refused:
            assert "task()" in str(refused)  # noqa: PT017
        else:
            assert (args, list(kwargs)) == ((), ["value"])
            if annotation in (int, str):
                assert type(kwargs["value"]) is annotation
