"""Sessions: all transactions of a process use one session. The process that retires it ends the session
(see transactions.py).

A session belongs to the user that opened it. A user can end its own session with the id only. To end a session of
another user, it needs the privilege `killAnySession` and must name the owner by the digest of the owner's name. Without
the digest, MongoDB searches the caller's own sessions, finds none, and reports success. So if MongoDB has users, the
digest is stored with the id.

`run_transaction` runs every transaction of Recruiter. The driver repeats a transaction that failed with a transient
label. Some passing failures have no label: an ended session (`Interrupted`), a connection that has no sessions yet.
These are repeated here.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import pymongo
from bson import Timestamp
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from recruiter.domain.text import shown
from recruiter.errors import DocumentLocked, StoreUnreachable, UnreadableDocument
from recruiter.store.codec import OPTIONS, Document
from recruiter.store.connection import drop_connections
from recruiter.store.errors import UNAUTHORIZED, WRITE_CONFLICT, Meaning, meaning_of, store_call

T = TypeVar("T")

DURABLE = WriteConcern("majority", j=True)
LONGEST_TRANSACTION = 30.0
"""Seconds, including retries. After that the caller gets the error."""
LOCKED_FOR_SECONDS = 0.25
"""The time in which a process of Recruiter repeats a transaction that conflicts with another. The other may belong to a
user and stay open for a minute. Transactions of Recruiter's processes take a few milliseconds."""
_BETWEEN_TRIES, _LONGEST_BETWEEN = 0.01, 1.0

SessionId: TypeAlias = UUID | Mapping[str, Any]
"""The stored form: the id, or `{id, uid}` if MongoDB has users."""

_MAY_NOT_END = (
    "may not end the session of a process that died; its locks stay for up to a minute. Grant this user "
    'killAnySession on the cluster (see "Users and roles in MongoDB" in the documentation)'
)


def run_transaction(
    session: ClientSession,
    write: Callable[[ClientSession], T],
    within: float = LONGEST_TRANSACTION,
    locked_for: float = LONGEST_TRANSACTION,
) -> T:
    """Runs a transaction and repeats it until it succeeds, for `within` seconds. `write` must be safe to repeat, even
    after a commit with an unknown outcome. Raises DocumentLocked, with nothing written, when another transaction holds
    a document for longer than `locked_for` seconds."""
    deadline, pause = time.monotonic() + within, _BETWEEN_TRIES
    write = _with_lock_timeout(write, locked_for)
    while True:
        try:
            with pymongo.timeout(max(0.001, deadline - time.monotonic())):
                return session.with_transaction(
                    write,
                    read_concern=ReadConcern("snapshot"),
                    write_concern=DURABLE,
                    read_preference=ReadPreference.PRIMARY,
                )
        except PyMongoError as error:
            meaning = meaning_of(error)
            if meaning not in (Meaning.TRY_AGAIN, Meaning.RECONNECT) or time.monotonic() + pause > deadline:
                raise
            if meaning is Meaning.RECONNECT:
                drop_connections(session.client)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_BETWEEN)


def _with_lock_timeout(write: Callable[[ClientSession], T], after: float) -> Callable[[ClientSession], T]:
    """The same write for `with_transaction`, which repeats it after a conflict. A conflict after this time raises
    DocumentLocked instead, which is not repeated."""
    until = time.monotonic() + after

    def write_with_timeout(session: ClientSession) -> T:
        try:
            try:
                return write(session)
            except StoreUnreachable as error:  # of a call that translates errors: the driver must see its own
                raise error.__cause__ if isinstance(error.__cause__, PyMongoError) else error from None
        except OperationFailure as error:
            if time.monotonic() < until or not is_conflict(error):
                raise
            raise DocumentLocked(
                "another open transaction has written a document of this transaction; nothing was written"
            ) from error

    return write_with_timeout


def is_conflict(error: OperationFailure) -> bool:
    """Whether another open transaction has written the same document."""
    failures = (error.details or {}).get("writeErrors", ()) if isinstance(error, BulkWriteError) else ()
    return error.code == WRITE_CONFLICT or any(failure.get("code") == WRITE_CONFLICT for failure in failures)


def cluster_time(stamp: Timestamp | None) -> int:
    """A cluster time as one number; 0 if the server does not report it."""
    return stamp.time << 32 | stamp.inc if stamp is not None else 0


def session_id(name: str, value: Any) -> SessionId | None:
    """The parser of a stored session id. Raises UnreadableDocument."""
    if value is None or isinstance(value, UUID):
        return value
    if isinstance(value, dict) and isinstance(value.get("id"), UUID) and isinstance(value.get("uid"), bytes):
        return {"id": value["id"], "uid": value["uid"]}
    raise UnreadableDocument(f"{name} is {shown(value, 60)}; it must be the id of a session")


class Sessions:
    """The sessions on which processes run their transactions, and which can be ended when a process dies."""

    def __init__(self, client: MongoClient[Document]) -> None:
        self._client = client
        self._uid: bytes | None = None
        self._asked = False
        self._refused = False
        self.on_refused: Callable[[str], None] = lambda _: None
        """Called once, when a session could not be ended because a privilege is missing."""

    def id_of(self, session: ClientSession) -> SessionId:
        id: UUID = session.session_id["id"].as_uuid()
        uid = self._own_uid()
        return id if uid is None else {"id": id, "uid": uid}

    @store_call
    def end(self, session: SessionId) -> None:
        """Ends a session, and with it the transaction that is open on it. Its locks are free then. Reports once, by
        `on_refused`, if this user may not do it."""
        to_end = dict(session) if isinstance(session, Mapping) else {"id": session}
        if to_end.get("uid") == self._own_uid():
            to_end.pop("uid", None)  # a user needs no privilege for its own sessions, which are named without it
        try:
            self._client.admin.command("killSessions", [to_end], codec_options=OPTIONS)
        except OperationFailure as error:
            if error.code != UNAUTHORIZED:
                raise
            if not self._refused:
                self._refused = True
                self.on_refused(_MAY_NOT_END)

    @store_call
    def work_done(self, session: SessionId) -> int | None:
        """The microseconds that the server has worked for the open transaction of this session: they grow while its
        process uses it. None without an open transaction, and for sessions of other users."""
        id = session["id"] if isinstance(session, Mapping) else session
        stages: list[Document] = [
            {"$currentOp": {"idleSessions": True}},
            {"$match": {"lsid.id": id, "transaction": {"$exists": True}}},
        ]
        try:
            answer = self._client.admin.command("aggregate", 1, pipeline=stages, cursor={}, codec_options=OPTIONS)
        except OperationFailure as error:
            if error.code != UNAUTHORIZED:
                raise
            return None
        found = answer["cursor"]["firstBatch"]
        return max((int(row["transaction"].get("timeActiveMicros", 0)) for row in found), default=None)

    @store_call
    def _own_uid(self) -> bytes | None:
        if not self._asked:
            self._uid = digest_of_user(self._client.admin.command("connectionStatus"))
            self._asked = True
        return self._uid


def digest_of_user(status: Mapping[str, Any]) -> bytes | None:
    """The digest of the user of a connection, from its `connectionStatus`; None without a user."""
    users = status["authInfo"]["authenticatedUsers"]
    return hashlib.sha256(f"{users[0]['user']}@{users[0]['db']}".encode()).digest() if users else None
