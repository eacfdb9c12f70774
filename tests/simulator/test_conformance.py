"""The server in memory answers as MongoDB does: the same random operations on both, compared one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import pymongo
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, InsertOne, ReturnDocument, UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError

from recruiter.store.codec import RAW
from recruiter.store.database import Store
from tests.simulator.client import Client
from tests.simulator.server import Locked, Server

T = TypeVar("T")

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NAME = "compared"
SEEDS, OPERATIONS = 8, 120
_BLOCKED_AFTER = 0.4


class Direct:
    """A network without delays and faults."""

    def call(self, what: str, act: Callable[[], T], *, writes: bool = False, commits: bool = False) -> T:
        del what, writes, commits
        return act()

    def monotonic(self) -> float:
        return 0.0

    def wait(self) -> None: ...


class Questions:
    """Random parts of operations, of the kinds that the store uses."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.overlaps = bool(seed % 2)
        """Whether some of them are in two transactions that overlap."""

    def id(self) -> Any:
        return self.random.choice([1, 2, 3, 4, "a", "b"])

    def scalar(self) -> Any:
        return self.random.choice([None, 0, 1, 2, 5, 2.5, "", "g/a", "g/b", "/cancelled", True, self.moment()])

    def moment(self) -> datetime:
        return NOW + timedelta(seconds=self.random.randint(0, 3))

    def document(self, id: Any) -> dict[str, Any]:
        fields = {
            "lane": self.random.choice([None, "g/a", "g/b", "/cancelled"]),
            "n": self.scalar(),
            "term": self.random.randint(0, 3),
            "at": self.moment(),
            "assigned": [self.id() for _ in range(self.random.randint(0, 3))],
            "metered": [{"job": self.id(), "lane": "g/a"} for _ in range(self.random.randint(0, 2))],
            "ended": {"done": self.random.randint(0, 3)},
            "flow": self.flow(),
            "signals": [{"name": self.random.choice("xy")} for _ in range(self.random.randint(0, 3))],
        }
        return {"_id": id, **{name: value for name, value in fields.items() if self.random.random() < 0.8}}

    def flow(self) -> dict[str, Any]:
        fields = {"id": 1, "step": self.id(), "after": [self.id() for _ in range(self.random.randint(0, 3))], "held": 1}
        return {name: value for name, value in fields.items() if self.random.random() < 0.7}

    def query(self) -> dict[str, Any]:
        ids = [self.id() for _ in range(2)]
        return self.random.choice(
            [
                {},
                {"_id": self.id()},
                {"_id": {"$in": ids}},
                {"_id": {"$nin": ids}, "term": {"$lte": 2}},
                {"lane": {"$gt": ""}},
                {"lane": {"$gt": "", "$ne": "/cancelled"}},
                {"lane": None},
                {"lane": {"$in": [None, "g/a"]}},
                {"n": self.scalar()},
                {"n": {"$ne": self.scalar()}},
                {"n": {"$gte": self.scalar()}},
                {"n": {"$lt": self.scalar()}},
                {"n": {"$type": ["int", "long"]}},
                {"n": {"$exists": False}},
                {"assigned": self.id()},
                {"assigned.0": {"$exists": True}},
                {"metered.job": self.id()},
                {"at": {"$lte": self.moment(), "$gt": NOW}},
                {"ended.done": {"$gte": 1}},
                {"$or": [{"term": {"$lt": 1}}, {"$nor": [{"n": {"$type": ["int", "long"]}}]}]},
                {"$and": [{"lane": {"$gt": ""}}, {"at": {"$not": {"$gt": self.moment()}}}]},
                {"_id": {"$gte": "a", "$lt": "b"}},
                {"flow.id": 1, "flow.after": {"$in": ids}, "$or": [{"flow.many": None}, {"flow.many": 1}]},
                {"flow.id": 1, "flow.held": {"$not": {"$gte": self.random.randint(0, 2)}}},
                {"signals.1": {"$exists": False}},
                {"signals.name": {"$ne": "x"}},
                {"$expr": self.has_come()},
                {"$nor": [{"$expr": {"$or": [self.has_come(), self.has_come()]}}]},
                {"$expr": {"$and": [{"$lte": [{"$bsonSize": "$$ROOT"}, self.random.choice((60, 200))]}]}},
            ]
        )

    def has_come(self) -> dict[str, Any]:
        """As a job that waits for a signal asks whether it has come."""
        named = {"input": {"$ifNull": ["$signals", []]}, "cond": {"$eq": ["$$this.name", {"$literal": "x"}]}}
        return {"$gte": [{"$size": {"$filter": named}}, self.random.randint(0, 2)]}

    def pipeline(self) -> list[dict[str, Any]]:
        """Updates that read the document they change, as of flows, signals and debounced jobs."""
        fields = self.random.choice(
            [
                {"lane": "/blocked", "flow.held": 2, "flow.x": {"$cond": [{"$ne": ["$lane", None]}, True, "$flow.x"]}},
                {"signals": {"$concatArrays": [{"$ifNull": ["$signals", []]}, [{"name": {"$literal": "$x"}}]]}},
                {"log": {"$slice": [{"$concatArrays": [{"$cond": [{"$isArray": "$log"}, "$log", []]}, [1, 2]]}, -3]}},
                {"at": {"$cond": [{"$and": [{"$eq": [{"$type": "$flow"}, "object"]}, "$term"]}, NOW, "$at"]}},
                {"n": {"$cond": [{"$in": [{"$literal": 1}, {"$ifNull": ["$assigned", []]}]}, "$term", "$gone"]}},
            ]
        )
        contents = {"$mergeObjects": [{"$literal": {"lane": "g/b"}}, {"signals": "$signals", "at": "$at"}]}
        return self.random.choice([[{"$set": fields}], [{"$set": fields}], [{"$replaceWith": contents}]])

    def update(self) -> Any:
        return self.pipeline() if self.random.random() < 0.3 else self.operators()

    def operators(self) -> dict[str, Any]:
        ids = [self.id() for _ in range(2)]
        return self.random.choice(
            [
                {"$set": {"lane": "/cancelled", "cancel": {"by": None}}},
                {"$set": {"term": 3}, "$push": {"assigned": {"$each": ids}}, "$inc": {"given": 1}},
                {"$pull": {"assigned": {"$in": ids}, "metered": {"job": {"$in": ids}}}, "$inc": {"term": 1}},
                {"$unset": {"n": "", "at": ""}},
                {"$max": {"term": 2}},
                {"$max": {"at": self.moment()}},
                {"$inc": {"ended.done": 1, "ended.failed": 2}},
                {"$set": {"n": self.scalar(), "sub": {"x": [1, {"y": 2}]}}},
                {"$push": {"assigned": {"$each": ids, "$slice": -3}}, "$min": {"at": self.moment()}},
                {"$addToSet": {"tags": {"$each": ["x", *self.random.sample("xyz", 2)]}}, "$unset": {"flow.held": ""}},
                {"$set": {"flow.cancels": 1, "flow.after": ids}, "$unset": {"ended.no": "", "gone.deep": ""}},
            ]
        )

    def projection(self) -> dict[str, Any] | None:
        size = {"$cond": [{"$isArray": "$assigned"}, {"$size": "$assigned"}, None]}
        last = {"$slice": -2}
        part = {"flow.step": 1, "flow.after": last, "flow.many": last, "bytes": {"$bsonSize": "$$ROOT"}}
        whole = [None, {"_id": 1}, {"n": 1, "_id": 0}, {"assigned": 1, "term": 1}, {"holds": size}]
        return self.random.choice([*whole, part, {"_id": 0, "flow.step": 1, "n": 1}, {"ended.done": 1}])

    def order(self) -> list[tuple[str, int]]:
        return self.random.choice([[("_id", 1)], [("term", -1), ("_id", 1)], [("n", 1), ("_id", -1)]])


def plain(value: Any) -> Any:
    if isinstance(value, RawBSONDocument):
        return dict(value)
    return [plain(each) for each in value] if isinstance(value, list) else value


def answer(call: Callable[[], Any]) -> Any:
    """The answer of a call, or the kind of its error, so that two can be compared."""
    try:
        return plain(call())
    except Locked:
        return "blocked"
    except BulkWriteError as error:
        return [(each["index"], each["code"]) for each in error.details["writeErrors"]]
    except PyMongoError as error:
        if error.timeout or isinstance(error, pymongo.errors.NetworkTimeout):
            return "blocked"
        return error.code if isinstance(error, OperationFailure) else type(error).__name__


Operation = Callable[[Any, Any], Any]
"""On a collection, in a session or in none."""


def reading(ask: Questions) -> Operation:
    query, fields, order = ask.query(), ask.projection(), ask.order()
    most = ask.random.choice([0, 1, 3])
    lanes: list[dict[str, Any]] = [{"$match": {"lane": {"$gt": ""}}}, {"$group": {"_id": "$lane"}}]
    of_lane = [{"$match": query}, {"$sort": dict(order)}, {"$limit": 2}, {"$project": {"_id": 1, "n": 1}}]
    union = [*of_lane, {"$unionWith": {"coll": NAME, "pipeline": of_lane}}]
    return ask.random.choice(
        [
            lambda c, s: list(c.find(query, fields, sort=order, limit=most, session=s)),
            lambda c, s: list(c.with_options(codec_options=RAW).find(query, fields, session=s).sort(order)),
            lambda c, s: c.find_one(query, fields, sort=order, session=s),
            lambda c, s: sorted((d["_id"] for d in c.aggregate(lanes)), key=str) if s is None else [],
            lambda c, s: list(c.aggregate(union)) if s is None else [],
            lambda c, s: c.count_documents(query, session=s),
            lambda c, s: sorted(c.distinct("flow.id", query)) if s is None else [],
        ]
    )


def writing(ask: Questions) -> Operation:
    query, update, id = {**ask.query(), "_id": ask.id()}, ask.update(), ask.id()
    new, others = ask.document(id), [ask.document(ask.id()) for _ in range(2)]
    operators = ask.operators()
    fresh = ask.random.choice([ReturnDocument.BEFORE, ReturnDocument.AFTER])
    bulk = [
        UpdateOne({"_id": id, "term": {"$lte": 2}}, update),
        UpdateOne({"_id": ask.id()}, ask.operators(), upsert=True),
        UpdateMany({"_id": {"$in": [ask.id(), ask.id()]}, "lane": "g/a"}, {"$set": {"lane": "/blocked"}}),
        DeleteOne({"_id": ask.id(), "n": {"$gt": 2}}),
    ]
    return ask.random.choice(
        [
            lambda c, s: c.insert_one(dict(new), session=s) and None,
            lambda c, s: c.insert_many([dict(each) for each in others], session=s) and None,
            lambda c, s: c.update_one(query, update, session=s).matched_count,
            lambda c, s: c.update_one({"_id": id}, operators, upsert=True, session=s).matched_count,
            lambda c, s: c.update_many(ask_many, update, session=s).modified_count,
            lambda c, s: c.find_one_and_update(query, update, return_document=fresh, session=s),
            lambda c, s: c.find_one_and_delete({"_id": id, "term": {"$gte": 1}}, {"signals": 1}, session=s),
            lambda c, s: c.delete_one(query, session=s).deleted_count,
            lambda c, s: c.delete_many({"_id": {"$in": [id, "a"]}}, session=s).deleted_count,
            # MongoDB may continue a bulk that has waited behind a transaction, even when its caller has given up.
            lambda c, s: c.bulk_write(bulk, ordered=False, session=s).matched_count if s or not ask.overlaps else 0,
            lambda c, s: c.bulk_write([InsertOne(dict(each)) for each in others], session=s) and None,
            lambda c, s: c.replace_one({"_id": id}, {"n": 1}, upsert=True, session=s).matched_count,
        ]
    )


ask_many = {"term": {"$lt": 2}}


class Pair:
    """Both servers, and the sessions that are open on them."""

    def __init__(self, store: Store) -> None:
        self.real = store.database.get_collection(NAME)
        self.real.drop()
        store.database.create_collection(NAME)
        numbers = iter(range(1, 1000))
        self.client = Client(Server(lambda: 0.0, NOW), Direct(), lambda: UUID(int=next(numbers)))
        self.simulated: Any = self.client.get_database("x").get_collection(NAME)
        self.sessions: list[tuple[Any, Any]] = [
            (store.client.start_session(), self.client.start_session()) for _ in range(2)
        ]

    def compare(self, operation: Operation, place: int | None, told: str) -> None:
        real, simulated = self.sessions[place] if place is not None else (None, None)
        # MongoDB lets a call wait behind a transaction, and a busy machine makes one wait that need not.
        found = answer(lambda: operation(self.simulated, simulated))
        with pymongo.timeout(_BLOCKED_AFTER if found == "blocked" else 20.0):
            expected = answer(lambda: operation(self.real, real))
        assert found == expected, told
        failed = isinstance(expected, list) and expected and isinstance(expected[0], tuple)
        if place is not None and (failed or (isinstance(expected, int) and expected > 10)):
            self.end(place, "abort_transaction")  # an error of the server ends the transaction

    def begin(self, place: int) -> None:
        for session in self.sessions[place]:
            session.start_transaction()
        self.compare(lambda c, s: c.find_one({"_id": 0}, session=s), place, "the first read takes the snapshot")

    def end(self, place: int, how: str) -> None:
        real, simulated = self.sessions[place]
        expected, found = answer(getattr(real, how)), answer(getattr(simulated, how))
        assert found == expected, how
        simulated.transaction = None

    def close(self) -> None:
        for place, (real, _) in enumerate(self.sessions):
            if real.in_transaction:
                self.end(place, "abort_transaction")
            real.end_session()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_answer_the_same(store: Store, seed: int) -> None:
    # given the same random operations, some of them in two transactions that overlap
    ask, pair = Questions(seed), Pair(store)
    for number in range(OPERATIONS):
        told = f"seed {seed}, operation {number}"
        place = ask.random.choice([None, None, 0, 1]) if ask.overlaps else None
        if place is not None and not pair.sessions[place][0].in_transaction:
            pair.begin(place)
        # then both answer the same
        if place is not None and ask.random.random() < 0.15:
            pair.end(place, ask.random.choice(["commit_transaction", "abort_transaction"]))
        else:
            pair.compare(reading(ask) if ask.random.random() < 0.3 else writing(ask), place, told)
    pair.close()
    # and they hold the same in the end
    assert list(pair.simulated.find({}, sort=[("_id", 1)])) == list(pair.real.find({}, sort=[("_id", 1)]))


def test_an_ended_session_ends_its_transaction(store: Store) -> None:
    pair = Pair(store)
    pair.begin(0)
    pair.compare(lambda c, s: c.insert_one({"_id": 1}, session=s) and None, 0, "a write in it")
    store.client.admin.command("killSessions", [pair.sessions[0][0].session_id])
    pair.client.server.end_session(pair.sessions[0][1].id)
    with pytest.raises(OperationFailure) as real:
        pair.sessions[0][0].commit_transaction()
    with pytest.raises(OperationFailure) as simulated:
        pair.sessions[0][1].commit_transaction()
    assert simulated.value.has_error_label("TransientTransactionError")
    assert real.value.has_error_label("TransientTransactionError")
    pair.compare(lambda c, _s: c.find_one({"_id": 1}), None, "nothing of it is there")
