"""Documents that earlier releases wrote: this release reads all of them and runs the jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson.json_util import CANONICAL_JSON_OPTIONS, loads
from pymongo import MongoClient

from recruiter import Recruiter
from recruiter.store.ownership import SCHEMA
from tests.cli_here import here
from tests.conftest import Starter, eventually
from tests.fixtures import application
from tests.fixtures.write import INDEXES, indexes_of

FOLDER = Path(__file__).parents[1] / "fixtures"
RELEASES = sorted(folder.name for folder in FOLDER.glob("schema-*"))
_FAR = datetime(2039, 1, 1, tzinfo=UTC)
_OPTIONS = CANONICAL_JSON_OPTIONS.with_options(tz_aware=True, tzinfo=UTC)


def documents_of(release: str) -> dict[str, list[dict[str, Any]]]:
    """By collection. Their dates are moved, as if they had been written just now."""
    found = {
        path.stem: [loads(line, json_options=_OPTIONS) for line in path.read_text().splitlines()]
        for path in (FOLDER / release).glob("[a-z]*.json")
    }
    newest = max(document["created_at"] for document in found["scheduled"])
    return {name: [_moved(each, datetime.now(UTC) - newest) for each in each_of] for name, each_of in found.items()}


def _moved(value: Any, by: timedelta) -> Any:
    if isinstance(value, datetime):
        return value + by if value < _FAR else value
    if isinstance(value, dict):
        return {key: _moved(each, by) for key, each in value.items()}
    return [_moved(each, by) for each in value] if isinstance(value, list) else value


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, target: str) -> dict[str, list[dict[str, Any]]]:
    """The documents of an earlier release in a prepared database, accepted by the validators of this one."""
    code, said = here(target, "prepare")
    assert code == 0, said
    documents = documents_of(request.param)
    client: MongoClient[dict[str, Any]] = MongoClient(target)
    with closing(client):
        for name, stored in documents.items():
            if stored and name != "meta":
                client.get_default_database()[f"recruiter.{name}"].insert_many(stored)
    return documents


@pytest.fixture
def recruiter(target: str) -> Iterator[Recruiter]:
    application.recruiter.point_at(target)
    yield application.recruiter
    application.recruiter.close()
    application.recruiter.point_at(None)


def ids_of(release: dict[str, list[dict[str, Any]]], task: str) -> list[Any]:
    return [document["_id"] for document in release["scheduled"] if document["task"] == task]


def test_every_release_has_its_documents() -> None:
    """Given a schema, its documents are kept, so that the next one can be tested with them."""
    assert [f"schema-{number}" for number in range(SCHEMA + 1)] == RELEASES
    for name in ("scheduled", "archived", "flows", "schedulers", "limits", "unique_keys", "creations", "statistics"):
        assert all((FOLDER / release / f"{name}.json").read_text() for release in RELEASES), name


@pytest.mark.parametrize("release", RELEASES)
def test_no_index_has_changed_under_its_name(release: str, target: str) -> None:
    """A process of an earlier release still needs the index that it made; a new definition needs a new name."""
    assert here(target, "prepare")[0] == 0
    client: MongoClient[dict[str, Any]] = MongoClient(target)
    with closing(client):
        ours = indexes_of(client.get_default_database(), "recruiter.")

    for collection, indexes in json.loads((FOLDER / release / INDEXES).read_text()).items():
        for name, index in indexes.items():
            assert ours[collection].get(name, index) == index, f"{name} of {collection}"


def test_every_document_can_be_read(
    release: dict[str, list[dict[str, Any]]], recruiter: Recruiter, target: str
) -> None:
    _, said = here(target, "doctor", "--all")
    assert "cannot be read" not in said, said

    for stored in (*release["scheduled"], *release["archived"]):
        found = recruiter.find(stored["_id"])
        assert (found.task, found.group) == (stored["task"], stored["group"])
        assert recruiter.explain(found.id)
    page = recruiter.jobs.list(limit=100)
    assert len(page.jobs) == len(release["scheduled"]) + len(release["archived"])
    assert page.unreadable == ()
    assert {flow.name for flow in recruiter.flows.latest()} == {"sums", "half done"}
    assert {scheduler.urn for scheduler in recruiter.schedulers()} == {"report:daily", "tick"}
    assert sum(recruiter.analytics(within="1 hour").ended.values()) == len(release["archived"])
    assert "group:reports" in str(recruiter.controls.rules())
    assert [limit.subject for limit in recruiter.controls.limits()].count("task:add") == 1


def test_keys_and_creations_still_hold(release: dict[str, list[dict[str, Any]]], recruiter: Recruiter) -> None:
    assert not recruiter.create("add", {"a": 5, "b": 5}).created
    assert not application.add.job(4, 5).unique("the key", until="ended").enqueue().created


def test_every_job_runs(release: dict[str, list[dict[str, Any]]], recruiter: Recruiter, fleet: Starter) -> None:
    # given the documents, with a job that waits for a signal, and one for a far future
    (charges,) = ids_of(release, "charges")
    far = [document["_id"] for document in release["scheduled"] if document["scheduled_at"] > _FAR]
    never = ids_of(release, "fails_always")
    ends = [document["_id"] for document in release["scheduled"] if document["_id"] not in [*far, *never]]

    # when a fleet of this release works on them, and the signal comes
    fleet(application.__file__, "--processes", "2")
    recruiter.signal(charges, "approved", "by Ada")

    # then each job ends as it should
    results = {id: recruiter.handle(id).result(timeout="60s") for id in ends}
    assert results[charges] == "42 by Ada"
    assert [results[id] for id in ids_of(release, "fails_once")] == ["done"]
    assert [results[id] for id in ids_of(release, "total")] == [6]
    assert [results[id] for id in ids_of(release, "KeptGreeting")] == ["Hello, Ada!"]
    assert recruiter.find(far[0]).state == "waiting"
    eventually(lambda: recruiter.find(never[0]).attempts > 0)
    # and an ended one can be recovered
    failed = next(document for document in release["archived"] if document["task"] == "fails")
    again = recruiter.recover(failed["_id"])
    assert again.wait(timeout="60s").why == recruiter.find(failed["_id"]).why
