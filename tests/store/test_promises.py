"""Promises that hold for every write and read, whatever the URI says and whatever the server is."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from recruiter.clock import SystemClock
from recruiter.embedded import EmbeddedServer, find_mongod
from recruiter.errors import NotAReplicaSet, StoreError, StoreUnreachable
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch
from tests.commands import Command, Recorder, recorded
from tests.conftest import eventually
from tests.samples import NOW, a_job, beat, done, insert, on_the_roster, running, to_retry

DURABLE = {"w": "majority", "j": True}
WRITES = ("insert", "update", "delete", "findAndModify", "create", "createIndexes", "collMod")
READS = ("find", "distinct", "aggregate", "count")


class TestDurability:
    @pytest.fixture
    def careless(self, target: str, store: Store) -> Iterator[tuple[Store, Recorder]]:
        """A store whose URI asks for everything that loses jobs."""
        assert store.due_jobs.lanes() == []
        recorder = Recorder()
        options = "w=1&journal=false&readPreference=secondaryPreferred&retryWrites=false&readConcernLevel=available"
        careless = recorded(f"{target}&{options}", recorder)
        yield careless, recorder
        careless.close()

    def everything(self, store: Store) -> None:
        """Calls whatever writes or reads, transactions included."""
        store.prepare()
        ended, again, held = jobs = [a_job() for _ in range(3)]
        insert(store, *jobs)
        insert(store, a_job())
        lease = store.leases.acquire(None, "me", {})
        assert lease is not None
        store.leases.term()
        on_the_roster(store, "w1")
        store.roster.raise_term(1)
        store.roster.assign({"w1": [job.id for job in jobs]}, 1)
        beat(store, "w1", running(held.id))
        store.roster.read()
        store.roster.held()
        store.due_jobs.lanes()
        store.due_jobs.due(["generic/add"], NOW, 10, set())
        store.due_jobs.next_due(NOW)
        store.scheduled.fetch([ended.id])
        store.transactions.mark_started("w1", [ended.id], NOW)
        store.scheduled.flag_cancelled(held.id, NOW, None, None)
        store.due_jobs.waiting_by_lane(NOW)
        store.transactions.settle("w1", OutcomeBatch({ended.id: done(ended)}, [to_retry(again)]), {})
        store.transactions.archive_unheld(OutcomeBatch({again.id: done(again)}), 1, "me")
        (seen,) = store.roster.read()
        store.transactions.retire_all([("w1", seen.beats)], lambda _, __: OutcomeBatch({held.id: done(held)}))[0]
        store.archived.get_many([ended.id])
        store.archived.remove_succeeded(NOW + timedelta(days=1), 10)

    def test_every_write_is_majority_and_journaled(self, careless: tuple[Store, Recorder]) -> None:
        store, recorder = careless

        self.everything(store)

        alone = [c for c in recorder.named(*WRITES) if "autocommit" not in c]
        assert {next(iter(c)) for c in alone} >= {"insert", "update", "delete", "findAndModify"}
        assert [c for c in alone if c.get("writeConcern") != DURABLE] == []
        commits = recorder.named("commitTransaction")
        assert len(commits) == 4
        assert [_concern(c) for c in commits] == [DURABLE] * 4

    def test_writes_are_retried_although_the_uri_says_no(self, careless: tuple[Store, Recorder]) -> None:
        store, recorder = careless

        self.everything(store)

        retryable = [c for c in recorder.named("insert", "findAndModify") if "autocommit" not in c]
        assert retryable
        assert all("txnNumber" in c for c in retryable)

    def test_every_read_goes_to_the_primary(self, careless: tuple[Store, Recorder]) -> None:
        store, recorder = careless

        self.everything(store)

        reads = recorder.named(*READS)
        assert {next(iter(c)) for c in reads} >= {"find", "aggregate"}
        assert {_preference(c) for c in reads} == {"primary"}
        levels = {c.get("readConcern", {}).get("level") for c in reads if "autocommit" not in c}
        assert levels <= {"local", "linearizable"}

    def test_transactions_read_one_snapshot(self, careless: tuple[Store, Recorder]) -> None:
        store, recorder = careless

        self.everything(store)

        first = [c for c in recorder.commands if c.get("startTransaction")]
        assert len(first) == 4
        assert {c["readConcern"]["level"] for c in first} == {"snapshot"}
        assert {_preference(c) for c in first} == {"primary"}


def _concern(command: Command) -> Any:
    return {key: value for key, value in command["writeConcern"].items() if key in DURABLE}


def _preference(command: Command) -> str:
    return str(command.get("$readPreference", {"mode": "primary"})["mode"])


class TestServer:
    def test_a_host_that_is_a_day_off_works_by_the_clock_of_the_server(self, target: str, store: Store) -> None:
        class Tomorrow(SystemClock):
            def host_time(self) -> datetime:
                return super().host_time() + timedelta(days=1)

        off = Store(Target.parse(target), clock=Tomorrow())
        off.check()

        assert abs(off.clock.now() - store.clock.now()) < timedelta(minutes=1)
        off.close()

    def test_a_standalone_server_is_refused_with_the_two_lines_that_help(self, tmp_path: Path) -> None:
        with _mongod(tmp_path) as port, closing(Store(Target.parse(f"127.0.0.1:{port}"), patience=5)) as store:
            with pytest.raises(NotAReplicaSet) as refused:
                store.check()
            with pytest.raises(StoreError):  # also whoever does not check first
                store.transactions.settle("w1", OutcomeBatch(), {})

        lines = str(refused.value).splitlines()
        assert "standalone" in lines[0]
        assert "--replSet" in lines[1]
        assert "rs.initiate()" in lines[2]

    def test_a_server_that_is_frozen_is_unreachable_too(self, tmp_path: Path) -> None:
        """Given a server that accepts and never answers, then the caller hears of it in time."""
        with EmbeddedServer(tmp_path) as server:
            patient = f"{server.uri}&serverSelectionTimeoutMS=200&socketTimeoutMS=200&connectTimeoutMS=200"
            with closing(Store(Target.parse(patient))) as store:
                store.check()
                subprocess.run(["kill", "-STOP", str(server.pid)], check=True)
                eventually(lambda: _is_frozen(server.pid))
                try:
                    with pytest.raises(StoreUnreachable):
                        store.leases.read()
                finally:
                    subprocess.run(["kill", "-CONT", str(server.pid)], check=True)
                assert eventually(lambda: _answers(store))

    def test_a_connection_is_closed_soon_while_mongodb_is_away(self, tmp_path: Path) -> None:
        with EmbeddedServer(tmp_path) as server:
            store = Store(Target.parse(server.uri))
            store.check()
            store.leases.read()
            server.kill()
            began = time.monotonic()

            store.close()

            assert time.monotonic() - began < 10, "the driver would wait for thirty seconds"


def _is_frozen(pid: int | None) -> bool:
    """Every thread: the signal only says that they must stop, and one of them might still answer."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def _answers(store: Store) -> bool:
    with suppress(StoreUnreachable):
        store.leases.read()
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _mongod:
    """A mongod that is no replica set, for as long as the block."""

    def __init__(self, folder: Path, *options: str) -> None:
        data = folder / "data"
        data.mkdir()
        self._log = folder / "log"
        self._port = _free_port()
        command = [str(find_mongod()), "--dbpath", str(data), "--port", str(self._port), "--bind_ip", "127.0.0.1"]
        command += ["--nounixsocket", "--wiredTigerCacheSizeGB", "0.25", *options]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self) -> int:
        eventually(lambda: "Waiting for connections" in self._log.read_text() or self._process.poll() is not None)
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        return self._port

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
