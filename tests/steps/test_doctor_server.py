"""What the doctor says of MongoDB itself: replica sets that are whole, maimed or slow, oplogs, disks, and users who may
not look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from recruiter.doctor import Thresholds, examine
from recruiter.doctor.findings import Level
from recruiter.doctor.server import judge_oplog
from recruiter.embedded import EmbeddedServer
from recruiter.errors import StoreUnreachable
from recruiter.store import server as admin
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.store.server import Oplog
from tests.conftest import eventually
from tests.guarded import ROOT, GuardedServer
from tests.replica_set import EmbeddedReplicaSet
from tests.steps.test_doctor import Ward

OK, NOTE, PROBLEM = Level.OK, Level.NOTE, Level.PROBLEM
HOUR = timedelta(hours=1)


@contextmanager
def on(uri: str, patience: float = 2.0) -> Iterator[Ward]:
    with closing(Store(Target.parse(uri.replace("/?", "/shop?")), patience=patience)) as store:
        yield Ward(store)


def finds(ward: Ward, level: Level, *words: str, **thresholds: Any) -> Callable[[], bool]:
    """A question to be asked until it is so: members notice each other's fate in their own time."""

    def fact() -> bool:
        try:
            findings = ward.findings(**thresholds)
        except StoreUnreachable:
            return False  # an election goes on
        return any(each.level is level and all(word in f"{each.code} {each}" for word in words) for each in findings)

    return fact


class TestReplicaSet:
    @pytest.fixture
    def ward(self, store: Store) -> Ward:
        return Ward(store)

    @pytest.mark.timeout(240)
    def test_a_replica_set_of_three_in_each_kind_of_trouble(self) -> None:
        with EmbeddedReplicaSet() as replica_set, on(replica_set.uri) as ward:
            # given all is well
            eventually(finds(ward, OK, "3 members are up"), within=30)
            ward.says_nothing_of("one-member")
            primary = replica_set.primary()
            other, third = (node for node in replica_set.nodes if node is not primary)

            # when one is busy with itself, or falls behind
            with admin.connected(other.address) as connection:
                connection.admin.command("replSetMaintenance", True)
                eventually(finds(ward, NOTE, f"member {other.address}", "RECOVERING"), within=30)
                connection.admin.command("replSetMaintenance", False)

                def lock() -> bool:
                    with suppress(OperationFailure):  # a member that has just joined has no checkpoint yet
                        connection.admin.command("fsync", lock=True)
                        return True
                    return False

                eventually(lock, within=30)

                def behind() -> bool:
                    ward.store.database.notes.insert_one({})
                    return finds(
                        ward, PROBLEM, other.address, "behind the primary", behind=timedelta(milliseconds=900)
                    )()

                eventually(behind, within=30)
                connection.admin.command("fsyncUnlock")

            # when the journal is not asked for
            with MongoClient[dict[str, Any]](replica_set.uri) as client:
                config = client.admin.command("replSetGetConfig")["config"]
                config |= {"version": config["version"] + 1, "writeConcernMajorityJournalDefault": False}
                client.admin.command("replSetReconfig", config)
            eventually(finds(ward, NOTE, "journal"), within=30)

            # when one is down, it is named; when two are, no primary is left, and the third still tells
            replica_set.kill(other)
            eventually(finds(ward, PROBLEM, f"member {other.address}", "is down", "rs.remove"), within=30)
            eventually(finds(ward, OK, "a majority of the members confirms"), within=30)
            replica_set.kill(third)
            eventually(finds(ward, PROBLEM, "has no primary", "1 of 3 members are up"), within=60)
            assert {finding.about for finding in ward.findings()} == {"server"}

            # when nobody is left, there is nothing to tell
            replica_set.kill(primary)
            with pytest.raises(StoreUnreachable):
                eventually(lambda: not ward.findings(), within=30)

    @pytest.mark.timeout(240)
    def test_an_arbiter_and_a_lost_majority_are_found(self) -> None:
        with EmbeddedReplicaSet(arbiter=True) as replica_set, on(replica_set.uri) as ward:
            arbiter = replica_set.nodes[-1]
            eventually(finds(ward, NOTE, "arbiter", arbiter.address), within=30)
            eventually(finds(ward, OK, "a majority of the members confirms writes"), within=30)
            (other,) = (node for node in replica_set.nodes[:-1] if node is not replica_set.primary())

            replica_set.kill(other)

            eventually(finds(ward, PROBLEM, "no-majority", majority=1.0), within=60)


class TestOplog:
    def test_one_that_has_lost_its_beginning(self) -> None:
        """Given an oplog of a few megabytes, when much more is written, then it says how far back it reaches."""
        hasty = ("--oplogSize", "1", "--syncdelay", "1", "--setParameter", "minSnapshotHistoryWindowInSeconds=0")
        with EmbeddedServer(extra=hasty) as server, on(server.uri) as ward:
            ward.store.check()
            notes = ward.store.database.notes

            def rolls() -> bool:
                notes.insert_one({"text": "x" * 100_000})
                return ward.store.server.oplog().rolls

            eventually(rolls, within=120)
            ward.finds(PROBLEM, "short-oplog")
            ward.finds(NOTE, "short-oplog", shortest_oplog=timedelta())
            ward.finds(OK, "the oplog reaches back", short_oplog=timedelta(), shortest_oplog=timedelta())

    def test_an_engine_that_forgets(self) -> None:
        (finding, _) = judge_oplog(Oplog(HOUR, rolls=False, persistent=False), Thresholds())
        assert finding.level is PROBLEM
        assert "in memory only" in finding.text


class TestDisk:
    def test_a_disk_with_room_is_fine(self, store: Store) -> None:
        Ward(store).finds(OK, "the disk of the data is", disk_filling=1.1, disk_full=1.2)

    def test_one_that_is_filling(self, store: Store) -> None:
        Ward(store).finds(NOTE, "disk", "--clean-after", disk_filling=0.0, disk_full=1.1)


def test_a_user_without_rights_gets_a_note_for_each_check_that_cannot_run(tmp_path: Path) -> None:
    guarded = GuardedServer(tmp_path)
    try:
        with on(guarded.uri(ROOT)) as everything:
            everything.store.prepare()
            assert not [finding for finding in everything.findings() if "a check could not run" in finding.text]
        credentials = guarded.user("looker", {"role": "read", "db": "shop"})
        with closing(Store(Target.parse(guarded.uri(credentials)))) as store:
            findings = examine(store)
    finally:
        guarded.close()

    untold = [finding for finding in findings if "a check could not run" in finding.text]
    assert {finding.level for finding in untold} == {NOTE}
    for command in ("replSetGetStatus", "replSetGetConfig", "serverStatus"):
        assert any(f"may not {command}" in finding.text for finding in untold), command
    assert {finding.about for finding in findings} >= {"server", "schema", "fleet", "jobs"}
    assert any("there is no leader" in finding.text for finding in findings)
