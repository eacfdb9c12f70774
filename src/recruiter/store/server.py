"""Facts about the MongoDB server for operators. Some of them need extra rights, and raise StoreRefused without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import pymongo
from pymongo import MongoClient, ReadPreference
from pymongo.collection import Collection as MongoCollection
from pymongo.database import Database
from pymongo.errors import ExecutionTimeout, OperationFailure
from pymongo.read_concern import ReadConcern

from recruiter.errors import StoreError
from recruiter.store.codec import Document
from recruiter.store.collections.leases import LEADER
from recruiter.store.errors import store_call

_ARBITER = 7

WRITE = frozenset({"find", "insert", "update", "remove"})
LOOK_AROUND = frozenset({"listCollections", "listIndexes"})
"""On the database: to see whether it is prepared."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the replica set, as the server that was asked sees it."""

    name: str
    state: str
    healthy: bool
    arbiter: bool
    behind: timedelta | None
    """The lag of its data behind the primary's."""
    told: str = ""
    """The server's message about its problem."""


@dataclass(frozen=True, slots=True)
class Oplog:
    window: timedelta
    """From its first entry to its last."""
    rolls: bool
    """Whether old entries have been removed since the server started; if not, the window only grows."""
    persistent: bool
    """Whether the storage engine writes to a disk at all."""


@dataclass(frozen=True, slots=True)
class Disk:
    used: int
    total: int


class Server:
    def __init__(
        self, client: MongoClient[Document], database: Database[Document], leases: MongoCollection[Document]
    ) -> None:
        self._admin = client.admin
        self._database = database
        self._leases = leases

    @store_call
    def members(self, within: float = 10.0) -> list[Member]:
        """The members of the replica set, from any server that answers. Needs `replSetGetStatus`."""
        with pymongo.timeout(within):
            status = self._admin.command("replSetGetStatus", read_preference=ReadPreference.PRIMARY_PREFERRED)
        newest = max((member["optimeDate"] for member in status["members"] if "optimeDate" in member), default=None)
        return [_member(member, newest) for member in status["members"]]

    @store_call
    def journal_by_default(self) -> bool:
        """Whether a majority write is journaled by default. Needs `replSetGetConfig`."""
        return bool(self._admin.command("replSetGetConfig")["config"].get("writeConcernMajorityJournalDefault", True))

    @store_call
    def oplog(self) -> Oplog:
        """Needs `serverStatus`."""
        status = self._admin.command({"serverStatus": 1, "oplog": 1, "metrics": 0, "wiredTiger": 0})
        oplog = status["oplog"]
        window = timedelta(seconds=oplog["latestOptime"].time - oplog["earliestOptime"].time)
        rolls = bool(status.get("oplogTruncation", {}).get("truncateCount", 1))
        return Oplog(window, rolls, bool(status["storageEngine"].get("persistent", True)))

    @store_call
    def disk(self) -> Disk | None:
        """The disk of the data. Needs `dbStats` on the database. None while there are no data."""
        stats = self._database.command("dbStats")
        total = int(stats.get("fsTotalSize", 0))
        return Disk(int(stats["fsUsedSize"]), total) if total else None

    @store_call
    def majority_confirms(self, within: float) -> bool:
        """Whether a majority of the members confirms the writes of the primary: a linearizable read waits for that."""
        certain = self._leases.with_options(read_concern=ReadConcern("linearizable"))
        try:
            certain.find_one({"_id": LEADER}, {"_id": 1}, max_time_ms=int(within * 1000))
        except ExecutionTimeout:
            return False
        except OperationFailure as error:
            if not error.timeout:
                raise
            return False
        return True


def _member(status: Mapping[str, Any], newest: Any) -> Member:
    arbiter, optime = status["state"] == _ARBITER, status.get("optimeDate")
    lags = not arbiter and optime is not None and bool(status["health"])
    return Member(
        name=status["name"],
        state=str(status["stateStr"]),
        healthy=bool(status["health"]),
        arbiter=arbiter,
        behind=newest - optime if lags else None,
        told=str(status.get("lastHeartbeatMessage") or ""),
    )


def missing_privileges(
    client: MongoClient[Document], database: str, needed: Mapping[str, Iterable[str]]
) -> dict[str, list[str]]:
    """The missing rights of this user, by collection ("" for the database). Empty if MongoDB has no users, or does not
    report the rights."""
    answer = client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    granted: Sequence[Mapping[str, Any]] | None = answer.get("authenticatedUserPrivileges")
    if not answer["authenticatedUsers"] or granted is None:
        return {}
    found: dict[str, list[str]] = {}
    for collection, actions in needed.items():
        allowed = {
            action
            for privilege in granted
            if _covers(privilege["resource"], database, collection)
            for action in privilege["actions"]
        }
        missing = sorted(set(actions) - allowed) if "anyAction" not in allowed else []
        if missing:
            found[collection] = missing
    return found


def _covers(resource: Mapping[str, Any], database: str, collection: str) -> bool:
    if resource.get("anyResource"):
        return True
    return resource.get("db") in ("", database) and resource.get("collection") in ("", collection)


Connection: TypeAlias = MongoClient[Document]

NOT_YET_INITIALIZED = 94


@dataclass(frozen=True, slots=True)
class Hello:
    set_name: str | None
    writable_primary: bool
    secondary: bool
    arbiter: bool = False

    @property
    def member(self) -> bool:
        return self.writable_primary or self.secondary or self.arbiter


@contextmanager
def connected(address: str, credentials: str = "") -> Iterator[Connection]:
    """A connection to the single server at `address` (`host:port`), as `user:password` if given."""
    client: Connection = MongoClient(
        f"mongodb://{credentials}{'@' if credentials else ''}{address}/",
        directConnection=True,
        serverSelectionTimeoutMS=2_000,
        connectTimeoutMS=2_000,
        socketTimeoutMS=10_000,
        appname="recruiter-embedded",
    )
    try:
        yield client
    finally:
        client.close()


def hello(connection: Connection) -> Hello:
    answer = command(connection, {"hello": 1})
    return Hello(
        set_name=answer.get("setName"),
        writable_primary=bool(answer.get("isWritablePrimary")),
        secondary=bool(answer.get("secondary")),
        arbiter=bool(answer.get("arbiterOnly")),
    )


def data_folder(connection: Connection) -> str:
    """The `dbPath` of the server: it identifies the server at an address."""
    parsed = command(connection, {"getCmdLineOpts": 1}).get("parsed", {})
    return str(parsed.get("storage", {}).get("dbPath", ""))


def replica_set_config(connection: Connection) -> Document | None:
    """None before the replica set was initiated."""
    try:
        return dict(command(connection, {"replSetGetConfig": 1})["config"])
    except StoreError as error:
        cause = error.__cause__
        if isinstance(cause, OperationFailure) and cause.code == NOT_YET_INITIALIZED:
            return None
        raise


def initiate(connection: Connection, name: str, address: str) -> None:
    command(connection, {"replSetInitiate": {"_id": name, "members": [{"_id": 0, "host": address}]}})


def reconfigure(connection: Connection, config: Document, address: str) -> None:
    """Makes this server the only member of the set."""
    changed = {**config, "version": config["version"] + 1, "members": [{"_id": 0, "host": address}]}
    command(connection, {"replSetReconfig": changed, "force": True})


@store_call
def command(connection: Connection, command: Document) -> Document:
    return connection.admin.command(command)
