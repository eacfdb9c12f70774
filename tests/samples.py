"""Jobs and workers as tests need them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId

from recruiter import Workable
from recruiter.domain.job import Execution, Job, JobId
from recruiter.store import outcomes
from recruiter.store.codec import Document, encode_job, job_document
from recruiter.store.database import Store
from recruiter.store.outcomes import Rescheduled, ToArchive, rescheduled
from recruiter.store.roster_fields import Beat

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Parcel(Workable, name="samples.Parcel"):
    def __init__(self, number: int) -> None:
        self.number = number

    def execute(self) -> int:
        return self.number

    def weigh(self) -> int:
        return self.number * 2


def a_job(id: JobId | None = None, **changes: Any) -> Job:
    options = {"task": "add", "args": {"a": 1, "b": 2}, "created_at": NOW, "scheduled_at": NOW, **changes}
    return Job(id=ObjectId() if id is None else id, **options)


def insert(store: Store, *jobs: Job) -> list[JobId]:
    assert store.scheduled.insert([encode_job(job) for job in jobs]) == {}
    return [job.id for job in jobs]


def on_the_roster(store: Store, worker: str = "w1", term: int = 1, **facts: Any) -> str:
    """A worker that has joined and is ready."""
    store.roster.join(worker, facts_of_a_worker(**facts))
    assert store.roster.become_ready(worker, term)
    return worker


def hold(store: Store, *jobs: Job, worker: str = "w1") -> list[JobId]:
    """These jobs wait, and this worker holds them: only what it holds can be settled."""
    ids = insert(store, *jobs)
    give(store, *ids, worker=worker)
    return ids


def give(store: Store, *ids: JobId, worker: str = "w1") -> str:
    """This worker, which joins if it has not yet, holds these jobs."""
    on_the_roster(store, worker)
    assert store.roster.assign({worker: list(ids)}, 1)
    return worker


def beat(store: Store, worker: str, facts: Document) -> Beat | None:
    """A heartbeat, with time enough for a slow machine."""
    return store.roster.beat(worker, facts, within=20.0)


def facts_of_a_worker(**facts: Any) -> Document:
    return {
        "host": "here",
        "pid": 1,
        "groups": None,
        "tasks": ["add"],
        "slots": 4,
        "prefetch": 4,
        "joined_at": NOW,
        "seen_at": datetime.now(UTC),  # a leader gives nothing to a worker that has not shown life for long
        **facts,
    }


def running(*ids: JobId) -> Document:
    return {"running": [{"job": id, "task": "add", "since": NOW} for id in ids]}


def marked_as_started(store: Store, worker: str, *ids: JobId, at: datetime = NOW) -> None:
    """As if this worker had been about to start these at-most-once jobs, whether or not it holds them."""
    mark = {"started_by": worker, "started_at": at}
    store.scheduled.collection.update_many({"_id": {"$in": list(ids)}}, {"$set": mark})


def done(job: Job, worker: str = "w1", result: Any = 3) -> ToArchive:
    """The outcome of a job that succeeded."""
    return outcomes.succeeded(job_document(job), Execution(NOW, NOW, worker), NOW, result)


def to_retry(job: Job, at: datetime = NOW) -> Rescheduled:
    fields = {"scheduled_at": at, "attempts": job.attempts + 1}
    return rescheduled(job.id, job.attempts, fields)


def places(store: Store, ids: Iterable[JobId]) -> dict[JobId, str]:
    """Where each job is: 'scheduled', 'archived', 'both' or 'nowhere'."""
    wanted = list(ids)
    waiting = {d["_id"] for d in store.scheduled.collection.find({"_id": {"$in": wanted}}, {"_id": 1})}
    ended = store.archived.which_exist(wanted)
    names = {(True, False): "scheduled", (False, True): "archived", (True, True): "both", (False, False): "nowhere"}
    return {id: names[(id in waiting, id in ended)] for id in wanted}


def document(store: Store, id: Any) -> Document:
    """A waiting job exactly as it is stored."""
    found = store.scheduled.collection.find_one({"_id": id})
    assert found is not None, f"{id!r} is not waiting"
    return found
