"""A MongoDB in memory: documents, transactions with snapshots and write conflicts, sessions that can be ended.

It is one node, and everything that it answers is majority-committed: rollbacks are not simulated. Two transactions that
write the same document conflict: the later write fails immediately. A write outside of transactions waits for a
lock; here it raises `Locked`, and its caller tries again (client.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from recruiter.store.codec import encode
from tests.simulator import documents
from tests.simulator.documents import Document

WRITE_CONFLICT, NO_SUCH_TRANSACTION, DUPLICATE_KEY = 112, 251, 11000
_TRANSIENT = "TransientTransactionError"
LONGEST_TRANSACTION = 60.0

Key = Any


class Locked(Exception):
    """A transaction has written this document and is not over."""


class Transaction:
    """An open transaction: its snapshot, and its writes."""

    def __init__(self, session: Any, snapshot: dict[str, dict[Key, Document]], since: int, began: float) -> None:
        self.session = session
        self.snapshot = snapshot
        self.since = since
        """The number of writes in the snapshot."""
        self.began = began
        self.writes: dict[tuple[str, Key], Document | None] = {}
        self.over = False

    def see(self, name: str) -> dict[Key, Document]:
        if not self.writes:
            return self.snapshot.get(name, {})
        seen = dict(self.snapshot.get(name, {}))
        for (collection, key), document in self.writes.items():
            if collection == name:
                if document is None:
                    seen.pop(key, None)
                else:
                    seen[key] = document
        return seen


class Server:
    def __init__(self, monotonic: Callable[[], float], epoch: datetime) -> None:
        self._monotonic = monotonic
        self._epoch = epoch
        self.skew = timedelta()
        """How wrong its clock is."""
        self.collections: dict[str, dict[Key, Document]] = {}
        self._written: dict[tuple[str, Key], int] = {}
        """The last write of each document, even if it no longer exists."""
        self._locks: dict[tuple[str, Key], Transaction] = {}
        self._open: dict[Any, Transaction] = {}
        self._encoded: dict[int, tuple[Document, bytes]] = {}
        """Documents that were read, by identity: stored documents are never changed in place."""
        self._projected: dict[tuple[int, int], tuple[Document, Mapping[str, Any], Document]] = {}
        """The same for the parts of them that were asked for."""
        self.writes = 1
        """The number of writes: the cluster time."""
        self.on_write: Callable[[Sequence[tuple[str, Key]]], None] = lambda _: None
        """Called after every write that others can see, with the documents it changed."""
        self.between_documents: Callable[[], None] = lambda: None
        """Called in a write of several documents outside of transactions: others may come in between."""

    def now(self) -> datetime:
        return self._epoch + timedelta(seconds=self._monotonic()) + self.skew

    # -- transactions ------------------------------------------------------------------------------------------------

    def begin(self, session: Any) -> Transaction:
        self._expire()
        self.end_session(session)  # a new transaction of a session ends its old one
        snapshot = {name: dict(collection) for name, collection in self.collections.items()}
        transaction = Transaction(session, snapshot, self.writes, self._monotonic())
        self._open[session] = transaction
        return transaction

    def commit(self, transaction: Transaction) -> None:
        self.require(transaction)
        for (name, key), document in transaction.writes.items():
            self._put(name, key, document)
        changed = list(transaction.writes)
        self._close(transaction)
        if changed:
            self.on_write(changed)

    def abort(self, transaction: Transaction) -> None:
        if not transaction.over:
            self._close(transaction)

    def end_session(self, session: Any) -> None:
        transaction = self._open.get(session)
        if transaction is not None:
            self._close(transaction)

    def require(self, transaction: Transaction) -> None:
        self._expire()
        if transaction.over:
            raise _failure("the transaction was ended", NO_SUCH_TRANSACTION, transient=True)

    def _expire(self) -> None:
        if self._open:
            longest = self._monotonic() - LONGEST_TRANSACTION
            for transaction in [each for each in self._open.values() if each.began < longest]:
                self._close(transaction)

    def _close(self, transaction: Transaction) -> None:
        transaction.over = True
        self._open.pop(transaction.session, None)
        for place in transaction.writes:
            self._locks.pop(place, None)

    # -- reading -----------------------------------------------------------------------------------------------------

    def find(self, name: str, query: Mapping[str, Any], transaction: Transaction | None = None) -> list[Document]:
        if transaction is not None:
            self.require(transaction)
        return [document for _, document in self._find(name, query, transaction)]

    def _find(self, name: str, query: Mapping[str, Any], transaction: Transaction | None) -> list[tuple[Key, Document]]:
        there = self.collections.get(name, {}) if transaction is None else transaction.see(name)
        wanted = query.get("_id")
        if type(wanted) is str or type(wanted) is int:  # by far the most frequent question
            document = there.get(wanted)
            if document is None:
                return []
            return [(wanted, document)] if len(query) == 1 or documents.matches(document, query) else []
        return [(key, document) for key, document in there.items() if documents.matches(document, query)]

    def projected(self, document: Document, fields: Mapping[str, Any] | None) -> Document:
        """This part of a document: the same one each time, as long as neither has changed."""
        if not fields:
            return document
        known = self._projected.get((id(document), id(fields)))
        if known is None:
            known = document, fields, documents.project(document, fields)
            self._projected[id(document), id(fields)] = known
        return known[2]

    def encoded(self, document: Document) -> bytes:
        known = self._encoded.get(id(document))
        if known is None:
            known = self._encoded[id(document)] = document, encode(document)
        return known[1]

    # -- writing -----------------------------------------------------------------------------------------------------

    def insert(self, name: str, new: Sequence[Mapping[str, Any]], transaction: Transaction | None = None) -> None:
        """Inserts all of them, or the documents before the first duplicate."""
        for position, document in enumerate(new):
            fresh = documents.stored(document)
            try:
                self._insert(name, fresh, transaction)
            except DuplicateKeyError as error:
                self._fail(transaction)
                if len(new) == 1:
                    raise
                failure = {"index": position, "code": DUPLICATE_KEY, "errmsg": str(error)}
                raise BulkWriteError({"writeErrors": [failure], "nInserted": position}) from None

    def _insert(self, name: str, fresh: Document, transaction: Transaction | None) -> None:
        if transaction is not None:
            self.require(transaction)
        key = key_of(fresh["_id"])
        there = self.collections.get(name, {}) if transaction is None else transaction.see(name)
        if key in there:
            raise DuplicateKeyError(f"E11000 duplicate key error collection: {name}", DUPLICATE_KEY)
        self._write(name, key, fresh, transaction)

    def update(
        self,
        name: str,
        query: Mapping[str, Any],
        update: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        transaction: Transaction | None = None,
        *,
        many: bool = False,
        upsert: bool = False,
    ) -> tuple[int, int, Document | None, Document | None]:
        """The numbers of matched and changed documents, and the first document before and after."""
        matched, changed, before, after = 0, 0, None, None
        for key, document in self._matching(name, query, transaction, many):
            new = documents.updated(document, update, self.now())
            before, after = (document, new) if before is None else (before, after)
            matched += 1
            if new != document:  # an update without a change is no write: it neither waits nor conflicts
                changed += 1
                self._write(name, key, new, transaction)
        if not matched and upsert:
            after = documents.updated(documents.upserted(query), update, self.now())
            self._insert(name, after, transaction)
        return matched, changed, before, after

    def replace(
        self,
        name: str,
        query: Mapping[str, Any],
        new: Mapping[str, Any],
        transaction: Transaction | None = None,
        *,
        upsert: bool = False,
    ) -> int:
        matched = 0
        for key, old in self._matching(name, query, transaction, many=False):
            matched += 1
            self._write(name, key, documents.stored({"_id": old["_id"], **new}), transaction)
        if not matched and upsert:
            self._insert(name, documents.stored({**documents.upserted(query), **new}), transaction)
        return matched

    def delete(
        self, name: str, query: Mapping[str, Any], transaction: Transaction | None = None, *, many: bool = False
    ) -> list[Document]:
        gone = []
        for key, document in self._matching(name, query, transaction, many):
            self._write(name, key, None, transaction)
            gone.append(document)
        return gone

    def _matching(
        self, name: str, query: Mapping[str, Any], transaction: Transaction | None, many: bool
    ) -> Iterator[tuple[Key, Document]]:
        """The documents one by one; outside of a transaction, each in its current state."""
        if transaction is not None:
            self.require(transaction)
        found = self._find(name, query, transaction)
        for number, (key, document) in enumerate(found if many else found[:1]):
            if number and transaction is None:
                self.between_documents()
                document = self.collections.get(name, {}).get(key, {})
                if not document or not documents.matches(document, query):
                    continue
            yield key, document

    def _wait_for(self, name: str, key: Key) -> None:
        self._expire()
        if (name, key) in self._locks:
            raise Locked(f"{name} {key}")

    def _write(self, name: str, key: Key, document: Document | None, transaction: Transaction | None) -> None:
        if transaction is None:
            self._wait_for(name, key)
            self._put(name, key, document)
            self.on_write([(name, key)])
            return
        self.require(transaction)
        holder = self._locks.get((name, key))
        if holder not in (None, transaction) or self._written.get((name, key), 0) > transaction.since:
            self._fail(transaction)
            raise _failure(f"write conflict on {name} {key}", WRITE_CONFLICT, transient=True)
        self._locks[name, key] = transaction
        transaction.writes[name, key] = document

    def _fail(self, transaction: Transaction | None) -> None:
        """Any error ends a transaction, as on a real server."""
        if transaction is not None:
            self._close(transaction)

    def _put(self, name: str, key: Key, document: Document | None) -> None:
        self.writes += 1
        self._written[name, key] = self.writes
        collection = self.collections.setdefault(name, {})
        if document is None:
            collection.pop(key, None)
        else:
            collection[key] = document


def key_of(id: Any) -> Key:
    return encode({"k": id}) if isinstance(id, dict | list) else id


def _failure(text: str, code: int, *, transient: bool) -> OperationFailure:
    labels = [_TRANSIENT] if transient else []
    return OperationFailure(text, code, {"code": code, "errmsg": text, "errorLabels": labels})
