"""Your jobs in the MongoDB you already run: Recruiter beside an application's own collections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.database import Database
from pymongo.errors import WriteError

from recruiter import Recruiter
from recruiter.errors import ForeignCollection
from tests.applications import jobs
from tests.blackbox import shop_database
from tests.cli_here import here
from tests.conftest import Starter

JOBS = 100
JOBS_OF_EACH = 30
COMMANDS = (
    ["prepare"],
    ["doctor"],
    ["health"],
    ["job", "list"],
    ["job", "show", "42"],
    ["job", "cancel", "42"],
    ["group", "list"],
    ["group", "pause", "mail"],
    ["limit", "set", "task:add", "2"],
    ["worker", "list"],
    ["scheduler", "list"],
    ["flow", "list"],
    ["analytics"],
    ["metrics", "--once"],
    ["start", "worker"],
    ["start", "recruiter"],
    ["start", "cleaner"],
)


@pytest.fixture
def shop(target: str) -> Iterator[Database[dict[str, Any]]]:
    database = shop_database.opened(target)
    yield database
    database.client.close()


@pytest.fixture(autouse=True)
def application(target: str) -> Iterator[None]:
    jobs.recruiter.point_at(target)
    yield
    jobs.recruiter.close()
    jobs.recruiter.point_at(None)


def test_jobs_run_beside_an_application_that_has_every_name(shop: Database[dict[str, Any]], fleet: Starter) -> None:
    # given an application with documents, validators, indexes and TTLs of its own in every plain name
    shop_database.fill(shop)
    before = shop_database.snapshot(shop)

    # when Recruiter runs jobs with its usual settings
    fleet(jobs.__file__)
    handles = jobs.add.enqueue_many([(number, 1) for number in range(JOBS)])

    # then all of them end well, and nothing of the application has changed
    assert [handle.result(timeout="60s") for handle in handles] == [number + 1 for number in range(JOBS)]
    assert shop_database.snapshot(shop, beside="recruiter.") == before
    assert set(shop.list_collection_names()) - set(before) == {f"recruiter.{name}" for name in shop_database.NAMES}
    # and its own rules still hold
    with pytest.raises(WriteError):
        shop["scheduled"].insert_one({"task": "add"})


def test_a_producer_without_a_prefix_refuses_a_collection_of_the_application(
    shop: Database[dict[str, Any]], target: str
) -> None:
    for name in shop_database.NAMES:
        shop_database.fill(shop, name)
        before = shop_database.snapshot(shop)

        with Recruiter(target, prefix="") as recruiter, pytest.raises(ForeignCollection) as refused:
            recruiter.job("add", {"a": 1, "b": 2}).enqueue()

        assert f"collection {name} of database {shop.name}" in str(refused.value)
        assert "another prefix" in str(refused.value)
        assert "another database" in str(refused.value)
        assert shop_database.snapshot(shop) == before
        shop.drop_collection(name)


def test_every_command_without_a_prefix_refuses_and_changes_nothing(
    shop: Database[dict[str, Any]], target: str
) -> None:
    shop_database.fill(shop, "actions", "scheduled")
    before = shop_database.snapshot(shop)

    for command in COMMANDS:
        code, said = here(target, *command, "--prefix", "")

        assert code == 4, said
        assert "collections actions, scheduled of database" in said
        assert "--prefix" in said
        assert "Traceback" not in said
        assert shop_database.snapshot(shop) == before, command


def test_a_newcomers_commands_touch_no_collection_of_the_application(
    shop: Database[dict[str, Any]], target: str
) -> None:
    shop_database.fill(shop)
    before = shop_database.snapshot(shop)

    for command in (*COMMANDS[1:-3], COMMANDS[0]):
        _, said = here(target, *command)

        assert "Traceback" not in said
        assert shop_database.snapshot(shop, beside="recruiter.") == before, command


def test_a_foreign_collection_under_our_own_prefix_is_refused_too(shop: Database[dict[str, Any]], target: str) -> None:
    shop["recruiter.flows"].insert_one({"mine": True})

    with Recruiter(target) as recruiter, pytest.raises(ForeignCollection, match=r"collection recruiter\.flows of"):
        recruiter.job("add", {"a": 1, "b": 2}).enqueue()

    assert shop.list_collection_names() == ["recruiter.flows"]
    assert list(shop["recruiter.flows"].index_information()) == ["_id_"]


@pytest.mark.parametrize("kind", ["empty", "view", "time series", "capped"])
def test_a_collection_that_is_empty_or_of_another_kind_is_refused_too(
    shop: Database[dict[str, Any]], target: str, kind: str
) -> None:
    """An empty collection may have been made for the documents of tomorrow."""
    kinds: dict[str, dict[str, Any]] = {
        "empty": {},
        "view": {"viewOn": "orders", "pipeline": []},
        "time series": {"timeseries": {"timeField": "at"}},
        "capped": {"capped": True, "size": 4096},
    }
    shop.create_collection("actions", **kinds[kind])
    before = shop_database.snapshot(shop)

    code, said = here(target, "prepare", "--prefix", "")

    assert (code, "collection actions of database" in said) == (4, True), said
    assert shop_database.snapshot(shop) == before


def test_a_collection_that_appears_after_recruiter_has_prepared_is_left_alone(
    shop: Database[dict[str, Any]], target: str
) -> None:
    """Given a prepared database, when the application makes collections with plain names, then both work."""
    assert here(target, "prepare")[0] == 0
    shop_database.fill(shop)
    before = shop_database.snapshot(shop, beside="recruiter.")

    with Recruiter(target) as recruiter:
        job = recruiter.job("add", {"a": 1, "b": 2}).enqueue()
        assert recruiter.find(job.id).state == "waiting"

    assert here(target, "doctor", "--output", "json")[0] in (0, 1)
    assert shop_database.snapshot(shop, beside="recruiter.") == before


def test_a_database_that_is_dropped_under_running_processes_is_refused_with_the_remedy(
    shop: Database[dict[str, Any]], target: str
) -> None:
    """MongoDB makes a collection with the first write to it, and nobody can tell then who it was."""
    jobs.add.enqueue(1, 2)
    shop.client.drop_database(shop.name)
    jobs.add.enqueue(1, 2)

    code, said = here(target, "doctor")

    assert (code, "was dropped while processes of Recruiter ran: stop them, and drop it again" in said) == (4, True)


def test_two_prefixes_in_one_database_are_two_systems(
    shop: Database[dict[str, Any]], target: str, start: Starter
) -> None:
    # given three fleets in one database, each with its own prefix
    systems = {prefix: Recruiter(target, prefix=prefix) for prefix in ("recruiter.", "other_", "")}
    for prefix in systems:
        for process in ("recruiter", "worker", "cleaner"):
            start("start", process, "--bootstrap", jobs.__file__, RECRUITER_PREFIX=prefix)

    # when all of them are busy
    sent = {
        prefix: [recruiter.job("echo", {"text": f"{prefix} {number}"}).enqueue() for number in range(JOBS_OF_EACH)]
        for prefix, recruiter in systems.items()
    }
    results = {prefix: [job.result(timeout="60s") for job in handles] for prefix, handles in sent.items()}

    # then each has run its own jobs and counts no others, and has a leader and a worker of its own
    workers = set[str | None]()
    for prefix, recruiter in systems.items():
        assert results[prefix] == [f"{prefix} {number}" for number in range(JOBS_OF_EACH)]
        ended = recruiter.jobs.list(limit=10 * JOBS_OF_EACH).jobs
        assert {job.id for job in ended} == {job.id for job in sent[prefix]}
        workers |= {job.last_execution.worker for job in ended if job.last_execution is not None}
        assert recruiter.analytics(within="10 minutes").ended == {"succeeded": JOBS_OF_EACH}
        assert shop[f"{prefix}archived"].count_documents({}) == JOBS_OF_EACH
        assert shop[f"{prefix}leases"].count_documents({}) == 1
        recruiter.close()
    assert len(workers) == 3
    # and a pause in one of them holds up no other
    assert here(target, "group", "pause", "generic", "--prefix", "other_")[0] == 0
    with Recruiter(target) as busy, Recruiter(target, prefix="other_") as paused:
        held = paused.job("echo", {"text": "held"}).schedule_in("2s").enqueue()  # the leader knows of the pause by then
        assert busy.job("echo", {"text": "on"}).schedule_in("2s").enqueue().result(timeout="60s") == "on"
        assert paused.explain(held.id).startswith("group generic is paused")


def test_a_process_on_an_older_schema_works_and_says_that_prepare_is_due(
    shop: Database[dict[str, Any]], target: str, fleet: Starter
) -> None:
    # given a database that the release before has prepared
    assert here(target, "prepare")[0] == 0
    shop["recruiter.meta"].update_one({}, {"$inc": {"schema": -1}})

    # when processes of this release work on it
    worker = fleet(jobs.__file__)

    # then jobs run, and the log names the command
    assert jobs.add.enqueue(1, 2).result(timeout="60s") == 3
    worker.says("has schema 0 of an earlier release, which still works; run `recruiter prepare`")


def test_a_process_that_is_too_old_for_the_schema_does_not_start(
    shop: Database[dict[str, Any]], target: str, start: Starter
) -> None:
    assert here(target, "prepare")[0] == 0
    shop["recruiter.meta"].update_one({}, {"$inc": {"schema": 2}, "$set": {"prepared_by": "7.0"}})

    worker = start("start", "worker", "--bootstrap", jobs.__file__)

    assert worker.wait() == 4
    assert "has schema 3, made by Recruiter 7.0; Recruiter 0.1.0 works with schemas up to 2" in worker.log
