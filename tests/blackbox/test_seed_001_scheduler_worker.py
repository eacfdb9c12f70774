"""The seed document of the MongoDB Job Scheduler Worker, typed literally: what becomes of its documents here."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo.collection import Collection

from recruiter import Recruiter
from recruiter.store.connection import Target
from tests.cli_here import here
from tests.conftest import eventually

DB_NAME = "scheduler_demo"
COLLECTION_NAME = "jobs"


def a_document(**changes: Any) -> dict[str, Any]:
    """The schema of the seed, field by field."""
    now = datetime.now(UTC)
    return {
        "_id": ObjectId(),
        "scheduler_id": str(uuid.uuid4()),
        "job_name": "Job_1",
        "status": "pending",
        "created_at": now,
        "trigger_time": now,
        "locked_by": None,
        "locked_at": None,
        "payload": {"order": 7},
        **changes,
    }


def minutes_ago(minutes: float) -> datetime:
    return datetime.now(UTC) - timedelta(minutes=minutes)


@pytest.fixture
def jobs(scheduled: Collection[dict[str, Any]]) -> Iterator[Collection[dict[str, Any]]]:
    """The collection of the other program, in a database of its own."""
    database = f"{scheduled.database.name}_{DB_NAME}"
    yield scheduled.database.client[database][COLLECTION_NAME]
    scheduled.database.client.drop_database(database)


@pytest.fixture
def ran(recruiter: Recruiter) -> list[int]:
    ran: list[int] = []

    @recruiter.task(name="Job_1")
    def job_1(order: int = 0) -> None:
        ran.append(order)

    return ran


def imported(recruiter: Recruiter, jobs: Collection[dict[str, Any]], *options: str) -> dict[str, dict[str, Any]]:
    """What `recruiter import` says of each document, by its id there."""
    origin = Target.parse(recruiter.address).in_database(jobs.database.name).uri
    code, said = here(recruiter.address, "import", "job-scheduler-worker", origin, "--output", "json", *options)
    assert code == 0, said
    return {line["id"].partition(":")[2]: line for line in json.loads(said)["documents"]}


@pytest.mark.parametrize(
    ("status", "locked_at"), [("pending", None), ("locked", minutes_ago(20)), ("locked", None), ("completed", None)]
)
def test_inserted_as_it_is_the_document_is_set_aside_with_the_names_of_our_fields(
    recruiter: Recruiter, scheduled: Collection[dict[str, Any]], ran: list[int], status: str, locked_at: Any
) -> None:
    document = a_document(
        status=status, locked_by=str(uuid.uuid4()) if status == "locked" else None, locked_at=locked_at
    )

    scheduled.insert_one(document)
    recruiter.run("Job_1", wait="1s")

    ended = recruiter.handle(document["_id"]).wait(timeout=60)
    assert (ended.why, ran) == ("malformed", [])
    assert ended.reason == (
        "task is missing; here job_name, payload and trigger_time are called task, args and scheduled_at"
    )


def test_its_collection_is_imported(recruiter: Recruiter, jobs: Collection[dict[str, Any]], ran: list[int]) -> None:
    """Every status of the seed, each with the outcome that it would have had there."""
    documents = {
        "due": a_document(payload={"order": 1}),
        "due 29 minutes ago": a_document(trigger_time=minutes_ago(29), payload={"order": 2}),
        "due 31 minutes ago": a_document(trigger_time=minutes_ago(31), payload={"order": 3}),
        "due tomorrow": a_document(trigger_time=minutes_ago(-24 * 60), payload={"order": 4}),
        "stale": a_document(status="locked", locked_by="w", locked_at=minutes_ago(16), payload={"order": 5}),
        "without a date": a_document(status="locked", locked_by="w", payload={"order": 6}),
        "locked now": a_document(status="locked", locked_by="w", locked_at=minutes_ago(0), payload={"order": 7}),
        "completed": a_document(status="completed", payload={"order": 8}),
        "due as a text": a_document(trigger_time="2038-01-01", payload={"order": 9}),
        "without a payload": {name: value for name, value in a_document().items() if name != "payload"},
    }
    jobs.insert_many(documents.values())

    lines = imported(recruiter, jobs)
    recruiter.run_all("Job_1")

    told = {name: lines[str(document["_id"])] for name, document in documents.items()}
    assert {name for name, line in told.items() if line["what"] == "left"} == {"completed", "due as a text"}
    assert told["due as a text"]["told"] == "its trigger_time is not a date"
    assert told["completed"]["told"] == "its status is 'completed'"
    assert sorted(ran) == [0, 1, 2, 5, 6]
    here_it_is = {name: f"job-scheduler-worker:{document['_id']}" for name, document in documents.items()}
    tomorrow, locked = recruiter.find(here_it_is["due tomorrow"]), recruiter.find(here_it_is["locked now"])
    assert tomorrow.scheduled_at > datetime.now(UTC) + timedelta(hours=23)
    assert locked.scheduled_at > datetime.now(UTC) + timedelta(minutes=14), "when its lock would be stale"
    late = here_it_is["due 31 minutes ago"]
    eventually(lambda: recruiter.run("Job_1") is None and getattr(recruiter.find(late), "why", None) == "expired")


def test_importing_twice_makes_no_job_twice_and_a_dry_run_none(
    recruiter: Recruiter, jobs: Collection[dict[str, Any]], ran: list[int]
) -> None:
    jobs.insert_one(a_document())

    assert [line["what"] for line in imported(recruiter, jobs, "--dry-run").values()] == ["job"]
    assert recruiter.run_all("Job_1") == []
    imported(recruiter, jobs)
    assert [line["told"] for line in imported(recruiter, jobs).values()] == ["it was imported before"]
    recruiter.run_all("Job_1")
    assert ran == [7]
