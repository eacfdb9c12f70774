"""Which collections are ours, and which versions of the schema a process works with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from bson import ObjectId

from recruiter import Recruiter, __version__
from recruiter.doctor import examine
from recruiter.embedded import EmbeddedServer
from recruiter.errors import ForeignCollection, SchemaMismatch, StoreError
from recruiter.store import ownership, schema
from recruiter.store.connection import Target
from recruiter.store.database import _COLLECTIONS, Store
from recruiter.store.ownership import SCHEMA
from recruiter.store.schema import Difference, Kind
from tests.cli_here import here
from tests.samples import a_job, insert


@pytest.fixture
def fresh(server: EmbeddedServer) -> Iterator[Store]:
    """A database that does not exist yet."""
    with closing(Store(Target.parse(server.uri).in_database(f"test_{ObjectId()}"))) as store:
        store.reach()
        yield store
        store.drop()


def meta(store: Store) -> Any:
    return store.database.get_collection(store.name_of(ownership.NAME))


def record(store: Store) -> dict[str, Any]:
    found: dict[str, Any] = meta(store).find_one()
    return found


def set_schema(store: Store, version: int) -> None:
    meta(store).update_one({}, {"$set": {"schema": version, "prepared_by": "9.9"}})


def validators(store: Store) -> dict[str, Any]:
    return {info["name"]: info["options"].get("validator") for info in store.database.list_collections()}


def schema_0(store: Store) -> None:
    """A database as the first release prepared it: no record, and validators without a mark."""
    for name, (indexes, validator) in _COLLECTIONS.items():
        if name != ownership.NAME:
            store.database.create_collection(store.name_of(name), validator=validator, validationLevel="moderate")
            if indexes:
                store.database.get_collection(store.name_of(name)).create_indexes(indexes)


class TestTheRecord:
    def test_a_prepared_database_costs_the_first_use_one_question(
        self, fresh: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A producer may not list collections, and need not."""
        fresh.prepare()
        monkeypatch.setattr(ownership, "collection_infos", lambda *_: pytest.fail("collections were listed"))

        assert fresh.check().schema == SCHEMA

    def test_a_damaged_one_is_told(self, fresh: Store) -> None:
        fresh.prepare()
        meta(fresh).update_one({}, {"$set": {"collections": 5}}, bypass_document_validation=True)

        with pytest.raises(
            StoreError, match=r"recruiter\.meta cannot be read: remove it, then run `recruiter prepare`"
        ):
            fresh.check()

        meta(fresh).delete_many({})
        fresh.prepare()
        assert fresh.check().schema == SCHEMA


class TestCrashesAndRaces:
    @pytest.mark.parametrize("made", range(0, len(_COLLECTIONS), 3))
    def test_a_crash_in_the_middle_of_preparing_is_finished_by_the_next_process(self, fresh: Store, made: int) -> None:
        # given a process that died after it had made some collections, before their indexes and the record
        for name, (_, validator) in list(fresh._schema().items())[:made]:
            fresh.database.create_collection(name, validator=validator, validationLevel="moderate")
        assert fresh.check().schema is None

        fresh.prepare()

        assert fresh.differences() == []
        assert fresh.check().schema == SCHEMA

    def test_eight_processes_prepare_together(self, fresh: Store) -> None:
        together = threading.Barrier(8)

        def prepare(_: int) -> int | None:
            with closing(Store(fresh.target)) as mine:
                mine.reach()
                together.wait()
                mine.prepare()
                return mine.check().schema

        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(prepare, range(8))) == {SCHEMA}
        assert fresh.differences() == []
        assert meta(fresh).count_documents({}) == 1

    def test_a_collection_that_the_application_makes_while_we_prepare_is_left_alone(
        self, fresh: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # given that the application makes a collection after we have looked and before we create ours
        name = fresh.name_of("actions")
        fresh.database[name].insert_one({"mine": True})
        before = fresh.database[name].index_information()
        monkeypatch.setattr(Store, "_ownership", lambda _: (None, None))
        monkeypatch.setattr(schema, "differences", lambda *_: [Difference(Kind.NO_COLLECTION, name)])

        with pytest.raises(ForeignCollection, match=r"recruiter\.actions"):
            fresh.prepare()

        assert fresh.database[name].index_information() == before
        assert validators(fresh) == {name: None}

    def test_a_lost_record_is_written_again(self, fresh: Store) -> None:
        fresh.prepare()
        insert(fresh, a_job("x"))
        meta(fresh).drop()

        fresh.prepare()

        assert fresh.check().schema == SCHEMA
        assert fresh.scheduled.exists("x")


class TestTheFirstRelease:
    @pytest.mark.parametrize("prefix", ["", "recruiter."])
    def test_its_database_works_as_it_is_and_is_adopted_by_prepare(self, server: EmbeddedServer, prefix: str) -> None:
        target = Target.parse(server.uri.replace("/?", f"/test_{ObjectId()}?"), prefix)
        with closing(Store(target)) as store:
            schema_0(store)
            insert(store, a_job("x"))
            before = validators(store)

            facts = store.check()
            assert (facts.schema, facts.needs_prepare) == (0, True)
            store.prepare()  # as a process does: it adds what is missing and leaves the rest
            assert {name: validators(store)[name] for name in before} == before
            assert store.check().schema == 0
            notes = [str(finding) for finding in examine(store) if finding.about == "schema"]
            assert any("has schema 0" in note and "recruiter prepare" in note for note in notes)
            assert not any("validator of" in note for note in notes)

            code, said = here(target.uri, "prepare", "--prefix", prefix)

            assert code == 0, said
            assert store.check().schema == SCHEMA
            assert store.differences() == []
            assert store.scheduled.exists("x")
            store.drop()

    def test_a_crash_in_the_middle_of_its_upgrade_is_finished_by_the_next_prepare(self, fresh: Store) -> None:
        schema_0(fresh)
        marked, name = fresh._schema()[fresh.name_of("roster")][1], fresh.name_of("roster")
        fresh.database.command({"collMod": name, "validator": marked})

        assert fresh.check().schema == 0
        fresh.prepare(insist=True)

        assert (fresh.check().schema, fresh.differences()) == (SCHEMA, [])

    @pytest.mark.parametrize("name", sorted(set(_COLLECTIONS) - {ownership.NAME}))
    def test_one_collection_that_does_not_look_like_it_is_enough_to_refuse(self, fresh: Store, name: str) -> None:
        schema_0(fresh)
        fresh.database.drop_collection(fresh.name_of(name))
        fresh.database[fresh.name_of(name)].insert_one({"mine": True})

        with pytest.raises(ForeignCollection, match=fresh.name_of(name)):
            fresh.prepare(insist=True)

    def test_a_foreign_meta_beside_it_is_refused(self, fresh: Store) -> None:
        schema_0(fresh)
        meta(fresh).insert_one({"mine": True})

        with pytest.raises(ForeignCollection, match=r"collection recruiter\.meta of"):
            fresh.check()


class TestVersions:
    @pytest.mark.parametrize("version", [SCHEMA - 1, SCHEMA, SCHEMA + 1])
    def test_neighbours_run_side_by_side(self, fresh: Store, target: str, version: int) -> None:
        fresh.prepare()
        set_schema(fresh, version)
        fresh.database.command("collMod", fresh.roster.collection.name, validator={"kind": "of that release"})
        before = validators(fresh)

        with Recruiter(fresh.target.uri) as recruiter:
            assert recruiter.job("add", {"a": 1}).enqueue().id
        fresh.prepare()

        assert record(fresh)["schema"] == version
        # a process changes only validators of its own version
        assert (validators(fresh) == before) is (version != SCHEMA)

    def test_a_process_that_is_too_old_refuses_and_names_both_versions(self, fresh: Store) -> None:
        fresh.prepare()
        set_schema(fresh, SCHEMA + 2)

        for command in (["start", "worker"], ["start", "recruiter"], ["job", "list"], ["prepare"], ["doctor"]):
            code, said = here(fresh.target.uri, *command)
            assert code == 4, said
            assert f"has schema {SCHEMA + 2}, made by Recruiter 9.9" in said
            assert f"Recruiter {__version__}" in said
        with Recruiter(fresh.target.uri) as recruiter, pytest.raises(SchemaMismatch, match="Upgrade Recruiter here"):
            recruiter.job("add", {"a": 1}).enqueue()

    def test_a_database_that_is_too_old_needs_prepare_first(
        self, fresh: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fresh.prepare()
        for module in (ownership, __import__("recruiter.store.database", fromlist=["database"])):
            monkeypatch.setattr(module, "SCHEMA", SCHEMA + 2)

        with pytest.raises(SchemaMismatch, match="Run `recruiter prepare` with Recruiter"):
            fresh.check()

        fresh.prepare(insist=True)
        assert fresh.check().schema == SCHEMA + 2

    def test_the_command_prepare_of_an_older_release_changes_nothing(self, fresh: Store) -> None:
        fresh.prepare()
        set_schema(fresh, SCHEMA + 1)
        fresh.database.command("collMod", fresh.roster.collection.name, validator={})
        before = validators(fresh)

        code, said = here(fresh.target.uri, "prepare")

        assert code == 4
        assert f"Recruiter {__version__} makes schema {SCHEMA} and cannot prepare it" in said
        assert validators(fresh) == before


def test_a_marker_of_the_first_release_makes_the_leader_look_at_the_whole_flow(store: Store) -> None:
    """Its workers named the steps that had succeeded in one binary field, which this release does not write."""
    step, dependent = ObjectId(), ObjectId()
    store.flows.markers.insert_one({"flow": ObjectId(), "succeeded": step.binary, "dependents": [dependent]})

    (marker,) = store.flows.next_markers(10)

    assert marker.all
