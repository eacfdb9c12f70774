"""Documents as nobody should write them: for each collection, a sound one with some fields replaced by anything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import bson
from bson import Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.binary import Binary, UuidRepresentation
from bson.codec_options import CodecOptions
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

NOW = datetime.now(UTC)
FLOW = ObjectId(f"{1:024x}")
"""One of the flows; jobs and markers belong to it."""
_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)
_NOT_UTF_8 = "ZZZZ"


def _nested(depth: int) -> Any:
    return {"n": _nested(depth - 1)} if depth else "bottom"


VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 2**31, Int64(2**63 - 1), Int64(-(2**63)), 2**53, float("nan"), float("inf")),
    *("", "x", "mail/add", "\x1b[31m", "a\nb", "{}", "x" * 30_000, _NOT_UTF_8, [], [{}], [1], ["x"], [None], [[[]]]),
    *({}, {"a": 1}, {"$gt": ""}, {"at": NOW}, {"job": "x"}, [{"job": "x"}], [{"job": "x", "since": NOW, "task": 5}]),
    *(NOW, DatetimeMS(2**60), DatetimeMS(-(2**60)), datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)),
    *(ObjectId(), UUID(int=7), Binary(b"abc", 4), Binary(b"a" * 16, 3), Binary(b"", 0), b"bytes", Code("x")),
    *(Code("x", {"y": 1}), Regex("(("), Decimal128("NaN"), Timestamp(1, 1), MinKey(), MaxKey(), _nested(50)),
]
_NO_ID = (list, Regex)

SOUND: dict[str, dict[str, Any]] = {
    "scheduled": {
        "task": "add",
        "args": {"a": 1, "b": 2},
        "group": "generic",
        "lane": "generic/add",
        "priority": 0,
        "created_at": NOW,
        "scheduled_at": NOW,
        "attempts": 0,
        "tags": ["t"],
        "urn": "u",
        "username": "me",
        "crashes": 0,
        "snoozes": 0,
        "timeout": 5,
        "cancel": {"at": NOW},
        "key": "customer:1",
        "executions": [],
    },
    "archived": {
        "task": "add",
        "args": {},
        "group": "generic",
        "priority": 0,
        "created_at": NOW,
        "scheduled_at": NOW,
        "attempts": 1,
        "done": True,
        "why": "done",
        "archived_at": NOW,
        "tags": ["t"],
        "latency": 0.1,
        "urn": "u",
        "execution_time": 0.1,
        "last_execution": {"started_at": NOW},
        "executions": [],
        "status": [],
        "log": [],
    },
    "roster": {
        "host": "h",
        "pid": 1,
        "groups": None,
        "tasks": ["add"],
        "slots": 1,
        "prefetch": 0,
        "ready": False,
        "draining": False,
        "term": 0,
        "beats": 0,
        "settled": 0,
        "given": 0,
        "running": [],
        "assigned": [],
        "joined_at": NOW,
        "seen_at": NOW,
        "metered": [],
        "resources": "",
        "session": UUID(int=1),
        "pauses": 0,
        "given_at": NOW,
        "clock_offset": 0.0,
        "drained": None,
    },
    "schedulers": {
        "job": {"task": "add"},
        "schedule": {"class": "Every", "parameters": {"interval": 3600}},
        "overlap": "unique",
        "late": "latest",
        "window": 60,
        "must_succeed_within": None,
        "created_at": NOW,
        "handled": NOW,
        "next_at": NOW,
        "paused": None,
        "made": 0,
        "skipped": 0,
        "last_at": NOW,
        "revision": 0,
        "succeeded_at": NOW,
    },
    "leases": {"term": 1, "holder": "x", "beats": 1, "host": "h", "pid": 1, "takeovers": [], "session": UUID(int=1)},
    "limits": {"at_once": 5, "rate": {"count": 9, "seconds": 1}, "floating": False, "by": "me", "at": NOW},
    "processes": {"role": "cleaner", "host": "h", "pid": 1, "seen_at": NOW, "since": NOW, "clock_offset": 0.0},
    "statistics": {
        "ended": {"succeeded": 1},
        "latency": {"count": 1, "total": 1.0, "longest": 1.0, "spread": {"1": 1}},
    },
    "actions": {"at": NOW, "by": "me", "verb": "cancel", "subject": "job 1", "reason": None, "outcome": "x"},
    "creations": {"at": NOW},
    "unique_keys": {"job": "x", "created_at": NOW, "scheduled_at": NOW, "forget_at": NOW},
    "flows": {
        "name": "f",
        "created_at": NOW,
        "username": "me",
        "ends": [],
        "run": [],
        "ended": {"at": NOW, "state": "failed"},
        "holds": 1,
        "cancels": 1,
        "changes": 1,
    },
    "flow_markers": {"flow": FLOW, "ended": [1], "added": ["x"], "all": True},
}
_OF_DURABLE_STEPS: dict[str, Any] = {
    "flow": {"id": FLOW, "step": ObjectId(), "after": [ObjectId()], "takes": [ObjectId()], "name": "s", "part": ["p"]},
    "step_results": [{"step": ObjectId(), "result": 1}],
    "checkpoints": [{"name": "charge", "at": NOW, "result": 1}],
    "signals": [{"name": "go", "at": NOW, "data": 1}],
    "waits_for": {"signal": "go", "since": NOW, "until": NOW, "checkpoint": "c", "any": ["go"]},
    "history": [{"at": NOW, "what": "paused", "by": "me"}],
    "debounced": True,
    "token": ObjectId(),
    "transaction": {"x": 1},
}
MORE: dict[str, dict[str, Any]] = {
    "scheduled": {**_OF_DURABLE_STEPS, "expires_at": datetime(9999, 12, 31, tzinfo=UTC), "retry_policy": {}},
    "archived": {**_OF_DURABLE_STEPS, "recovered_as": ObjectId(), "recovered_from": ObjectId(), "result": 1},
    "flows": {"paused": {"at": NOW, "by": "me"}, "cancel": {"at": NOW}, "forgotten": True},
}
"""What every second document of a collection has besides."""


def documents(collection: str, count: int, seed: int = 1) -> Iterator[RawBSONDocument]:
    """This number of different documents."""
    chance = random.Random(f"{collection} {seed}")
    for number in range(count):
        more = MORE.get(collection, {}) if chance.random() < 0.5 else {}
        document = {"_id": _id(collection, number, chance), **SOUND[collection], **more}
        if collection == "scheduled" and chance.random() < 0.5:
            del document["lane"]  # as another program would insert it
        for name in chance.sample([name for name in document if name != "_id"], k=min(len(document) - 1, 2)):
            if name != "lane":
                document[name] = chance.choice(VALUES)
        yield RawBSONDocument(bson.encode(document, codec_options=_OPTIONS).replace(b"ZZZZ", b"\xff\xfe\xff\xfe"))


def _id(collection: str, number: int, chance: random.Random) -> Any:
    if collection == "statistics":
        return {"at": NOW, "group": f"g{number}", "task": chance.choice(["add", 5]), "writer": UUID(int=number)}
    if collection == "limits":
        return f"{chance.choice(['task:t', 'key:k', 'starts:task:t', 'odd', 'resource:r'])}{number}"
    if chance.random() < 0.8:
        return ObjectId(f"{number:024x}") if collection.startswith("flow") else f"{collection}-{number}"
    value = chance.choice(VALUES)
    return f"{number}" if isinstance(value, _NO_ID) or (isinstance(value, dict) and "$gt" in value) else value
