"""Workables: what they store of themselves comes back equal in another process, or is refused before it is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from functools import partialmethod, wraps
from typing import Any, ClassVar, TypeVar

import pytest
from pydantic import BaseModel, Field, PrivateAttr, field_validator

from recruiter import Recruiter, Workable
from recruiter.errors import InvalidArguments, InvalidJob
from recruiter.store.codec import decode, encode
from recruiter.workable import rebuilt, stored
from tests.bench import Bench, ended
from tests.samples import a_job

W = TypeVar("W", bound=Workable)

MOMENT = datetime(2030, 1, 1, 12, 0, 0, 5, tzinfo=UTC)


def travelled(workable: W) -> W:
    """The workable as another process sees it."""
    back = rebuilt(type(workable), decode(encode(stored(workable))))
    assert type(back) is type(workable)
    return back


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True)
class Place:
    street: str
    number: int = 1
    marks: tuple[Size, ...] = ()


class Stop(BaseModel):
    place: Place
    at: date | None = None


# -- from the constructor --------------------------------------------------------------------------------------------


class Options(Workable):
    def __init__(self, first: int, **options: Any) -> None:
        self.first = first
        self.options = options


class Values(Workable):
    def __init__(self, *values: int) -> None:
        self.values = values


class Positional(Workable):
    def __init__(self, first: int, /) -> None:
        self.first = first


class Shadowed(Workable):
    """The class has an attribute of the argument's name; the instance keeps it elsewhere."""

    limit = 10

    def __init__(self, limit: int = 10) -> None:
        self._limit = limit


class TestFromTheConstructor:
    @pytest.mark.parametrize(
        "workable",
        [pytest.param(Options(1, colour="red")), Values(1, 2, 3), Positional(1), pytest.param(Shadowed(5))],
        ids=lambda workable: type(workable).__name__,
    )
    def test_unusual_constructors_come_back_equal_or_are_refused(self, workable: Workable) -> None:
        try:
            back = travelled(workable)
        except InvalidJob:
            return
        assert vars(back) == vars(workable)


# -- dataclasses -----------------------------------------------------------------------------------------------------


@dataclass
class Letter(Workable):
    to: Place
    pages: list[str] = field(default_factory=list)
    sent: date = date(2030, 1, 1)
    weight: int = field(init=False, default=0)
    kinds: ClassVar[int] = 3

    def __post_init__(self) -> None:
        self.weight = len(self.pages)

    def execute(self) -> int:
        return self.weight


@dataclass(slots=True)
class Slotted(Workable):
    number: int
    sizes: set[Size] = field(default_factory=set)

    def execute(self) -> int:
        return self.number


class TestDataclasses:
    @pytest.mark.parametrize(
        "workable",
        [
            Letter(Place("Main", 2, (Size.SMALL,)), ["one", "two"], date(2031, 1, 1)),
            pytest.param(Slotted(2, {Size.SMALL, Size.LARGE}), id="slotted"),
        ],
        ids=repr,
    )
    def test_they_come_back_equal(self, workable: Workable) -> None:
        assert travelled(workable) == workable


# -- pydantic models -------------------------------------------------------------------------------------------------


class Bill(Workable, BaseModel):
    number: int = Field(gt=0)
    stops: list[Stop] = []
    total: Decimal = Decimal(0)
    due: datetime | None = None
    _seen: int = PrivateAttr(default=0)

    def execute(self) -> int:
        return self.number


class Doubling(Workable, BaseModel):
    """Would be twice as much each time it is rebuilt."""

    number: int

    @field_validator("number")
    @classmethod
    def _double(cls, value: int) -> int:
        return value * 2


class TestModels:
    @pytest.mark.parametrize(
        "model",
        [Bill(number=2, stops=[Stop(place=Place("x", 3, (Size.LARGE,)))], total=Decimal("1.10"), due=MOMENT)],
        ids=repr,
    )
    def test_they_come_back_equal(self, model: Workable) -> None:
        assert travelled(model) == model

    def test_one_that_would_come_back_different_is_refused(self) -> None:
        with pytest.raises(InvalidArguments, match=r"Doubling.*would come back as a different Doubling"):
            stored(Doubling(number=2))

    def test_data_by_name_is_checked_where_the_job_is_made(self, recruiter: Recruiter) -> None:
        with pytest.raises(InvalidArguments, match="number"):
            recruiter.job("Bill", {"number": 0})
        with pytest.raises(InvalidArguments, match="number"):
            recruiter.job("Slotted", {"number": "one"})


# -- export and import_ ----------------------------------------------------------------------------------------------


# -- what stands in the class line -----------------------------------------------------------------------------------


# -- methods ---------------------------------------------------------------------------------------------------------


def traced(method: Callable[[Any], str]) -> Callable[[Any], str]:
    @wraps(method)
    def call(self: Any) -> str:
        return method(self)

    return call


class Base(Workable):
    def inherited(self) -> str:
        return "inherited"


class Robot(Base):
    constant = 5
    helper = str

    class Arm:
        pass

    def __init__(self, name: str = "R2") -> None:
        self.name = name

    def __call__(self) -> None:
        pass

    def execute(self) -> str:
        return self.name

    async def later(self) -> str:
        return f"later {self.name}"

    @traced
    def decorated(self) -> str:
        return self.name

    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__

    @property
    def attribute(self) -> str:
        raise AssertionError("looked at while nothing ran")

    def _private(self) -> None:
        pass

    # These are words of the builder, too.
    def timeout(self) -> str:
        return "my timeout"

    def build(self) -> str:
        return "my build"

    def create(self) -> str:
        return "my create"

    partial = partialmethod(execute)


class ModelRobot(Workable, BaseModel):
    name: str = "R2"

    def execute(self) -> str:
        return self.name

    def copy(self) -> str:  # type: ignore[override]
        """A name of pydantic's that its author took."""
        return f"copy of {self.name}"


class Idle(Workable):
    """Has nothing to run by itself."""

    def ping(self) -> str:
        return "pong"


class TestMethods:
    @pytest.mark.parametrize("method", ["model_dump", "json", "dict", "model_copy", "model_validate", "model_fields"])
    def test_methods_of_pydantic_are_refused_as_jobs(self, recruiter: Recruiter, method: str) -> None:
        with pytest.raises(InvalidArguments, match=f"has no method '{method}'"):
            ModelRobot().as_job_of(recruiter).with_method(method)

    @pytest.mark.parametrize("method", ["missing", "export", "constant", "_private", "__init__", "Arm", "static"])
    def test_a_stored_name_of_no_public_method_is_refused_when_the_job_runs(self, bench: Bench, method: str) -> None:
        job = ended(bench.of_job(a_job(task="Robot", args={}, method=method)))

        assert job["last_execution"]["class"] == "recruiter.errors.InvalidArguments"
        assert method in job["last_execution"]["message"]

    def test_without_execute_the_method_must_be_said(self, recruiter: Recruiter) -> None:
        with pytest.raises(InvalidArguments, match="Idle has no method 'execute'"):
            Idle().as_job_of(recruiter).in_background().execute()
        with pytest.raises(InvalidArguments, match="Idle has no method 'execute'"):
            Idle().as_job_of(recruiter).create()

        assert Idle().as_job_of(recruiter).ping().result(timeout=60) == "pong"


# -- names -----------------------------------------------------------------------------------------------------------


class TestNames:
    def test_a_new_job_gets_the_new_name(self, recruiter: Recruiter) -> None:
        recruiter.task(name="new", aliases=["old"])(lambda a: a)

        assert recruiter.job("old", {"a": 1}).build().task == "new"
