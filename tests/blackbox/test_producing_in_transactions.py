"""Enqueuing in the caller's own transaction, on a database that Recruiter has never used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from recruiter import Recruiter


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
