"""The protocol bare: how fast this machine's MongoDB drains no-op jobs with the roster as lock table. A yardstick.

    python benchmarks/prototype.py [--jobs N] [--workers N] [--batch N]

The same durability as the product (majority, journal), the same three collections, one transaction for each settled
batch, the jobs run in a child process of each worker. It leaves out all features, five indexes and every failure; and
its child answers batch by batch, where the product's children answer job by job: here a crash would repeat a batch.
`benchmarks/budget.py` runs it and the product in turn against the same server.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

import bson
from pymongo import MongoClient, UpdateOne, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.database import Database

from recruiter.embedded import EmbeddedServer

DATABASE = "prototype"
_DURABLE = WriteConcern("majority", j=True)
_DUE = [("group", 1), ("task", 1), ("priority", -1), ("scheduled_at", 1), ("_id", 1)]
_PAUSE = 0.002
_SPAWN = get_context("spawn")

Document = dict[str, Any]


def database(uri: str) -> Database[Document]:
    return MongoClient[Document](uri, w="majority", journal=True).get_database(DATABASE)


class Prototype:
    """Jobs that wait, then a leader and workers that drain them; ended by pid whatever happens."""

    def __init__(self, uri: str, workers: int = 1, batch: int = 400) -> None:
        self._uri, self._workers, self._batch = uri, workers, batch
        self.database = database(uri)
        self.members: Mapping[str, BaseProcess] = {}
        self._stop = _SPAWN.Event()

    def fill(self, jobs: int) -> None:
        """Empties the database and inserts this number of jobs."""
        self.database.client.drop_database(DATABASE)
        self.database.scheduled.create_index(_DUE, name="due")
        self.database.recruiter.archived.create_index("ended_at")
        self.database.create_collection("roster")
        for start in range(0, jobs, 1000):
            numbers = range(start, min(start + 1000, jobs))
            self.database.scheduled.insert_many([_job(number) for number in numbers], ordered=False)

    def __enter__(self) -> Self:
        names = [f"worker-{number}" for number in range(self._workers)]
        leader = _SPAWN.Process(target=_lead, args=(self._uri, self._stop.is_set, 4 * self._batch))
        self.members = {"leader": leader} | {
            name: _SPAWN.Process(target=_work, args=(self._uri, name, self._stop.is_set, self._batch)) for name in names
        }
        for member in self.members.values():
            member.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for member in self.members.values():
            member.join()
        self.database.client.drop_database(DATABASE)
        self.database.client.close()


def _job(number: int) -> Document:
    now = time.time()
    return {
        "task": "noop",
        "group": "generic",
        "priority": 0,
        "args": {"number": number, "text": "x"},
        "attempts": 0,
        "created_at": now,
        "scheduled_at": now,
        "retry": {"policy": "none"},
    }


def _lead(uri: str, stopped: Callable[[], bool], prefetch: int) -> None:
    db = database(uri)
    while not stopped():
        roster = list(db.roster.find({}, {"assigned": 1}))
        held = [id for worker in roster for id in worker["assigned"]]
        room = {w["_id"]: prefetch - len(w["assigned"]) for w in roster if len(w["assigned"]) <= prefetch // 2}
        query = {"group": "generic", "task": "noop", "scheduled_at": {"$lte": time.time()}, "_id": {"$nin": held}}
        due = db.scheduled.find(query, {"_id": 1}).sort([("priority", -1), ("scheduled_at", 1)]).hint("due")
        ids = [job["_id"] for job in due.limit(sum(room.values()))] if room else []
        if not ids:
            time.sleep(_PAUSE)
            continue
        writes, at = [], 0
        for worker, count in room.items():
            part, at = ids[at : at + count], at + count
            if part:
                query = {"_id": worker, "term": {"$lte": 1}}
                writes.append(UpdateOne(query, {"$push": {"assigned": {"$each": part}}}))
        db.roster.bulk_write(writes, ordered=False)


def _work(uri: str, name: str, stopped: Callable[[], bool], batch: int) -> None:
    db = database(uri)
    db.roster.insert_one({"_id": name, "assigned": [], "term": 1})
    pipe, other = _SPAWN.Pipe()
    _SPAWN.Process(target=_run, args=(other,), daemon=True).start()
    while not stopped():
        found = db.roster.find_one({"_id": name}, {"assigned": 1})
        assigned = found["assigned"] if found else []
        if not assigned:
            time.sleep(_PAUSE)
        for start in range(0, len(assigned), batch):
            jobs = list(db.scheduled.find({"_id": {"$in": assigned[start : start + batch]}}))
            pipe.send_bytes(bson.encode({"jobs": jobs}))
            outcomes = bson.decode(pipe.recv_bytes())["outcomes"]
            for job, (began, ended) in zip(jobs, outcomes, strict=True):
                job["attempts"] += 1
                last = {"started_at": began, "ended_at": ended, "worker": name}
                job |= {"done": True, "ended_at": ended, "last_execution": last}
            _settle(db, name, jobs)
    pipe.send_bytes(b"")


def _run(pipe: Connection) -> None:
    """The child."""
    registry = {"noop": lambda number, text: None}  # noqa: ARG005
    while data := pipe.recv_bytes():
        outcomes = []
        for job in bson.decode(data)["jobs"]:
            started = time.time()
            registry[job["task"]](**job["args"])
            outcomes.append((started, time.time()))
        pipe.send_bytes(bson.encode({"outcomes": outcomes}))


def _settle(db: Database[Document], name: str, jobs: Sequence[Document]) -> None:
    ids = [job["_id"] for job in jobs]

    def write(session: ClientSession) -> None:
        pull = {"$pull": {"assigned": {"$in": ids}}}
        assert db.roster.update_one({"_id": name}, pull, session=session).matched_count == 1
        db.scheduled.delete_many({"_id": {"$in": ids}}, session=session)
        db.recruiter.archived.insert_many(jobs, session=session, ordered=False)

    with db.client.start_session() as session:
        session.with_transaction(write, write_concern=_DURABLE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=400)
    options = parser.parse_args()
    with EmbeddedServer() as server:
        prototype = Prototype(server.uri, options.workers, options.batch)
        prototype.fill(options.jobs)
        with prototype:
            while not (first := prototype.database.recruiter.archived.estimated_document_count()):
                time.sleep(0.01)
            began = time.perf_counter()
            while prototype.database.recruiter.archived.estimated_document_count() < options.jobs:
                time.sleep(0.02)
            seconds = time.perf_counter() - began
    print(f"drain /s {(options.jobs - first) / seconds:,.0f}")


if __name__ == "__main__":
    main()
