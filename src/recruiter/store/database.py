"""The store: one connection, its collections, and the guarantees for all of them.

Options of the URI change neither the write concern (majority, journaled) nor the reads from the primary: `w=1` lost 60
of 60 acknowledged writes at a failover.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta
from importlib import import_module
from typing import Any, TypeAlias
from weakref import WeakSet

import pymongo
from pymongo import AsyncMongoClient, IndexModel, MongoClient, ReadPreference
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import ConfigurationError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from recruiter.clock import SystemClock
from recruiter.errors import InvalidTarget, NotAReplicaSet, ServerTooOld, StoreRefused, StoreUnreachable
from recruiter.first_use import cached_property, installing
from recruiter.store import ownership
from recruiter.store.changes import Changes
from recruiter.store.codec import OPTIONS, Document
from recruiter.store.collections import (
    actions,
    archived,
    creations,
    due_jobs,
    flows,
    leases,
    limits,
    processes,
    queues,
    roster,
    scheduled,
    schedulers,
    statistics,
    unique_keys,
)
from recruiter.store.connection import (
    DEFAULT_DATABASE,
    Target,
    Wakers,
    connect,
    unless_secret,
    unreached,
    unusable_file,
)
from recruiter.store.errors import NOT_A_REPLICA_SET, UNAUTHORIZED, is_dns_failure, store_call, translate
from recruiter.store.flow_steps import FlowSteps
from recruiter.store.ownership import (
    SCHEMA,
    MetaDocument,
    marked,
    read_meta,
    require_compatible,
    require_not_newer,
    schema_of,
    write_meta,
)
from recruiter.store.schema import Difference, Wanted, differences, prepare
from recruiter.store.search.search import JobSearch
from recruiter.store.server import LOOK_AROUND, WRITE, Server, missing_privileges
from recruiter.store.sessions import DURABLE
from recruiter.store.transactions import Transactions

OLDEST_WIRE_VERSION = 17
"""MongoDB 6.0."""
SILENCE_SECONDS = 1.0
"""Seconds without an answer before a report."""
_CLOSE_SECONDS = 1.0

TargetLike: TypeAlias = str | MongoClient[Any] | Database[Any]
"""An address, or a client or database of the application."""

_COLLECTIONS: dict[str, tuple[list[IndexModel], Document]] = {
    scheduled.NAME: (scheduled.INDEXES, scheduled.VALIDATOR),
    archived.NAME: (archived.INDEXES, archived.VALIDATOR),
    roster.NAME: ([], roster.VALIDATOR),
    schedulers.NAME: (schedulers.INDEXES, schedulers.VALIDATOR),
    leases.NAME: ([], leases.VALIDATOR),
    creations.NAME: ([], creations.VALIDATOR),
    limits.NAME: ([], limits.VALIDATOR),
    statistics.NAME: (statistics.INDEXES, statistics.VALIDATOR),
    processes.NAME: (processes.INDEXES, processes.VALIDATOR),
    actions.NAME: (actions.INDEXES, actions.VALIDATOR),
    flows.NAME: (flows.INDEXES, flows.VALIDATOR),
    flows.MARKERS: ([], flows.MARKERS_VALIDATOR),
    ownership.NAME: ([], ownership.VALIDATOR),
    unique_keys.NAME: (unique_keys.INDEXES, unique_keys.VALIDATOR),
}


@dataclass(frozen=True)
class ServerFacts:
    version: str
    replica_set: str | None
    """None behind a mongos."""
    address: str
    clock_offset: timedelta
    """The offset of the server's clock from this host's."""
    schema: int | None = None
    """The version of the schema that the database has; None if it is not prepared."""

    @property
    def needs_prepare(self) -> bool:
        """Whether the schema is older than that of this release."""
        return self.schema is not None and self.schema < SCHEMA


def check_hello(hello: Mapping[str, Any], target: str) -> None:
    """Raises NotAReplicaSet for a standalone server, ServerTooOld for a server before MongoDB 6.0. A mongos answers
    without `setName` and `me`; transactions and change streams work through it."""
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise NotAReplicaSet(NOT_A_REPLICA_SET.format(address=target))
    if hello["maxWireVersion"] < OLDEST_WIRE_VERSION:
        address = hello.get("me", target)
        raise ServerTooOld(f"MongoDB at {address} is older than 6.0; Recruiter needs 6.0 or newer")


@dataclass
class Store:
    """All collections. Connects on first use; safe to share between threads, not across a fork."""

    target: Target
    clock: SystemClock = field(default_factory=SystemClock)
    patience: float = 30.0
    wakers: Wakers = field(default_factory=Wakers, repr=False)
    """Wakes threads that wait for a retry, when there is a new primary."""

    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _client: MongoClient[Document] | None = field(default=None, repr=False)
    _process: int | None = field(default=None, repr=False)
    application_client: MongoClient[Any] | None = field(default=None, repr=False)
    """A client of the application, which is used and not closed."""
    compared: WeakSet[Any] = field(default_factory=WeakSet, repr=False)
    """Clients of the application that are connected to the same deployment."""

    @property
    def client(self) -> MongoClient[Document]:
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = self._connect()
        return self._client

    def _connect(self) -> MongoClient[Document]:
        self._process = os.getpid()
        if self.application_client is not None:
            return self.application_client
        try:
            return connect(self.target.uri, self.patience, self.wakers)
        except ConfigurationError as error:
            if is_dns_failure(error):
                raise StoreUnreachable(f"MongoDB at {self.target} cannot be found: {translate(error)}") from error
            text = unless_secret(error, self.target.uri)
            if "dnspython" in text:
                text = f"mongodb+srv:// needs the extra 'srv': {installing('srv')}"
            raise InvalidTarget(f"cannot use the MongoDB address {self.target}: {text}") from None
        except OSError as error:
            raise unusable_file(error, self.target.uri) from None
        except PyMongoError as error:
            raise InvalidTarget(
                f"cannot understand the MongoDB address {self.target}: {unless_secret(error, self.target.uri)}"
            ) from None

    @cached_property
    def database(self) -> Database[Document]:
        return self.client.get_database(
            self.target.database,
            codec_options=OPTIONS,
            read_preference=ReadPreference.PRIMARY,
            write_concern=DURABLE,
            read_concern=ReadConcern("local"),
        )

    def name_of(self, collection: str) -> str:
        """The name of a collection in the database. No other code adds the prefix."""
        return f"{self.target.prefix}{collection}"

    def _collection(self, name: str) -> Collection[Document]:
        return self.database.get_collection(self.name_of(name))

    def _schema(self) -> Wanted:
        return {self.name_of(name): (indexes, marked(validator)) for name, (indexes, validator) in _COLLECTIONS.items()}

    scheduled = cached_property(lambda self: scheduled.Scheduled(self._collection(scheduled.NAME)))
    due_jobs = cached_property(
        lambda self: due_jobs.DueJobs(self._collection(scheduled.NAME), self.name_of(flows.MARKERS))
    )
    archived = cached_property(lambda self: archived.Archived(self._collection(archived.NAME)))
    roster = cached_property(lambda self: roster.Roster(self._collection(roster.NAME)))
    leases = cached_property(lambda self: leases.Leases(self._collection(leases.NAME)))
    schedulers = cached_property(lambda self: schedulers.Schedulers(self._collection(schedulers.NAME)))
    queues = cached_property(lambda self: queues.Queues(self.due_jobs, self._collection(statistics.NAME)))
    limits = cached_property(lambda self: limits.Limits(self._collection(limits.NAME)))
    flows = cached_property(
        lambda self: flows.FlowCollection(self._collection(flows.NAME), self._collection(flows.MARKERS))
    )
    flow_steps = cached_property(lambda self: FlowSteps(self.scheduled, self.archived, self.roster))
    creations = cached_property(lambda self: self._collection(creations.NAME))
    unique_keys = cached_property(lambda self: unique_keys.UniqueKeys(self._collection(unique_keys.NAME)))
    statistics = cached_property(lambda self: statistics.Statistics(self._collection(statistics.NAME)))
    processes = cached_property(lambda self: processes.Processes(self._collection(processes.NAME)))
    actions = cached_property(lambda self: actions.Actions(self._collection(actions.NAME)))
    changes = cached_property(lambda self: Changes(self.scheduled.collection, self.roster))
    search = cached_property(
        lambda self: JobSearch(self._collection(scheduled.NAME), self._collection(archived.NAME), self.roster)
    )

    @property
    def server(self) -> Server:
        return Server(self.client, self.database, self._collection(leases.NAME))

    @cached_property
    def transactions(self) -> Transactions:
        collections = (self.scheduled, self.archived, self.roster, self.leases, self.schedulers)
        return Transactions(self.client, *collections, self.statistics, self.flows)

    def check(self) -> ServerFacts:
        """Checks that the server supports the protocol, and that the collections are ours with a known schema; sets the
        clock by the server. Raises StoreError, ForeignCollection, SchemaMismatch."""
        facts = self.reach()
        schema, meta = self._ownership()
        require_compatible(schema, meta, self.target.database, own_version())
        return replace(facts, schema=schema)

    def reach(self) -> ServerFacts:
        """Checks the server only."""
        client = self.client
        try:
            return self._server_facts()
        except StoreUnreachable as error:
            raise unreached(client, self.target, error) from error

    @store_call
    def _server_facts(self) -> ServerFacts:
        """Sets the clock by the server, and checks that the server is new enough."""
        self.clock.offset = timedelta()
        hello = self._set_clock()
        if self.clock.offset:
            self._set_clock()  # more exactly, now that there is a connection
        check_hello(hello, str(self.target))
        version = str(self.client.server_info()["version"])
        address = str(hello.get("me", self.target))
        return ServerFacts(version, hello.get("setName"), address, self.clock.offset)

    def _set_clock(self) -> Document:
        asked_at = self.clock.monotonic()
        hello = self.client.admin.command("hello")
        self.clock.agree(hello["localTime"].replace(tzinfo=UTC), self.clock.monotonic() - asked_at)
        return hello

    @store_call
    def _ownership(self) -> tuple[int | None, MetaDocument | None]:
        """The schema of the database, and the record of it. Raises ForeignCollection."""
        meta = read_meta(self._collection(ownership.NAME))
        try:
            return schema_of(self.database, self.target.prefix, self.collections(), meta), meta
        except OperationFailure as error:
            if error.code != UNAUTHORIZED:
                raise
            raise StoreRefused(
                f"database {self.target.database} is not prepared, and this user may not prepare it; run `recruiter "
                'prepare` once as a user who may (see "Users and roles in MongoDB" in the documentation)'
            ) from error

    @store_call
    def prepare(self, *, insist: bool = False) -> list[Difference]:
        """Creates the collections, their validators and indexes, and records that they are ours; returns the changes.
        Safe to repeat. A user without the rights gets no error if everything exists.

        In a database with an older schema, only missing collections and indexes are created; the command `recruiter
        prepare` (`insist`) does the rest. A newer schema is not changed. Raises ForeignCollection, SchemaMismatch.
        """
        schema, meta = self._ownership()
        if insist:
            require_not_newer(schema, meta, self.target.database, own_version())
        elif schema is not None and schema > SCHEMA:
            return []
        upgrades = insist or schema in (None, SCHEMA)
        made = prepare(self.database, self._schema(), validators=upgrades, insist=insist)
        if upgrades and (schema != SCHEMA or meta is None or not meta.collections.issuperset(self.collections())):
            write_meta(self._collection(ownership.NAME), self.collections(), own_version(), self.clock.now())
        return made

    def collections(self) -> list[str]:
        return list(self._schema())

    @store_call
    def differences(self) -> list[Difference]:
        return differences(self.database, self._schema())

    @store_call
    def require_rights(self) -> None:
        """Raises StoreRefused when the user lacks rights that our processes need."""
        missing = missing_privileges(
            self.client,
            self.target.database,
            {"": LOOK_AROUND, **dict.fromkeys(self.collections(), WRITE), self.name_of(ownership.NAME): {"find"}},
        )
        if missing:
            database = self.target.database
            rights = (
                f"{' and '.join(actions)} on {f'{database}.{name}' if name else f'database {database}'}"
                for name, actions in missing.items()
            )
            raise StoreRefused(
                f"this user of MongoDB may not {'; nor '.join(rights)}. Grant it the role for processes "
                '(see "Users and roles in MongoDB" in the documentation)'
            )

    @store_call
    def empty(self) -> None:
        """Removes every job, worker and lease of this database; for tests."""
        for name in set(self.collections()) - {self.name_of(ownership.NAME)}:
            self.database.get_collection(name).delete_many({})

    @store_call
    def drop(self) -> None:
        """Removes the whole database; for tests."""
        self.client.drop_database(self.target.database)

    def abandon(self) -> None:
        """Closes the store, unless a parent process opened it before the fork: then the parent closes it."""
        if self._process == os.getpid():
            self.close()

    def close(self) -> None:
        """Ends our sessions and closes our connections. The collections are forgotten with them, so the next use
        connects again."""
        with self._lock:
            client, self._client = self._client, None
            transactions = self.__dict__.get("transactions")
            for name, attribute in vars(Store).items():
                if isinstance(attribute, cached_property):
                    self.__dict__.pop(name, None)
        with pymongo.timeout(_CLOSE_SECONDS):  # the driver would wait for a MongoDB that is away, to end our sessions
            if transactions is not None:
                transactions.close()
            if client is not None and client is not self.application_client:
                client.close()


def target_of(given: object, prefix: str) -> tuple[Target, MongoClient[Any] | None]:
    """The address, and the application's client if there is one. Raises InvalidTarget."""
    if isinstance(given, str):
        return Target.parse(given, prefix), None
    if isinstance(given, Database):
        return _place(given.client, given.name, prefix), given.client
    if isinstance(given, MongoClient):
        return _place(given, given.get_default_database(DEFAULT_DATABASE).name, prefix), given
    if isinstance(given, AsyncMongoClient | AsyncDatabase):
        raise InvalidTarget(
            "a Recruiter needs an address, a MongoClient or a Database, not an AsyncMongoClient. It stores jobs over a "
            "MongoClient; aenqueue(session=…) still takes a session of your AsyncMongoClient"
        )
    raise InvalidTarget(f"a Recruiter needs an address, a MongoClient or a Database, not a {type(given).__name__}")


def _place(client: MongoClient[Any], database: str, prefix: str) -> Target:
    """The address of a client, without its credentials: other processes need their own."""
    seeds = sorted(client._topology_settings.seeds)
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in seeds)
    return Target(f"mongodb://{hosts}/{database}", database, prefix)


def open_store(
    target: Target, client: MongoClient[Any] | None, patience: float, *, prepares: bool, silent: Callable[[str], None]
) -> Store:
    """Connects to MongoDB and checks it; with `prepares`, prepares a database that is not. Calls `silent` when MongoDB
    has not answered for a second. Raises StoreError."""
    store = Store(target, patience=patience, application_client=client)
    try:
        facts = _check_patiently(store, silent)
        if prepares and facts.schema is None:
            store.prepare()
    except BaseException:
        store.close()
        raise
    return store


def _check_patiently(store: Store, silent: Callable[[str], None]) -> ServerFacts:
    """Checks the store. If MongoDB has not answered after a second, it calls `silent`, and waits as long as the store
    is patient."""
    if store.patience > SILENCE_SECONDS:
        try:
            with pymongo.timeout(SILENCE_SECONDS):
                return store.check()
        except StoreUnreachable as error:
            silent(str(error))
    return store.check()


def own_version() -> str:
    """Of Recruiter; asked for at run time, because the package imports this module."""
    return str(import_module("recruiter").__version__)


@store_call
def foreign_documents(target: Target, collection: str) -> list[Mapping[str, Any]]:
    """Every document of a collection of another program, the oldest id first. Its dates are instants, in UTC."""
    with closing(Store(target)) as store:
        there = store.client[target.database].get_collection(collection, OPTIONS)
        return list(there.find({}, sort=[("_id", 1)]))
