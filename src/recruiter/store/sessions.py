"""Sessions: all transactions of a process run on one session. The process that retires it ends the session
(see transactions.py).

A session belongs to the user that opened it. To end a session of its own, a user needs the id only. To end a session
of another user, it needs the privilege `killAnySession` and must name the owner by the digest of the owner's name.
Without the digest, MongoDB looks among the caller's own sessions, finds none, and reports success. So where there are
users, the digest is stored beside the id.

`run_transaction` runs every transaction of Recruiter. The driver repeats one that failed with a label of the server's;
some passing failures have none: an ended session (`Interrupted`), a connection that cannot have sessions yet. These
are repeated here.
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
from recruiter.errors import DocumentLocked, UnreadableDocument
from recruiter.store.codec import OPTIONS, Document
from recruiter.store.connection import drop_connections
from recruiter.store.errors import Meaning, meaning_of, store_call

T = TypeVar("T")

DURABLE = WriteConcern("majority", j=True)
LONGEST_TRANSACTION = 30.0
"""Seconds, retries included. After that the caller gets the error, and tries again with all that has gathered."""
LOCKED_FOR_SECONDS = 0.25
"""How long a process of Recruiter repeats a transaction that meets another one: that may be a user's, and stay open for
a minute. Transactions of Recruiter's own processes take a few milliseconds."""
_BETWEEN_TRIES, _LONGEST_BETWEEN = 0.01, 1.0
_WRITE_CONFLICT = 112

SessionId: TypeAlias = UUID | Mapping[str, Any]
"""As it is stored: the id, or `{id, uid}` where there are users."""

_UNAUTHORIZED = 13
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
    """Runs a transaction and repeats it until it succeeds or the time is over. `write` must be safe to repeat, also
    after a commit whose outcome is unknown. Raises DocumentLocked, with nothing written, when another transaction holds
    a document for longer than `locked_for`."""
    deadline, pause = time.monotonic() + within, _BETWEEN_TRIES
    write = _giving_up(write, locked_for)
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


def _giving_up(write: Callable[[ClientSession], T], after: float) -> Callable[[ClientSession], T]:
    """The same, but it raises DocumentLocked, which the driver does not repeat, once it has met others for so long."""
    until = time.monotonic() + after

    def giving_up(session: ClientSession) -> T:
        try:
            return write(session)
        except OperationFailure as error:
            if time.monotonic() < until or not is_conflict(error):
                raise
            raise DocumentLocked(
                "another transaction has written a document that is to be written here, and is still open; nothing was "
                "written"
            ) from error

    return giving_up


def is_conflict(error: OperationFailure) -> bool:
    """Whether another transaction has written the same document, and has not ended."""
    failures = (error.details or {}).get("writeErrors", ()) if isinstance(error, BulkWriteError) else ()
    return error.code == _WRITE_CONFLICT or any(failure.get("code") == _WRITE_CONFLICT for failure in failures)


def cluster_time(stamp: Timestamp | None) -> int:
    """A moment in the order of all writes, as one number; 0 if the server does not say."""
    return stamp.time << 32 | stamp.inc if stamp is not None else 0


def session_id(name: str, value: Any) -> SessionId | None:
    """As it was stored, in a roster document or a lease. Raises UnreadableDocument."""
    if value is None or isinstance(value, UUID):
        return value
    if isinstance(value, dict) and isinstance(value.get("id"), UUID) and isinstance(value.get("uid"), bytes):
        return {"id": value["id"], "uid": value["uid"]}
    raise UnreadableDocument(f"{name} is {shown(value, 60)}; it must be the id of a session")


class Sessions:
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
        told = dict(session) if isinstance(session, Mapping) else {"id": session}
        if told.get("uid") == self._own_uid():
            told.pop("uid", None)
        try:
            self._client.admin.command("killSessions", [told], codec_options=OPTIONS)
        except OperationFailure as error:
            if error.code != _UNAUTHORIZED:
                raise
            if not self._refused:
                self._refused = True
                self.on_refused(_MAY_NOT_END)

    @store_call
    def work_done(self, session: SessionId) -> int | None:
        """How long the server has worked for the open transaction of this session, in microseconds: it grows as long as
        its process uses it. None if none is open, or it cannot be known: another user's sessions are not shown."""
        id = session["id"] if isinstance(session, Mapping) else session
        stages: list[Document] = [
            {"$currentOp": {"idleSessions": True}},
            {"$match": {"lsid.id": id, "transaction": {"$exists": True}}},
        ]
        try:
            answer = self._client.admin.command("aggregate", 1, pipeline=stages, cursor={}, codec_options=OPTIONS)
        except OperationFailure as error:
            if error.code != _UNAUTHORIZED:
                raise
            return None
        found = answer["cursor"]["firstBatch"]
        return max((int(each["transaction"].get("timeActiveMicros", 0)) for each in found), default=None)

    @store_call
    def _own_uid(self) -> bytes | None:
        """The digest of the name that this connection has logged in with, if it has."""
        if not self._asked:
            self._uid = digest_of_user(self._client.admin.command("connectionStatus"))
            self._asked = True
        return self._uid


def digest_of_user(status: Mapping[str, Any]) -> bytes | None:
    """Of the name that a connection has logged in with, from its `connectionStatus`."""
    users = status["authInfo"]["authenticatedUsers"]
    return hashlib.sha256(f"{users[0]['user']}@{users[0]['db']}".encode()).digest() if users else None
