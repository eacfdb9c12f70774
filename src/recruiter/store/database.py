"""The store: one connection, its collections, and the promises that hold for all of them.

Whatever the URI says, the protocol writes with majority and journal and reads from the primary: `w=1` lost 60 of 60
acknowledged writes at a failover, and a job queue that loses jobs is not one.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from functools import cached_property
from typing import Any

from pymongo import IndexModel, MongoClient, ReadPreference
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.driver_info import DriverInfo
from pymongo.errors import CollectionInvalid, ConfigurationError, PyMongoError
from pymongo.read_concern import ReadConcern

from recruiter.clock import SystemClock
from recruiter.domain.text import mask
from recruiter.errors import InvalidTarget, NotAReplicaSet, ServerTooOld
from recruiter.store import archived, creations, leases, limits, roster, scheduled, schedulers, statistics
from recruiter.store.codec import OPTIONS, Document
from recruiter.store.settlement import DURABLE, Settlement
from recruiter.store.target import Target
from recruiter.store.translate import NOT_A_REPLICA_SET, store_call

OLDEST_WIRE_VERSION = 17
"""MongoDB 6.0."""

_COLLECTIONS: dict[str, tuple[list[IndexModel], Document]] = {
    scheduled.NAME: (scheduled.INDEXES, scheduled.VALIDATOR),
    archived.NAME: (archived.INDEXES, archived.VALIDATOR),
    roster.NAME: ([], roster.VALIDATOR),
    schedulers.NAME: (schedulers.INDEXES, schedulers.VALIDATOR),
    leases.NAME: ([], leases.VALIDATOR),
    creations.NAME: ([], creations.VALIDATOR),
    limits.NAME: ([], limits.VALIDATOR),
    statistics.NAME: (statistics.INDEXES, statistics.VALIDATOR),
}


@dataclass(frozen=True)
class ServerFacts:
    version: str
    replica_set: str | None
    address: str
    clock_offset: timedelta


@dataclass
class Store:
    """Everything that is kept in MongoDB. Connects on first use; safe to share between threads, not across a fork."""

    target: Target
    clock: SystemClock = field(default_factory=SystemClock)
    patience: float = 30.0
    """Seconds to wait for a server before saying that there is none."""

    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _client: MongoClient[Document] | None = field(default=None, repr=False)
    _process: int | None = field(default=None, repr=False)

    @property
    def client(self) -> MongoClient[Document]:
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = self._connect()
        return self._client

    def _connect(self) -> MongoClient[Document]:
        self._process = os.getpid()
        options: dict[str, Any] = {"retryWrites": True, "retryReads": True, "appname": "recruiter"}
        if "serverselectiontimeoutms" not in self.target.uri.lower():
            options["serverSelectionTimeoutMS"] = int(self.patience * 1000)
        if "sockettimeoutms" not in self.target.uri.lower():
            options["socketTimeoutMS"] = max(20_000, int(self.patience * 1000))
        try:
            return MongoClient(self.target.uri, driver=DriverInfo("recruiter"), **options)
        except ConfigurationError as error:
            raise InvalidTarget(f"cannot use the MongoDB address {self.target}: {mask(str(error))}") from None
        except PyMongoError as error:
            raise InvalidTarget(f"cannot understand the MongoDB address {self.target}: {mask(str(error))}") from None

    @cached_property
    def database(self) -> Database[Document]:
        return self.client.get_database(
            self.target.database,
            codec_options=OPTIONS,
            read_preference=ReadPreference.PRIMARY,
            write_concern=DURABLE,
            read_concern=ReadConcern("local"),
        )

    def _collection(self, name: str) -> Collection[Document]:
        return self.database.get_collection(name)

    @cached_property
    def scheduled(self) -> scheduled.Scheduled:
        return scheduled.Scheduled(self._collection(scheduled.NAME))

    @cached_property
    def archived(self) -> archived.Archived:
        return archived.Archived(self._collection(archived.NAME))

    @cached_property
    def roster(self) -> roster.Roster:
        return roster.Roster(self._collection(roster.NAME))

    @cached_property
    def leases(self) -> leases.Leases:
        return leases.Leases(self._collection(leases.NAME))

    @cached_property
    def schedulers(self) -> schedulers.Schedulers:
        return schedulers.Schedulers(self._collection(schedulers.NAME))

    @cached_property
    def limits(self) -> limits.Limits:
        return limits.Limits(self._collection(limits.NAME))

    @cached_property
    def creations(self) -> creations.Creations:
        return creations.Creations(self._collection(creations.NAME))

    @cached_property
    def statistics(self) -> statistics.Statistics:
        return statistics.Statistics(self._collection(statistics.NAME))

    @cached_property
    def settlement(self) -> Settlement:
        collections = (self.scheduled, self.archived, self.roster, self.leases, self.creations, self.schedulers)
        return Settlement(self.client, *collections, self.statistics)

    @store_call
    def check(self) -> ServerFacts:
        """Makes sure that the server can do what the protocol needs, and sets the clock by it."""
        before = self.clock.monotonic()
        hello = self.client.admin.command("hello")
        half_way = timedelta(seconds=(self.clock.monotonic() - before) / 2)
        address = str(hello.get("me", self.target))
        if "setName" not in hello and hello.get("msg") != "isdbgrid":
            raise NotAReplicaSet(NOT_A_REPLICA_SET.format(address=self.target))
        if hello["maxWireVersion"] < OLDEST_WIRE_VERSION:
            raise ServerTooOld(f"MongoDB at {address} is older than 6.0; Recruiter needs 6.0 or newer")
        self.clock.offset = timedelta()
        offset = hello["localTime"].replace(tzinfo=UTC) + half_way - self.clock.now()
        self.clock.offset = offset
        version = str(self.client.server_info()["version"])
        return ServerFacts(version, hello.get("setName"), address, offset)

    @store_call
    def prepare(self) -> None:
        """Makes the collections, their validators and indexes. Safe to run at any time, by anybody, again and again."""
        existing = {info["name"]: info.get("options", {}) for info in self.database.list_collections()}
        for name, (indexes, validator) in _COLLECTIONS.items():
            if name not in existing:
                try:
                    self.database.create_collection(name, validator=validator, check_exists=False)
                except (CollectionInvalid, PyMongoError) as error:
                    if getattr(error, "code", None) != 48:  # somebody else made it in this moment
                        raise
            elif existing[name].get("validator") != validator:
                self.database.command("collMod", name, validator=validator)
            if indexes:
                self.database.get_collection(name).create_indexes(indexes)

    @store_call
    def is_prepared(self) -> bool:
        """Whether somebody has prepared it, this version or another."""
        return set(_COLLECTIONS) <= set(self.database.list_collection_names())

    @store_call
    def empty(self) -> None:
        """Removes every job, worker and lease of this database; for tests."""
        for name in _COLLECTIONS:
            self.database.get_collection(name).delete_many({})

    @store_call
    def drop(self) -> None:
        """Removes the whole database; for tests."""
        self.client.drop_database(self.target.database)

    def abandon(self) -> None:
        """Closes it, unless the process that this one was forked from has opened it: then it is not ours to close."""
        if self._process == os.getpid():
            self.close()

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            settlement = self.__dict__.get("settlement")
            for name in (
                "database",
                "scheduled",
                "archived",
                "roster",
                "leases",
                "schedulers",
                "creations",
                "limits",
                "statistics",
                "settlement",
            ):
                self.__dict__.pop(name, None)
        if settlement is not None:
            settlement.close()
        if client is not None:
            client.close()
