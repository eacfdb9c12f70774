"""Producing jobs: values arrive equal or are refused, with and without the code of the task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NotRequired

import pytest
from pydantic import BaseModel
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import OperationFailure
from typing_extensions import TypedDict

from recruiter import Recruiter
from recruiter.errors import InvalidArguments


class Address(TypedDict):
    street: str
    number: NotRequired[float]


class Order(BaseModel):
    number: int


NOT_A_FLOAT = 2**60 + 1
"""No float has this value."""


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        pytest.param(Address, {"street": "Via Roma", "city": "Torino"}, id="an unknown key"),
        pytest.param(list[Address], [{"street": "Via Roma", "city": "Torino"}], id="an unknown key in a list"),
        pytest.param(Address, {"street": "Via Roma", "number": NOT_A_FLOAT}, id="a float in a TypedDict"),
        pytest.param(Address | dict[str, Any], {"street": "Via Roma", "city": "Torino"}, id="a TypedDict or a dict"),
        pytest.param(float, NOT_A_FLOAT, id="a float"),
        pytest.param(dict[str, float], {"x": NOT_A_FLOAT}, id="a float in a dict"),
        pytest.param(Order | dict, {"number": 7}, id="a model or a dict"),
        pytest.param(list[Order | dict], [{"number": 7}], id="a model or a dict in a list"),  # type: ignore[type-arg]
    ],
)
def test_a_value_that_would_arrive_as_another_one_is_refused(recruiter: Recruiter, annotation: Any, value: Any) -> None:
    def send(what: Any) -> None: ...

    send.__annotations__["what"] = annotation
    task = recruiter.task(send)

    with pytest.raises(InvalidArguments, match=r"what: .* would arrive as"):
        task.enqueue(value)
    assert recruiter.jobs.count().number == 0


def test_values_that_arrive_equal_are_accepted(recruiter: Recruiter) -> None:
    arrived = []

    @recruiter.task
    def send(address: Address, price: float, order: Order, either: dict[str, int] | Order) -> None:
        arrived.append((address, price, order, either))

    send.enqueue({"street": "Via Roma", "number": 2}, 3, Order(number=7), {"number": 7})
    recruiter.run_all("send")

    assert arrived == [({"street": "Via Roma", "number": 2}, 3, Order(number=7), {"number": 7})]


def test_an_unknown_key_of_a_typed_dict_in_a_foreign_document_is_an_error_of_that_job(
    recruiter: Recruiter, scheduled: Collection[dict[str, Any]]
) -> None:
    @recruiter.task
    def send(address: Address) -> None: ...

    scheduled.insert_one({"_id": 1, "task": "send", "args": {"address": {"street": "Via Roma", "city": "Torino"}}})
    (report,) = recruiter.run_all("send")

    assert "has no key 'city'" in str(report.error)


def with_options(a: int, **options: Any) -> dict[str, Any]:
    return {"a": a, **options}


@pytest.mark.parametrize("args", [{"a": 1, "b": 2, "c": "x"}, {"a": 1, "options": {"b": 2, "c": "x"}}])
def test_a_producer_without_the_code_calls_a_task_with_keyword_arguments(
    recruiter: Recruiter, scheduled: Collection[dict[str, Any]], args: dict[str, Any]
) -> None:
    recruiter.task(with_options)

    scheduled.insert_one({"_id": 1, "task": "with_options", "args": args})
    recruiter.run_all("with_options")

    assert recruiter.handle(1).result(timeout=60) == {"a": 1, "b": 2, "c": "x"}


def scale(x: float, y: float = 1.0) -> None: ...


def gather(*items: int) -> None: ...


def configure(name: str, **options: Any) -> None: ...


Make = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("function", "with_the_code", "data"),
    [
        pytest.param(scale, lambda task: task.create(1), {"x": 1}, id="a whole number for a float"),
        pytest.param(scale, lambda task: task.create(1, y=2.0), {"y": 2, "x": 1.0}, id="two numbers"),
        pytest.param(scale, lambda task: task.create(0.5, 3), {"x": 0.5, "y": 3}, id="positional"),
        pytest.param(gather, lambda task: task.create(1, 2, 3), {"items": [1, 2, 3]}, id="*args"),
        pytest.param(
            configure, lambda task: task.create("a", b=1, c=2.0), {"c": 2, "name": "a", "b": 1}, id="**kwargs"
        ),
        pytest.param(configure, lambda task: task.create("a", b=1), {"name": "a", "options": {"b": 1}}, id="nested"),
    ],
)
@pytest.mark.parametrize("code_first", [True, False], ids=["with the code first", "without the code first"])
def test_producers_with_and_without_the_code_make_one_job_of_the_same_data(
    recruiter: Recruiter, function: Callable[..., Any], with_the_code: Make, data: dict[str, Any], code_first: bool
) -> None:
    """The other producer has the same database, and does not know the task."""
    task = recruiter.task(function)
    with Recruiter(recruiter.address) as elsewhere:
        here, there = partial(with_the_code, task), partial(elsewhere.create, task=function.__name__, data=data)
        first, second = (here(), there()) if code_first else (there(), here())

    assert (first.created, second.created) == (True, False)
    assert first.id == second.id
    assert recruiter.jobs.count().number == 1


def test_a_list_makes_no_id_where_the_names_are_not_known(recruiter: Recruiter) -> None:
    recruiter.task(scale)
    by_name = recruiter.create(task="scale", data={"x": 1})

    assert recruiter.create(task="scale", data=[1]).id == by_name.id, "here the names are known"
    with Recruiter(recruiter.address) as elsewhere:
        with pytest.raises(InvalidArguments, match="give the arguments as a document, or give an id"):
            elsewhere.create(task="scale", data=[1])
        assert elsewhere.create(task="scale", data=[1], id="mine").created
        assert elsewhere.job("scale", [1]).enqueue().created


def test_a_parameter_may_be_called_self(recruiter: Recruiter) -> None:
    @recruiter.task
    def marry(self: str, other: str) -> str:
        return f"{self} and {other}"

    assert marry(self="Ada", other="Bob") == "Ada and Bob"
    handles = [
        marry.enqueue(self="Ada", other="Bob"),
        marry.create(self="Ada", other="Bob"),
        marry.job(self="Ada", other="Bob").enqueue(),
        recruiter.job("marry", {"self": "Ada", "other": "Bob"}).enqueue(),
        asyncio.run(marry.aenqueue(self="Ada", other="Bob")),
        asyncio.run(marry.acreate(self="Ada", other="Bob")),
    ]
    recruiter.run_all("marry")
    assert [handle.result(timeout=60) for handle in handles] == ["Ada and Bob"] * 6


@pytest.fixture
def fresh(target: str) -> Iterator[Recruiter]:
    """A Recruiter on a database that does not exist yet."""
    with (
        MongoClient[Any](target) as client,
        Recruiter(client[f"{client.get_default_database().name}_fresh"]) as recruiter,
    ):
        recruiter.task(note)
        yield recruiter
        client.drop_database(recruiter.target.database)


def note(text: str) -> str:
    return text


def enqueue_with_own_data(recruiter: Recruiter, session: ClientSession) -> None:
    database = session.client[recruiter.target.database]
    database.orders.insert_one({"_id": 7}, session=session)
    recruiter.job("note", ["x"]).enqueue(session=session)


def test_after_prepare_the_first_use_may_be_inside_a_transaction(fresh: Recruiter, target: str) -> None:
    fresh.prepare()

    with MongoClient[Any](target) as client, client.start_session() as session, session.start_transaction():
        enqueue_with_own_data(fresh, session)

    ran = fresh.run("note")
    assert ran is not None
    assert ran.result == "x"


def test_without_prepare_a_transaction_is_told_what_to_do_and_a_repeated_one_succeeds(
    fresh: Recruiter, target: str
) -> None:
    with MongoClient[Any](target) as client, client.start_session() as session:
        told = r"call recruiter\.prepare\(\) when your program starts"
        with pytest.raises(OperationFailure, match=told), session.start_transaction():
            enqueue_with_own_data(fresh, session)
        fresh.store.drop()
        fresh.close()

        # with_transaction runs it again by itself
        session.with_transaction(lambda session: enqueue_with_own_data(fresh, session))

    ran = fresh.run("note")
    assert ran is not None
    assert ran.result == "x"
