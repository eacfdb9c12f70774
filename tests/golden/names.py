"""The names that the transcripts of Python use."""

# ruff: noqa: F401

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from bson import Binary, ObjectId
from pydantic import BaseModel, Field, PrivateAttr, field_serializer

from recruiter import (
    Cron,
    Every,
    EveryMinutes,
    ExponentialBackoff,
    JobFilter,
    Recruiter,
    RetryForever,
    RetryManyTimes,
    SelectByException,
    TimeTable,
    Workable,
)
from recruiter.application import load_application
from recruiter.domain.arguments.check import Signature
from recruiter.domain.arguments.typed import encode_result
from recruiter.domain.arguments.values import from_bson, to_bson
from recruiter.domain.duration import to_timedelta
from recruiter.domain.planning.limits import AtLimit, AtRate, FleetBusy, KeptFor, Limit, Rate
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.reasons import HostsBusy, IsolatedBusy, NeverFits, NoWorker, SlotsBusy
from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.domain.retry.policies import RetriableExceptionFilter
from recruiter.domain.schedule.scheduler import Late, SchedulePolicy, late_occurrences
from recruiter.domain.uniqueness import Uniqueness
from recruiter.settings import Settings
from recruiter.store.connection import Target
from recruiter.workables.shell import ShellCommand

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
ROME = ZoneInfo("Europe/Rome")


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
    lines: list[Point] = field(default_factory=list)
    extra: Any = None


class Address(BaseModel):
    street: str = Field(alias="Street")
    number: int = 1


class Person(NamedTuple):
    name: str
    born: date


class Handle:
    def __repr__(self) -> str:
        return "Handle()"


class Uneven(BaseModel):
    secret: str

    @field_serializer("secret")
    def hide(self, _: str) -> str:
        return "***"


class Remembers(BaseModel):
    _memory: int = PrivateAttr(0)

    @classmethod
    def made(cls) -> Remembers:
        model = cls()
        model._memory = 5
        return model


@dataclass
class Picky:
    """Its own check raises what nobody expects."""

    x: int

    def __post_init__(self) -> None:
        raise KeyError("no")


@dataclass(frozen=True)
class Odd(SchedulePolicy):
    """A policy that answers whatever it is told to."""

    answer: Any

    def next_after(self, moment: datetime) -> datetime | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return moment if self.answer == "the same" else self.answer


def send(to: str, name: str = "you", *, copies: int = 1) -> str:
    return f"{to} {name} {copies}"


def pick(picky: Picky) -> None: ...


def collect(*rest: int, **options: str) -> None: ...


def carry(annotation: Any, value: Any) -> Any:
    """The value after a journey through a parameter with this annotation."""

    def task(value: Any) -> None: ...

    task.__annotations__ = {"value": annotation}
    signature = Signature(task)
    return signature.unbind(signature.bind((value,), {}))[1]["value"]


def itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def after_downtime(answer: Any) -> Any:
    moment = datetime(2024, 5, 1, 12, tzinfo=UTC)
    return late_occurrences(Odd(answer), moment, moment + timedelta(minutes=20))


class Robot(Workable, name="golden.Robot"):
    constant = 5

    def execute(self) -> str:
        return "R2"

    def _private(self) -> None: ...

    def ping(self, host: str, *, port: int) -> None: ...


class Exported(Workable, name="golden.Exported"):
    """Exports whatever it is told."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def export(self) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def execute(self) -> None: ...


nowhere = Recruiter("127.0.0.1:1", server_timeout="1ms")


@nowhere.task(name="golden.send")
def sent(to: str) -> None: ...


job = sent.job("ada")
NAMES = dict(globals())
