"""The connection: the address of MongoDB (`Target`), and a client that leaves a primary as soon as there is a new one.

A primary that vanishes silently (a frozen process, a cut cable) answers nothing, and a call to it would wait for a
socket timeout. The driver's monitors learn immediately from the other members that there is a new primary, but the
driver does not interrupt open calls. `_PrimaryListener` does: the driver then repeats reads and retryable writes on the
new primary, and transactions are repeated from the start (`sessions.py`).

The connections to the *new* primary are dropped too. pymongo decides for each connection at its handshake whether it
supports sessions. A connection that was opened while the server was neither primary nor secondary never does.

pymongo has no public way to drop the connections of an open client; its own code calls `_reset`.
tests/store/test_connection.py fails when that changes.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pymongo
from pymongo import MongoClient
from pymongo.driver_info import DriverInfo
from pymongo.errors import ConfigurationError, InvalidURI
from pymongo.monitoring import (
    TopologyClosedEvent,
    TopologyDescriptionChangedEvent,
    TopologyListener,
    TopologyOpenedEvent,
)
from pymongo.uri_parser import parse_uri

from recruiter.domain.duration import DurationLike, to_seconds
from recruiter.domain.names import DEFAULT_PREFIX, check_prefix
from recruiter.domain.text import mask
from recruiter.errors import InvalidTarget, NotAReplicaSet, StoreError, StoreUnreachable
from recruiter.store.codec import Document

DEFAULT_DATABASE = "recruiter"
_WORD = re.compile(r"\w+")
_HOST_OF_ONE_WORD = re.compile(r"mongodb://([A-Za-z][\w-]*)")
_EXAMPLES = "write 127.0.0.1:27017, host/database, mongodb://… or mongodb+srv://…"


def unless_secret(error: Exception, uri: str) -> str:
    """The driver's message about an address, unless it contains a secret."""
    hidden = _words(uri) - _words(mask(uri))
    message = mask(str(error))
    return f"{type(error).__name__}; its message contains a secret" if hidden & _words(message) else message


def unusable_file(error: OSError, uri: str) -> InvalidTarget:
    why = unless_secret(error, uri)
    return InvalidTarget(
        f"cannot use the MongoDB address {mask(uri)!r}: a file that it names cannot be used ({why}). "
        "tlsCAFile= must name the PEM file of the certificate authority, tlsCertificateKeyFile= the PEM file of the "
        "client's certificate and key; correct the path, or put the file there"
    )


def _words(text: str) -> set[str]:
    return {word for form in (text, unquote(text)) for word in _WORD.findall(form)}


@dataclass(frozen=True)
class Target:
    """An address, the database in it and the prefix of our collections. Prints masked, so that it can be logged."""

    uri: str
    database: str
    prefix: str = DEFAULT_PREFIX

    @classmethod
    def parse(cls, text: str, prefix: str = DEFAULT_PREFIX) -> Target:
        if not text.strip():
            raise InvalidTarget(
                "the MongoDB address is empty. It comes from --target, RECRUITER_TARGET or recruiter.toml: "
                f"{_EXAMPLES}; the default is 127.0.0.1:27017"
            )
        uri = text.strip() if "://" in text else f"mongodb://{text.strip()}"
        scheme, _, rest = uri.partition("://")
        if scheme not in ("mongodb", "mongodb+srv") or not rest.strip("/"):
            raise InvalidTarget(f"cannot understand the MongoDB address {mask(uri)!r}: {_EXAMPLES}")
        return cls(uri, cls._database(uri), check_prefix(prefix))

    def in_database(self, name: str) -> Target:
        """The same server, another database."""
        scheme, _, rest = self.uri.partition("://")
        address, _, options = rest.partition("?")
        credentials, at, place = address.rpartition("@")
        hosts = place.partition("/")[0]
        uri = f"{scheme}://{credentials}{at}{hosts}/{name}" + (f"?{options}" if options else "")
        return Target.parse(uri, self.prefix)

    @property
    def address(self) -> tuple[str, int | None]:
        """The first host of the address, and its port if it is given."""
        host = self.uri.partition("://")[2].partition("?")[0].partition("/")[0].rpartition("@")[2].partition(",")[0]
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdigit():  # also `[::1]`
            return host.strip("[]"), None
        return name.strip("[]"), int(port)

    @property
    def described(self) -> str:
        """With the prefix, if it is not the default."""
        return str(self) if self.prefix == DEFAULT_PREFIX else f"{self} with the prefix {self.prefix!r}"

    @staticmethod
    def _database(uri: str) -> str:
        """The database that an address names. Raises InvalidTarget."""
        if uri.startswith("mongodb+srv://"):
            # parse_uri would query DNS; the name follows the host.
            path = uri.partition("://")[2].partition("?")[0].rpartition("@")[2].partition("/")[2]
            return path.partition(".")[0] or DEFAULT_DATABASE
        try:
            return parse_uri(uri)["database"] or DEFAULT_DATABASE
        except OSError as error:
            raise unusable_file(error, uri) from None
        except (InvalidURI, ConfigurationError, ValueError) as error:
            why = unless_secret(error, uri)
            raise InvalidTarget(f"cannot understand the MongoDB address {mask(uri)!r} ({why}): {_EXAMPLES}") from None

    def __str__(self) -> str:
        return mask(self.uri)

    def __repr__(self) -> str:
        return f"Target({mask(self.uri)!r}, database={self.database!r}, prefix={self.prefix!r})"


Address = tuple[str, int | None]

_SOCKET_TIMEOUT_SECONDS = 20.0
"""The minimum time that a call waits for an answer if there is no new primary."""
_DNS_TIMEOUT_SECONDS = 20.0

_NOT_INITIATED = """\
MongoDB at {target} was started with --replSet, and its replica set has not been initiated. Once, in mongosh:
  rs.initiate()"""

_NO_PRIMARY = (
    "MongoDB at {target} has no primary: an election is running, or too few of its members are up. "
    "Wait a few seconds; `recruiter doctor` names the members"
)

_ADVICE = (
    ("for replica set name", "correct replicaSet= in the address; a standalone server must become a replica set first"),
    ("Got response id", "the server at this address is not MongoDB; correct the address"),
    (
        "connection closed",
        "if the server accepts TLS only, write tls=true in the address, and tlsCAFile= for a private authority; "
        "if it asks for a certificate, tlsCertificateKeyFile=",
    ),
    (
        "EOF occurred in violation",
        "the server does not speak TLS; write tls=false in the address (mongodb+srv:// means tls=true), or switch TLS "
        "on at the server",
    ),
    ("certificate is not valid for", "the certificate of the server is for another host; write a name that is in it"),
    ("certificate has expired", "the certificate of the server has expired; give the server a new one"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "this host does not know the authority that signed the certificate of the server; name the PEM file of the "
        "authority with tlsCAFile= in the address",
    ),
    ("SSL", "the address and the server disagree about TLS; correct tls= and its files in the address"),
    ("Name or service not known", "correct the name of the host in --target or RECRUITER_TARGET"),
    ("", "is it running, and can this host reach it? Another address: --target or RECRUITER_TARGET"),
)

_deadline: ContextVar[float | None] = ContextVar("recruiter_deadline", default=None)


class Wakers:
    """Callbacks for a new primary, which is a reason to stop waiting. Holds only weak references."""

    def __init__(self) -> None:
        self._calls: list[weakref.WeakMethod[Callable[[], None]]] = []

    def add(self, call: Callable[[], None]) -> None:
        self._calls = [*(known for known in self._calls if known() is not None), weakref.WeakMethod(call)]

    def wake(self) -> None:
        for reference in self._calls:
            call = reference()
            if call is not None:
                call()


def connect(uri: str, patience: float, wakers: Wakers) -> MongoClient[Document]:
    """A client for this address, which waits for a server for `patience` seconds. Does not connect yet."""
    given, options = uri.lower(), dict[str, Any]()
    if "serverselectiontimeoutms" not in given:
        options["serverSelectionTimeoutMS"] = int(patience * 1000)
    if given.startswith("mongodb+srv://") and "connecttimeoutms" not in given:
        options["connectTimeoutMS"] = int(min(_DNS_TIMEOUT_SECONDS, patience) * 1000)  # also limits each DNS query
    if "sockettimeoutms" not in given:
        options["socketTimeoutMS"] = int(max(_SOCKET_TIMEOUT_SECONDS, patience) * 1000)
    listener = _PrimaryListener(wakers)
    client: MongoClient[Document] = MongoClient(
        uri,
        driver=DriverInfo("recruiter"),
        event_listeners=[listener],
        retryWrites=True,
        retryReads=True,
        appname="recruiter",
        **options,
    )
    listener.client = weakref.ref(client)
    return client


def drop_connections(client: MongoClient[Any], address: Address | None = None, *, interrupt: bool = False) -> None:
    """Closes the pooled connections to one server or to all servers; the next call opens new ones. With `interrupt`,
    calls that wait for an answer fail immediately, as after a network failure."""
    topology = client._topology
    for place, server in list(topology._servers.items() if topology is not None else ()):
        if address in (None, place):
            server.pool._reset(close=False, pause=False, interrupt_connections=interrupt)


class _PrimaryListener(TopologyListener):
    """Called on a thread of the driver, after each change of the topology."""

    def __init__(self, wakers: Wakers) -> None:
        self._wakers = wakers
        self.client: weakref.ref[MongoClient[Document]] | None = None
        self._primary: Address | None = None

    def opened(self, event: TopologyOpenedEvent) -> None: ...

    def closed(self, event: TopologyClosedEvent) -> None: ...

    def description_changed(self, event: TopologyDescriptionChangedEvent) -> None:
        """After an election, drops the connections to the last primary and to the new one, which may be the same, and
        wakes the threads that wait for it. Calls that the last primary has not answered fail immediately."""
        before, now = _primary(event.previous_description), _primary(event.new_description)
        if now is None or now == before:
            return
        client = self.client() if self.client is not None else None
        last, self._primary = self._primary, now
        if client is None or last is None:
            return  # it is the first primary
        if last != now:
            drop_connections(client, last, interrupt=True)
        drop_connections(client, now)
        self._wakers.wake()


def _primary(description: Any) -> Address | None:
    servers = description.server_descriptions().items()
    return next((address for address, server in servers if server.server_type_name == "RSPrimary"), None)


def unreached(client: MongoClient[Document], target: Target, error: StoreUnreachable) -> StoreError:
    """The error for a failed first connection, with advice."""
    members = {member.server_type_name for member in client.topology_description.server_descriptions().values()}
    if "RSGhost" in members:
        return NotAReplicaSet(_NOT_INITIATED.format(target=target))
    if members & {"RSSecondary", "RSArbiter", "RSOther"}:
        return StoreUnreachable(_NO_PRIMARY.format(target=target))
    why = str(error).partition(": ")[2] or str(error)
    advice = next(advice for symptom, advice in _ADVICE if symptom in why)
    if (word := _HOST_OF_ONE_WORD.fullmatch(target.uri)) and word[1] != "localhost":
        advice += f". For a database called {word[1]!r}: 127.0.0.1:27017/{word[1]}"
    return StoreUnreachable(f"MongoDB at {target} does not answer ({why}): {advice}")


@contextmanager
def answered_within(duration: DurationLike | None) -> Iterator[None]:
    """Inside this block MongoDB must answer all calls within this time. Raises StoreUnreachable."""
    if duration is None:
        yield
        return
    seconds = max(0.001, to_seconds(duration))
    token = _deadline.set(time.monotonic() + seconds)
    try:
        with pymongo.timeout(seconds):
            yield
    finally:
        _deadline.reset(token)


def seconds_left() -> float | None:
    """The seconds that this call may still wait; None without a limit."""
    deadline = _deadline.get()
    return None if deadline is None else max(0.0, deadline - time.monotonic())
