"""A small world with a job of every kind in it, and the plain way to say which of them a filter means."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from bson import ObjectId

from recruiter.domain.duration import resolved
from recruiter.domain.job import Execution, Job, JobId
from recruiter.domain.retry.decision import Archive
from recruiter.domain.search.conditions import STATES
from recruiter.domain.search.filter import JobFilter
from recruiter.domain.state import State
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode, execution_document, job_document
from recruiter.store.database import Store
from recruiter.store.roster_fields import Hold
from tests.samples import NOW, on_the_roster

ERRORS = ("ValueError", "shop.errors.Refused", "mail.errors.Refused", "TimeoutError")
WHYS = ("tried-too-many-times", "non-retriable-exception", "lost", "gave-up")
_SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)

EACH_WORD: list[dict[str, Any]] = [
    {},
    *({"state": state} for state in STATES),
    {"state": ["failed", "running"]},
    {"task": "send"},
    {"group": "mail"},
    {"group": "mail", "task": ["send", "resize"], "state": "failed"},
    {"tag": "eu"},
    {"tag": ["eu", "new"]},
    {"owner": "ada"},
    {"owner": ["ada", "bob"], "group": "shop"},
    {"urn": "report:1"},
    {"limited_by": "customer:1"},
    {"worker": "w1"},
    {"error": "Refused"},
    {"error": ValueError},
    {"error": "shop.errors.Refused", "state": "waiting"},
    {"why": "gave-up"},
    {"why": ["done", "cancelled"]},
    {"args": {"customer.id": 2}},
    {"args": {"customer": {"id": (1, 2)}, "size": "s"}},
    {"args": {"size": None}},
    {"since": "2m"},
    {"until": NOW - 5 * MINUTE},
    {"created_since": "10m", "created_until": "5m"},
    {"scheduled_since": NOW, "state": "waiting"},
    {"scheduled_until": "5m"},
    {"ended_since": NOW - 5 * MINUTE, "ended_until": NOW},
    {"recovered_from": "text-1"},
    {"recovered": False, "state": "failed"},
    {"recovered": True},
    {"attempts": 1},
    {"attempts": 3},
    {"delayed": "3s"},
    {"delayed": "2m"},
    {"slow": "4s"},
    {"slow": "4s", "delayed": "2s", "state": ["running", "succeeded"]},
    {"task": "nobody"},
    {"group": "nobody"},
    {"owner": "nobody"},
    {"error": "Nobody"},
    {"attempts": 100},
]
"""Every word of a filter, and some together."""


def fill(store: Store, waiting: int = 150, ended: int = 250, seed: int = 1) -> None:
    """Jobs that wait, are postponed, run, are about to, are being cancelled, and have ended in every way."""
    chance = random.Random(seed)
    documents = [_waiting(chance, number) for number in range(waiting)]
    store.scheduled.collection.insert_many(documents)
    store.scheduled.collection.insert_many([{"task": "send", "args": {}, "tags": ["eu"]} for _ in range(3)])  # by hand
    store.archived.collection.insert_many([_ended(chance, number) for number in range(ended)])
    store.archived.collection.insert_one(
        {"_id": "junk", "done": False, "why": "malformed", "reason": "is no job", "archived_at": NOW, "original": 5}
    )
    held = [document["_id"] for document in documents if document["scheduled_at"] <= NOW][:30]
    for number, worker in enumerate(("w1", "w2")):
        on_the_roster(store, worker)
        mine = held[number::2]
        running = [{"job": id, "task": "x", "since": NOW - place * _SECOND} for place, id in enumerate(mine[:10])]
        store.roster.collection.update_one({"_id": worker}, {"$set": {"assigned": mine, "running": running}})
    flag = {"lane": "/cancelled", "cancel": {"at": NOW, "by": "ada", "reason": None}}
    flagged = [document["_id"] for document in documents[-12:]] + held[:3]
    store.scheduled.collection.update_many({"_id": {"$in": flagged}}, {"$set": flag})


def _job(chance: random.Random, number: int, at: datetime) -> Job:
    ids: list[JobId] = [ObjectId(), f"text-{chance.random()}", number * 1_000 + chance.randrange(1_000)]
    return Job(
        id=chance.choice([*ids, ObjectId(), UUID(int=chance.getrandbits(128))]),
        task=chance.choice(["send", "send", "resize", "charge"]),
        args={"customer": {"id": chance.randrange(5)}, "size": chance.choice(["s", "l", 3, None])},
        created_at=at,
        scheduled_at=at,
        group=chance.choice(["mail", "mail", "mail2", "shop"]),
        priority=chance.choice([0, 0, 0, 5, -2.5]),
        tags=chance.choice([(), (), ("eu",), ("eu", "new"), ("new",)]),
        owner=chance.choice([None, None, "ada", "bob"]),
        urn=chance.choice([None, None, None, "report:1"]),
        limited_by=chance.choice([None, None, "customer:1", "customer:2"]),
        recovered_from=chance.choice([None, None, None, "text-1"]),
    )


def _waiting(chance: random.Random, number: int) -> Document:
    at = NOW - chance.randrange(20) * _SECOND * 10
    job = _job(chance, number, at)
    if chance.random() < 0.4:
        job = replace(job, scheduled_at=NOW + chance.randrange(1, 20) * _SECOND * 10)
    document = job_document(job)
    if chance.random() < 0.3:
        document["attempts"] = chance.randrange(1, 5)
        document["last_execution"] = execution_document(_execution(chance, at, failed=True))
    return document


def _execution(chance: random.Random, at: datetime, *, failed: bool) -> Execution:
    started = at + chance.randrange(8) * _SECOND
    ended, worker = started + chance.randrange(8) * _SECOND, chance.choice(["w1", "w7"])
    if not failed:
        return Execution(started, ended, worker)
    return Execution(started, ended, worker, exception=chance.choice(ERRORS), message="no", trace="Traceback…")


def _ended(chance: random.Random, number: int) -> Document:
    at = NOW - chance.randrange(30) * _SECOND * 60
    document = job_document(_job(chance, number, at))
    document["attempts"] = chance.choice([0, 0, 0, 1, 2, 5])
    if chance.random() < 0.1:
        document["recovered_as"] = "text-2"
    end = at + chance.randrange(3) * _SECOND * 60
    if chance.random() < 0.5:
        return decode(outcomes.succeeded(document, _execution(chance, at, failed=False), end, None).document)
    if chance.random() < 0.2:
        cancelled = {**document, "cancel": {"at": end, "by": "ada", "reason": None}}
        return decode(outcomes.cancelled(cancelled, end).document)
    outcome = outcomes.failed(document, _execution(chance, at, failed=True), end, Archive(chance.choice(WHYS)))
    assert isinstance(outcome, outcomes.ToArchive)
    return decode(outcome.document)


# -- the plain way ---------------------------------------------------------------------------------------------------


class Everything:
    """All documents of a store that nobody writes to any more."""

    def __init__(self, store: Store) -> None:
        self._holds = store.roster.holds()
        self._waiting = list(store.scheduled.collection.find())
        self._ended = list(store.archived.collection.find())

    def meant_by(self, filter: JobFilter, now: datetime) -> set[JobId]:
        """The ids of all jobs that a filter means, by looking at each of them."""
        return {
            *(d["_id"] for d in self._waiting if _waits_so(filter, d, self._holds.get(d["_id"]), now)),
            *(d["_id"] for d in self._ended if _ended_so(filter, d, now)),
        }


def _waits_so(filter: JobFilter, document: Document, hold: Hold | None, now: datetime) -> bool:
    if document.get("lane") is None or filter.only_ended:
        return False
    if hold is not None:
        states = {State.RUNNING}
    else:
        states = {State.WAITING}
        if document["lane"] != "/cancelled":
            states.add("postponed" if document["scheduled_at"] > now else "queued")  # type: ignore[arg-type]
    if filter.state and not filter.state & states:
        return False
    last = document.get("last_execution", {})
    worker = hold.worker if hold else last.get("worker")
    if hold is not None:
        took, late = now - hold.since if hold.since else None, (hold.since or now) - document["scheduled_at"]
    else:
        took, late = last["ended_at"] - last["started_at"] if last else None, now - document["scheduled_at"]
    return _is_so(filter, document, worker, took, late, now) and _in_time(filter, "", document["scheduled_at"], now)


def _ended_so(filter: JobFilter, document: Document, now: datetime) -> bool:
    if not filter.wants_why(document["why"]):
        return False
    if filter.recovered is not None and filter.recovered != ("recovered_as" in document):
        return False
    if not all(_in_time(filter, which, document["archived_at"], now) for which in ("", "ended_")):
        return False
    if "original" in document:  # nothing else is known of it
        return set(_said(filter)) <= {"state", "why", "since", "until", "ended_since", "ended_until", "recovered"}
    last = document.get("last_execution", {})
    took = last["ended_at"] - last["started_at"] if last else None
    late = last["started_at"] - document["scheduled_at"] if last else None
    return _is_so(filter, document, last.get("worker"), took, late, now)


def _is_so(
    filter: JobFilter,
    document: Mapping[str, Any],
    worker: str | None,
    took: timedelta | None,
    late: timedelta | None,
    now: datetime,
) -> bool:
    error = document.get("last_execution", {}).get("class") or ""
    one_of = [
        (filter.task, document["task"]),
        (filter.group, document["group"]),
        (filter.owner, document.get("username")),
        (filter.urn, document.get("urn")),
        (filter.limited_by, document.get("key")),
        (filter.worker, worker),
        (filter.recovered_from, document.get("recovered_from")),
    ]
    return all(
        [
            *(not wanted or value in wanted for wanted, value in one_of),
            set(filter.tag) <= set(document.get("tags", ())),
            not filter.error or error in filter.error or error.rpartition(".")[2] in filter.error,
            all(_at(document["args"], path) in values for path, values in filter.args),
            document["attempts"] >= (filter.attempts or 0),
            filter.slow is None or (took is not None and took >= filter.slow),
            filter.delayed is None or (late is not None and late >= filter.delayed),
            _in_time(filter, "created_", document["created_at"], now),
            _in_time(filter, "scheduled_", document["scheduled_at"], now),
        ]
    )


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _in_time(filter: JobFilter, which: str, moment: datetime, now: datetime) -> bool:
    since, until = getattr(filter, f"{which}since"), getattr(filter, f"{which}until")
    return (since is None or moment >= resolved(since, now)) and (until is None or moment < resolved(until, now))


def _said(filter: JobFilter) -> Iterator[str]:
    for name, value in filter.items():
        if value not in (None, (), frozenset(), 0):
            yield name
