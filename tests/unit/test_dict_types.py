"""TypedDicts of `typing` are checked on every Python that is supported."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NotRequired, Required, TypedDict, TypeVar

import pytest
import typing_extensions
from pydantic import Field

from recruiter.domain.arguments.check import Signature
from recruiter.domain.arguments.typed import decode_result, encode_result
from recruiter.errors import InvalidArguments

T = TypeVar("T")


class Address(TypedDict):
    """Where somebody lives."""

    street: str
    number: NotRequired[int]


class Person(TypedDict, total=False):
    name: Required[str]
    homes: list[Address]
    kind: Literal["private", "business"]


class Tree(TypedDict):
    children: list[Tree]


class Box(TypedDict, Generic[T]):
    content: T


class Fine(typing_extensions.TypedDict):
    name: str


@dataclass
class Order:
    to: Address


def taking(annotation: Any) -> Signature:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    return Signature.of(function)


ADDRESS, PERSON = {"street": "Main", "number": 1}, {"name": "Ada", "homes": [{"street": "Main"}]}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Address, ADDRESS),
        (Address, {"street": "Main"}),
        (Person, PERSON),
        (Person, {"name": "Ada"}),
        (list[Address], [ADDRESS]),
        (dict[str, Person], {"a": PERSON}),
        (Address | None, None),
        (Address | None, ADDRESS),
        (Annotated[list[Address], Field(min_length=1)], [ADDRESS]),
        (Fine, {"name": "x"}),
    ],
    ids=repr,
)
def test_what_fits_is_taken_and_comes_back(annotation: Any, value: Any) -> None:
    stored = taking(annotation).bind((value,), {})

    assert taking(annotation).unbind(stored) in (((value,), {}), ((), {"value": value}))
    assert decode_result(encode_result(value, annotation), annotation) == value


@pytest.mark.parametrize(
    ("annotation", "value", "told"),
    [
        (Address, {"street": 5}, "street"),
        (Address, {"number": 5}, "street"),
        (Address, {"street": "Main", "number": "one"}, "number"),
        (Person, {"homes": []}, "name"),
        (Person, {"name": "Ada", "kind": "other"}, "kind"),
        (Person, {"name": "Ada", "homes": [{"street": 5}]}, "homes"),
        (list[Address], [ADDRESS, {"street": None}], "street"),
        (Address | None, {"street": 5}, "street"),
        (Annotated[list[Address], Field(min_length=1)], [], "at least 1"),
        (Annotated[list[Address], Field(min_length=1)], [{"street": 5}], "street"),
        (Fine, {"name": 5}, "name"),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_refused(annotation: Any, value: Any, told: str) -> None:
    with pytest.raises(InvalidArguments, match=told):
        taking(annotation).bind((value,), {})


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic checks them all from Python 3.12 on")
@pytest.mark.parametrize(("annotation", "value"), [(Tree, {"children": []}), (Order, Order({"street": 5}))])  # type: ignore[typeddict-item]
def test_what_cannot_be_checked_is_refused_aloud(annotation: Any, value: Any) -> None:
    with pytest.raises(InvalidArguments, match="typing_extensions"):
        taking(annotation).bind((value,), {})
