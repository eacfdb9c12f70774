"""The roles of docs/how-to/mongodb-roles.md, as they are written there, on a MongoDB that asks for passwords."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pymongo.errors import OperationFailure

from recruiter import Recruiter
from recruiter.errors import StoreRefused
from recruiter.store.collections import archived
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch
from tests.acceptance.docs.pages import page
from tests.acceptance.test_command_line import run
from tests.applications import jobs
from tests.conftest import Process
from tests.guarded import ROOT, GuardedServer, tells_a_password
from tests.samples import a_job, insert, on_the_roster

OWNER, FLEET, PRODUCER, LOOKER = "recruiterOwner", "recruiterFleet", "recruiterProducer", "recruiterLooker"
_CREATE = re.compile(r'db\.getSiblingDB\("admin"\)\.createRole\((\{.*\})\)\s*', re.DOTALL)


def documented_roles() -> dict[str, dict[str, Any]]:
    found = (_CREATE.fullmatch(block.text) for block in page("how-to/mongodb-roles.md").blocks)
    roles = [json.loads(match[1]) for match in found if match is not None]
    return {role["role"]: role for role in roles}


ROLES = documented_roles()


def collections_of(role: str) -> set[str]:
    resources = (privilege["resource"] for privilege in ROLES[role]["privileges"])
    return {resource["collection"] for resource in resources if resource.get("collection")}


def test_all_roles_are_on_the_page() -> None:
    assert set(ROLES) == {OWNER, FLEET, PRODUCER, LOOKER}


@pytest.mark.parametrize("role", [FLEET, LOOKER])
def test_they_name_every_collection(role: str) -> None:
    assert collections_of(role) == set(Store(Target.parse("nowhere")).collections())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    server = GuardedServer(tmp_path_factory.mktemp("guarded"))
    for role in ROLES.values():
        server.role(role)
    yield server
    server.close()


@pytest.fixture(scope="module")
def once(guarded: GuardedServer) -> GuardedServer:
    """The database, prepared by one who may do nothing else."""
    owner = guarded.user("owner", OWNER)
    code, said = run("prepare", "--target", guarded.uri(owner))
    assert (code, "database shop is prepared" in said) == (0, True), said
    assert run("prepare", "--target", guarded.uri(owner))[1] == "database shop was prepared\n"
    return guarded


@pytest.fixture
def prepared(once: GuardedServer) -> GuardedServer:
    """The same, with nothing in it, and mended after a test that has broken it."""
    with closing(Store(Target.parse(once.uri(ROOT)))) as store:
        store.empty()
        store.prepare()
    return once


@pytest.fixture
def as_user(prepared: GuardedServer) -> Iterator[Callable[[str], Store]]:
    """A store as somebody with this role sees it."""
    opened: list[Store] = []

    def store(role: str, name: str | None = None) -> Store:
        opened.append(Store(Target.parse(prepared.uri(prepared.user(name or f"a-{role}", role))), patience=5))
        opened[-1].check()
        return opened[-1]

    yield store
    for each in opened:
        each.close()


PRODUCES = """
import sys
from recruiter import Recruiter
from tests.applications.jobs import add, recruiter

recruiter.point_at(sys.argv[1])
assert add.enqueue(1, 2).result(timeout=60) == 3
jobs = add.enqueue_many([(1, 1), (2, 2)])
assert [job.result(timeout=60) for job in jobs] == [2, 4]
once = recruiter.create("add", {"a": 5, "b": 5})
assert once.created and not recruiter.create("add", {"a": 5, "b": 5}).created
assert once.result(timeout=60) == 10
assert recruiter.find(once.id).result == 10
with recruiter.store.client.start_session() as session, session.start_transaction():
    job = add.job(3, 4).in_background().execute(session=session)
assert job.result(timeout=60) == 7
print("all is well")
"""


def test_a_producer_a_fleet_and_one_who_looks(prepared: GuardedServer, tmp_path: Path) -> None:
    # given a fleet, with a user of its own, which may not prepare anything
    fleet = prepared.uri(prepared.user("fleet", FLEET))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RECRUITER_")}
    environment |= {"RECRUITER_TARGET": fleet, "RECRUITER_CONSIDERED_DEAD_AFTER": "4s", "RECRUITER_LEASE_TIME": "2s"}
    process = Process(["start", "all", "--bootstrap", jobs.__file__], environment, tmp_path / "log", None)
    try:
        process.says("joined the roster")
        process.says("is the leader now")

        # when a producer works with it, then all that the page promises works
        producer = prepared.uri(prepared.user("producer", PRODUCER))
        ran = subprocess.run([sys.executable, "-c", PRODUCES, producer], capture_output=True, text=True, timeout=90)
        assert ran.stdout == "all is well\n", ran.stderr + process.log

        # when somebody looks, then everything is seen, and nothing is missing
        looker = prepared.uri(prepared.user("looker", LOOKER))
        with closing(Store(Target.parse(looker))) as store:
            ended = str(next(iter(store.archived.collection.find()))["_id"])
        for command in (
            ["worker", "list"],
            ["group", "list"],
            ["limit", "list"],
            ["limit", "resources"],
            ["scheduler", "list"],
            ["job", "show", ended],
            ["job", "list"],
            ["analytics"],
            ["top", "--once"],
            ["health", "--role", "worker", "--role", "recruiter", "--role", "cleaner"],
            ["doctor"],
        ):
            code, said = run(*command, RECRUITER_TARGET=looker)
            assert code == 0, f"{command}: {said}"
            assert "a check could not run" not in said
            assert not tells_a_password(said)

        # when the leader and the worker are killed, then others bury them, sessions and all
        for killed in [process.member("worker"), process.member("recruiter")]:
            killed.kill()
        process.wait(40)
        again = Process(["start", "all", "--bootstrap", jobs.__file__], environment, tmp_path / "log2", None)
        try:
            again.says("was retired", within=40)
            assert again.stop() == 0
        finally:
            _end(again)
        logs = process.log + again.log
        for word in ("refused", "may not", "cannot listen", "a mistake"):
            assert word not in logs, logs
        assert not tells_a_password(logs)
    finally:
        _end(process)


def _end(process: Process) -> None:
    with suppress(psutil.Error):
        for member in process.descendants():
            member.kill()
    process.popen.kill()
    process.popen.wait()


class TestWhatTheyMayNot:
    def test_a_producer_cannot_say_how_a_job_ended(self, as_user: Callable[[str], Store]) -> None:
        store = as_user(PRODUCER)
        (id,) = insert(store, a_job())
        with pytest.raises(OperationFailure, match="not authorized"):
            store.archived.collection.insert_one({"done": True, "why": "done", "archived_at": store.clock.now()})
        with pytest.raises(StoreRefused, match=r"may not update on shop\.recruiter\.scheduled"):
            store.scheduled.flag_cancelled(id, store.clock.now(), None, None)
        with pytest.raises(StoreRefused, match=r"may not insert on shop\.recruiter\.roster"):
            on_the_roster(store)
        with pytest.raises(StoreRefused):
            store.transactions.settle("w1", OutcomeBatch(), {})
        with pytest.raises(StoreRefused, match="limits"):
            store.limits.read()

    def test_one_who_looks_cannot_touch(self, as_user: Callable[[str], Store], prepared: GuardedServer) -> None:
        store = as_user(LOOKER)
        with pytest.raises(StoreRefused, match=r"may not insert on shop\.recruiter\.scheduled"):
            insert(store, a_job())
        (id,) = insert(as_user(PRODUCER), a_job())
        looker = store.target.uri
        for command, place in (
            (["job", "cancel", str(id)], "shop.recruiter.scheduled"),
            (["group", "pause", "mail"], "shop.recruiter.limits"),
            (["limit", "set", "task:add", "2"], "shop.recruiter.limits"),
            (["worker", "drain", "w1"], "shop.recruiter.roster"),
        ):
            code, said = run(*command, RECRUITER_TARGET=looker)
            assert code == 4, said
            assert f"may not update on {place}" in said
            assert "Traceback" not in said
            assert not tells_a_password(said)
        assert prepared.database("shop").recruiter.scheduled.find_one({"_id": id})["lane"] == "generic/add"

    def test_processes_cannot_touch_what_is_not_theirs(self, as_user: Callable[[str], Store]) -> None:
        store = as_user(FLEET)
        forbidden: dict[str, list[dict[str, Any]]] = {
            "shop": [
                {"insert": "orders", "documents": [{}]},
                {"drop": "recruiter.archived"},
                {"createIndexes": "recruiter.archived", "indexes": [{"key": {"a": 1}, "name": "a"}]},
            ],
            "other": [{"find": "things"}],
        }
        for database, commands in forbidden.items():
            for command in commands:
                with pytest.raises(OperationFailure, match="not authorized"):
                    store.client.get_database(database).command(command)
        assert store.prepare() == []  # all is there
        store.require_rights()

    def test_the_owner_sees_no_job(self, as_user: Callable[[str], Store]) -> None:
        with pytest.raises(StoreRefused, match="may not find"):
            as_user(OWNER).scheduled.get("x")


def _without_cluster() -> dict[str, Any]:
    """The role for processes, but for what is about the whole cluster."""
    privileges = [each for each in ROLES[FLEET]["privileges"] if "cluster" not in each["resource"]]
    return {**ROLES[FLEET], "role": "fleetWithout", "privileges": privileges}


def tries_of_a_transaction(worker: Store, *, ended_by: Store) -> int:
    """How often it is run if the leader ends the worker's session in the middle, and does so twice: again, if that had
    an effect."""
    (seen,) = ended_by.roster.read()
    tries: list[int] = []

    def write(session: Any) -> int:
        worker.roster.release("w1", [], session, {})
        tries.append(1)
        if len(tries) == 1:
            ended_by.transactions.end_session_of(seen.session)
            ended_by.transactions.end_session_of(seen.session)
        return len(tries)

    return worker.transactions._transaction(write)


class TestDegraded:
    def test_an_unprepared_database_is_refused_with_what_is_missing(
        self, prepared: GuardedServer, tmp_path: Path
    ) -> None:
        prepared.database("shop").recruiter.archived.drop_index(archived.BY_AGE)
        prepared.database("shop").recruiter.limits.drop()
        fleet = prepared.uri(prepared.user("fleet", FLEET))

        code, said = run("start", "cleaner", RECRUITER_TARGET=fleet, cwd=tmp_path)

        assert code == 4
        assert f"is not prepared (index {archived.BY_AGE} of recruiter.archived, collection recruiter.limits)" in said
        assert "recruiter prepare" in said
        assert "Traceback" not in said

    def test_another_validator_does_not_keep_anybody_from_starting(
        self, as_user: Callable[[str], Store], prepared: GuardedServer
    ) -> None:
        """Another version may be about to be rolled out; but whoever wants it mended is told that it was not."""
        prepared.database("shop").command({"collMod": "recruiter.roster", "validator": {}})
        store = as_user(FLEET)
        assert store.prepare() == []
        with pytest.raises(StoreRefused, match=r"validator of recruiter\.roster"):
            store.prepare(insist=True)

    @pytest.mark.parametrize("may", [True, False])
    def test_the_session_of_another_user(
        self, as_user: Callable[..., Store], prepared: GuardedServer, may: bool
    ) -> None:
        """Given a worker that died in a transaction under a user of its own, then the leader's user ends its session if
        it may; if not, it says so once, and goes on."""
        worker = as_user(FLEET, "worker")
        prepared.role(_without_cluster())
        leader = as_user(FLEET if may else "fleetWithout", "leader")
        complaints: list[str] = []
        leader.transactions.sessions.on_refused = complaints.append
        on_the_roster(worker, "w1", session=worker.transactions.session_id)

        assert tries_of_a_transaction(worker, ended_by=leader) == (2 if may else 1)
        assert len(complaints) == (0 if may else 1)
        assert may or "killAnySession" in complaints[0]

    def test_ones_own_user_needs_no_privilege_for_that(
        self, as_user: Callable[..., Store], prepared: GuardedServer
    ) -> None:
        prepared.role(_without_cluster())
        worker, leader = as_user("fleetWithout", "both"), as_user("fleetWithout", "both")
        on_the_roster(worker, "w1", session=worker.transactions.session_id)

        assert tries_of_a_transaction(worker, ended_by=leader) == 2

    def test_without_change_streams_jobs_run_all_the_same(self, prepared: GuardedServer, tmp_path: Path) -> None:
        deaf = {**ROLES[FLEET], "role": "deaf"}
        deaf["privileges"] = [
            {**each, "actions": [action for action in each["actions"] if action != "changeStream"]}
            for each in deaf["privileges"]
        ]
        prepared.role(deaf)
        target = prepared.uri(prepared.user("deaf", "deaf"))
        environment = {**os.environ, "RECRUITER_TARGET": target}
        process = Process(["start", "all", "--bootstrap", jobs.__file__], environment, tmp_path / "log", None)
        try:
            process.says("cannot watch the change stream")
            producer = prepared.uri(prepared.user("producer", PRODUCER))
            jobs.recruiter.point_at(producer)
            assert jobs.add.enqueue(1, 2).result(timeout=60) == 3
        finally:
            jobs.recruiter.close()
            process.stop()
            _end(process)


class TestLimitedToOnePrefix:
    """Two systems and an application in one database, each with a user of its own."""

    PREFIXES = ("recruiter.", "other.")

    @staticmethod
    def limited(prefix: str) -> dict[str, Any]:
        """The role for processes as the page changes it for a database with other data, for this prefix."""
        (instead,) = [json.loads(b.text) for b in page("how-to/mongodb-roles.md").blocks if b.text.startswith("[")]
        kept = [each for each in ROLES[FLEET]["privileges"] if each["resource"].get("collection") != ""]
        privileges = json.loads(json.dumps([*kept, *instead]).replace("recruiter.", prefix))
        return {"role": f"fleet_{prefix}", "privileges": privileges, "roles": []}

    def test_two_fleets_work_and_see_nothing_else(self, guarded: GuardedServer, tmp_path: Path) -> None:
        # given two prefixes, prepared by users who may prepare nothing else, and collections of an application
        started: list[Process] = []
        guarded.database("shop").orders.insert_one({"secret": True})
        for prefix in self.PREFIXES:
            owner = json.loads(json.dumps(ROLES[OWNER]).replace("recruiter.", prefix))
            guarded.role({**owner, "role": f"owner_{prefix}"})
            guarded.role(self.limited(prefix))
            code, said = run(
                "prepare", "--prefix", prefix, "--target", guarded.uri(guarded.user(f"o{prefix}", f"owner_{prefix}"))
            )
            assert code == 0, said
        try:
            for prefix in self.PREFIXES:
                user = guarded.uri(guarded.user(f"f{prefix}", f"fleet_{prefix}"))
                environment = {key: value for key, value in os.environ.items() if not key.startswith("RECRUITER_")}
                environment |= {"RECRUITER_TARGET": user, "RECRUITER_PREFIX": prefix}
                process = Process(["start", "all", "--bootstrap", jobs.__file__], environment, tmp_path / prefix)
                started.append(process)
                process.says("joined the roster")

                # when a producer of this prefix works with it
                with Recruiter(user, prefix=prefix) as recruiter:
                    sent = [recruiter.job("add", {"a": number, "b": 1}).enqueue() for number in range(20)]
                    assert [job.result(timeout="60s") for job in sent] == [number + 1 for number in range(20)]

                # then its user sees neither the other system nor the application
                other = next(each for each in self.PREFIXES if each != prefix)
                with closing(Store(Target.parse(user, prefix))) as store:
                    for name in (f"{other}scheduled", f"{other}meta", "orders"):
                        with pytest.raises(OperationFailure, match="not authorized"):
                            store.database[name].find_one()
                with Recruiter(user, prefix=other) as stranger, pytest.raises(StoreRefused, match="may not find on"):
                    stranger.job("add", {"a": 1, "b": 1}).enqueue()
            for process in started:
                assert "Traceback" not in process.log
        finally:
            for process in started:
                _end(process)

    def test_a_producer_on_a_database_that_is_not_prepared_makes_no_collection(self, guarded: GuardedServer) -> None:
        """A first insert would make the collection, without validator and indexes."""
        role = json.loads(json.dumps(ROLES[PRODUCER]).replace("recruiter.", "new."))
        guarded.role({**role, "role": "newProducer"})
        user = guarded.uri(guarded.user("new", "newProducer"))

        with Recruiter(user, prefix="new.") as recruiter, pytest.raises(StoreRefused, match="is not prepared"):
            recruiter.job("add", {"a": 1, "b": 1}).enqueue()

        names = guarded.database("shop").list_collection_names()
        assert not [name for name in names if name.startswith("new.")]
