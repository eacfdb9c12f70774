"""Documents of any shape, inserted by hand beside a fleet at work: they harm nothing and are found with a reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from recruiter import Job
from recruiter.store.codec import encode, job_document
from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Starter, eventually


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {"bottom": "x" * 1000}
    for _ in range(depth):
        document = {"$where": document, "a.b": "y" * 10_000}
    return document


def in_the_wrong_lane(id: str, task: str) -> dict[str, Any]:
    """A full document, written by hand, whose lane says another task than the one it is of."""
    now = datetime.now(UTC)
    job = Job(id=id, task=task, args={"a": 2, "b": 3}, created_at=now, scheduled_at=now)
    return {**job_document(job), "lane": "generic/record"}


def not_utf_8(id: str) -> RawBSONDocument:
    raw = encode({"_id": id, "task": "add", "args": {"a": 1, "b": 2}, "note": "ZZZZ"})
    return RawBSONDocument(raw.replace(b"ZZZZ", b"\xff\xfe\xff\xfe"))


MALFORMED: dict[str, dict[str, Any]] = {
    "no task": {"args": {}},
    "task is a number": {"task": 7},
    "task is a document": {"task": {"$gt": ""}},
    "group is a list": {"task": "add", "args": {}, "group": ["a", "b"]},
    "args is text": {"task": "add", "args": "1, 2"},
    "date is text": {"task": "add", "args": {}, "scheduled_at": "tomorrow"},
    "date is a list": {"task": "add", "args": {}, "scheduled_at": [datetime.now(UTC)]},
    "priority is a list": {"task": "add", "args": {}, "priority": [1, 2, 3]},
    "attempts is text": {"task": "add", "args": {}, "attempts": "many"},
    "more attempts than can be": {"task": "add", "args": {}, "attempts": 2**63 - 1},
    "date beyond all dates": {"task": "add", "args": {}, "scheduled_at": DatetimeMS(2**60)},
    "junk of a megabyte": {"task": None, "args": nested(90)},
}

FAILING: dict[str, dict[str, Any]] = {
    "wrong arguments": {"task": "add", "args": {"a": "one", "c": 2}},
    "hostile arguments": {"task": "add", "args": {"$where": "sleep(1000)", "$gt": ""}},
    "hostile policy": {
        "task": "fail",
        "args": {"message": "x"},
        "retry_policy": {"class": "os.system", "parameters": {}},
    },
    "a method that is not for running": {"task": "Greeting", "args": {"name": "x"}, "method": "__init__"},
    "a megabyte of arguments": {"task": "add", "args": nested(90)},
}


def test_every_kind_is_set_aside_or_fails_alone_while_good_ones_run(fleet: Starter, store: Store) -> None:
    # given a fleet, good documents as another language would write them, and bad ones among them
    fleet(jobs.__file__, "--processes", "2")
    insert = store.scheduled.collection.insert_one
    for number in range(10):
        insert({"_id": f"good-{number}", "task": "add", "args": {"a": number, "b": 1}})
    insert({"_id": "positional", "task": "add", "args": [40, 2]})
    insert({"_id": "unknown task", "task": "unheard_of", "args": {}})
    insert(in_the_wrong_lane("wrong lane", "add"))
    for name, document in {**MALFORMED, **FAILING}.items():
        insert({"_id": name, **document})
    store.scheduled.collection.insert_one(not_utf_8("not UTF-8"))
    sent = jobs.add.enqueue_many([(number, number) for number in range(200)])

    # then everything that can run runs, at once and beside the bad ones
    for handle in sent:
        assert handle.result(timeout=60) is not None
    results = {f"good-{number}": number + 1 for number in range(10)} | {"positional": 42}
    for id, result in results.items():
        assert jobs.recruiter.handle(id).result(timeout=60) == result

    # and each bad one is in the archive with its reason
    for id in [*MALFORMED, "not UTF-8"]:
        ended = jobs.recruiter.handle(id).wait(timeout=60)
        assert (ended.why, bool(ended.reason)) == ("malformed", True), id
    assert jobs.recruiter.handle("wrong lane").result(timeout=60) == 5
    for id in FAILING:
        ended = jobs.recruiter.handle(id).wait(timeout=60)
        assert not ended.done
        assert ended.last_execution is not None
        assert ended.last_execution.message, id

    # and the one that nobody knows waits, and is the only one left
    eventually(lambda: [d["_id"] for d in store.scheduled.collection.find({})] == ["unknown task"])
    # and the index is as it was: an array in a date would have spoilt it for every query
    plan = store.scheduled.collection.find({"lane": {"$in": ["generic/add"]}}, {"_id": 1}).hint("due").explain()
    assert "'isMultiKey': True" not in str(plan)
