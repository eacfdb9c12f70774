"""The few commands that make a bare mongod a replica set; for the private MongoDB only.

Each speaks to exactly one server (a direct connection), primary or not, and raises a `StoreError` where that
does not answer or says no.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from pymongo import MongoClient
from pymongo.errors import OperationFailure

from recruiter.errors import StoreError
from recruiter.store.codec import Document
from recruiter.store.errors import store_call

Connection: TypeAlias = MongoClient[Document]

NOT_YET_INITIALIZED = 94


@dataclass(frozen=True, slots=True)
class Hello:
    """What a server says it is."""

    set_name: str | None
    writable_primary: bool
    secondary: bool
    arbiter: bool = False

    @property
    def member(self) -> bool:
        """Whether it takes part in its replica set: it has the data and answers reads, or is there to vote."""
        return self.writable_primary or self.secondary or self.arbiter


@contextmanager
def connected(address: str, credentials: str = "") -> Iterator[Connection]:
    """A connection to the one server at `address` (`host:port`), as `user:password` if given; closed at the end."""
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
    """What the server is right now."""
    answer = _command(connection, {"hello": 1})
    return Hello(
        set_name=answer.get("setName"),
        writable_primary=bool(answer.get("isWritablePrimary")),
        secondary=bool(answer.get("secondary")),
        arbiter=bool(answer.get("arbiterOnly")),
    )


def data_folder(connection: Connection) -> str:
    """The `dbPath` the server was started with; proof of which server answers at an address."""
    parsed = _command(connection, {"getCmdLineOpts": 1}).get("parsed", {})
    return str(parsed.get("storage", {}).get("dbPath", ""))


def replica_set_config(connection: Connection) -> Document | None:
    """The replica set's configuration, or None before it was initiated."""
    try:
        return dict(_command(connection, {"replSetGetConfig": 1})["config"])
    except StoreError as error:
        cause = error.__cause__
        if isinstance(cause, OperationFailure) and cause.code == NOT_YET_INITIALIZED:
            return None
        raise


def initiate(
    connection: Connection,
    name: str,
    addresses: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    arbiters: Collection[str] = (),
) -> None:
    """Make the servers at `addresses`, all of them empty, one replica set, in which some only vote."""
    config = {"_id": name, "members": _members(addresses, arbiters), "settings": dict(settings or {})}
    _command(connection, {"replSetInitiate": config})


def reconfigure(connection: Connection, config: Document, addresses: Sequence[str]) -> None:
    """Force the set to consist of `addresses`, whatever it was; only for a set with nobody else in it."""
    changed = {**config, "version": config["version"] + 1, "members": _members(addresses)}
    _command(connection, {"replSetReconfig": changed, "force": True})


def _members(addresses: Sequence[str], arbiters: Collection[str] = ()) -> list[Document]:
    return [
        {"_id": number, "host": address, **({"arbiterOnly": True} if address in arbiters else {})}
        for number, address in enumerate(addresses)
    ]


@store_call
def _command(connection: Connection, command: Document) -> Document:
    return connection.admin.command(command)
