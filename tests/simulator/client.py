"""The driver's face of the server in memory: as much of pymongo as the store calls, and nothing else.

Each call goes through the network (`Network.call`), which decides when it arrives, whether it is applied, and which
answer its caller gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID

from bson import Binary, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteOne, InsertOne, ReturnDocument, UpdateMany, UpdateOne, _csot
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, ConnectionFailure, DuplicateKeyError, PyMongoError

from recruiter.store.codec import RAW
from tests.simulator import documents
from tests.simulator.documents import Document
from tests.simulator.server import DUPLICATE_KEY, LONGEST_TRANSACTION, Server, Transaction

T = TypeVar("T")
Update: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""An update, or a pipeline of them."""
_LONGEST_WITH_TRANSACTION_SECONDS = 120.0
"""The time in which the driver repeats a transaction or its commit, unless its caller sets a timeout."""


class Network(Protocol):
    """Between a process and the server."""

    def call(self, what: str, act: Callable[[], T], *, writes: bool = False, commits: bool = False) -> T:
        """Carries one command to the server and its answer back. Only a write outside of transactions can arrive late
        or twice; the commit of a transaction can arrive late."""

    def monotonic(self) -> float: ...

    def wait(self) -> None:
        """Between two tries of a transaction."""


class Client:
    """As a `MongoClient`."""

    def __init__(self, server: Server, network: Network, new_session: Callable[[], UUID]) -> None:
        self.server = server
        self.network = network
        self._new_session = new_session
        self.admin = SimpleNamespace(command=self._command)
        self._topology = None

    def get_database(self, name: str, *_codec: Any, **_options: Any) -> Database:
        return Database(self, name)

    def start_session(self, **_options: Any) -> Session:
        return Session(self, self._new_session())

    def _command(self, name: Any, argument: Any = None, **_options: Any) -> Any:
        if isinstance(name, Mapping) and "getParameter" in name:
            return {"transactionLifetimeLimitSeconds": LONGEST_TRANSACTION}
        if name == "connectionStatus":
            return {"authInfo": {"authenticatedUsers": []}}
        if name == "killSessions":
            for each in argument:
                self.network.call(name, partial(self.server.end_session, each["id"]))
            return {"ok": 1}
        if name == "aggregate":  # the work of sessions: an empty answer, as for a user without the right
            return self.network.call(name, lambda: {"cursor": {"firstBatch": []}})
        raise NotImplementedError(name)

    def close(self) -> None:
        pass


class Database:
    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def get_collection(self, name: str) -> Collection:
        return Collection(self, name, raw=False)


class Session:
    """As a `ClientSession`. `with_transaction` repeats transactions as the driver does."""

    __class__ = property(lambda _: ClientSession)  # for isinstance

    def __init__(self, client: Client, id: UUID) -> None:
        self.client = client
        self.id = id
        self.session_id = {"id": Binary.from_uuid(id)}
        self.operation_time: Timestamp | None = None
        self.transaction: Transaction | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_session()

    def end_session(self) -> None:
        if self.in_transaction:
            self.abort_transaction()

    @property
    def in_transaction(self) -> bool:
        return self.transaction is not None

    def start_transaction(self, **_options: Any) -> None:
        self.transaction = self.client.server.begin(self.id)

    def abort_transaction(self) -> None:
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            with suppress(PyMongoError):  # the driver ignores this error too; the server ends the transaction
                self.client.network.call("abort", lambda: self.client.server.abort(transaction))

    def commit_transaction(self) -> None:
        transaction = self.transaction
        assert transaction is not None
        self.client.network.call("commit", lambda: self._commit(transaction), commits=True)
        self.transaction = None
        self.answered()

    def answered(self) -> None:
        """Notes the time of an answer."""
        self.operation_time = Timestamp(self.client.server.writes, 1)

    def _commit(self, transaction: Transaction) -> None:
        if not getattr(transaction, "committed", False):  # a second commit is no error
            self.client.server.commit(transaction)
            transaction.committed = True  # type: ignore[attr-defined]

    def with_transaction(self, callback: Callable[[Session], T], **_options: Any) -> T:
        deadline = self.client.network.monotonic() + (_csot.get_timeout() or _LONGEST_WITH_TRANSACTION_SECONDS)
        while True:
            self.start_transaction()
            try:
                answer = callback(self)
            except BaseException as error:
                if self.in_transaction:
                    self.abort_transaction()
                if _labelled(error, "TransientTransactionError") and self.client.network.monotonic() < deadline:
                    self.client.network.wait()
                    continue
                raise
            if not self.in_transaction:
                return answer  # the callback has ended it
            if self._committed(deadline):
                return answer

    def _committed(self, deadline: float) -> bool:
        """False when the whole transaction must be run again."""
        while True:
            try:
                self.commit_transaction()
                return True
            except PyMongoError as error:
                in_time = self.client.network.monotonic() < deadline
                if isinstance(error, ConnectionFailure) and in_time:
                    continue  # unknown: to commit again is safe
                self.transaction = None
                if _labelled(error, "TransientTransactionError") and in_time:
                    return False
                raise


def _labelled(error: BaseException, label: str) -> bool:
    return isinstance(error, PyMongoError) and error.has_error_label(label)


class Collection:
    def __init__(self, database: Database, name: str, *, raw: bool) -> None:
        self.database = database
        self.name = name
        self._raw = raw
        self._server = database.client.server

    def with_options(self, codec_options: Any = None, **_options: Any) -> Collection:
        return Collection(self.database, self.name, raw=self._raw or codec_options is RAW)

    def _call(
        self,
        what: str,
        act: Callable[[Transaction | None], T],
        session: Session | None = None,
        *,
        writes: bool = False,
    ) -> T:
        transaction = session.transaction if session is not None else None
        alone = writes and transaction is None
        network = self.database.client.network
        answer = network.call(f"{self.name}.{what}", lambda: act(transaction), writes=alone)
        if session is not None:
            session.answered()
        return answer

    def _form(self, document: Document) -> Any:
        return RawBSONDocument(self._server.encoded(document), RAW) if self._raw else dict(document)

    # -- reading -----------------------------------------------------------------------------------------------------

    def find(
        self,
        query: Mapping[str, Any] | None = None,
        projection: Mapping[str, Any] | None = None,
        *,
        sort: Sequence[tuple[str, int]] | None = None,
        limit: int = 0,
        session: Session | None = None,
        **_options: Any,
    ) -> Cursor:
        def read(order: Sequence[tuple[str, int]], most: int) -> list[Document]:
            found = self._call("find", lambda t: self._server.find(self.name, query or {}, t), session)
            ordered = documents.in_order(found, order)
            shown = ordered[:most] if most else ordered
            return [self._server.projected(each, projection) for each in shown] if projection else shown

        return Cursor(read, self._form, self._server.encoded, sort or (), limit)

    def find_raw_batches(
        self, query: Mapping[str, Any], projection: Mapping[str, Any] | None = None, **options: Any
    ) -> Cursor:
        cursor = self.find(query, projection, **options)
        cursor.raw_batches = True
        return cursor

    def find_one(
        self,
        query: Mapping[str, Any] | None = None,
        projection: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        return next(iter(self.find(query, projection, **{**options, "limit": 1})), None)

    def count_documents(self, query: Mapping[str, Any], session: Session | None = None, **_options: Any) -> int:
        return len(list(self.find(query, {"_id": 1}, session=session)))

    def distinct(self, path: str, query: Mapping[str, Any]) -> list[Any]:
        found = (documents.lookup(document, path) for document in self.find(query))
        return list({repr(value): value for value in found if value is not documents.MISSING}.values())

    def aggregate(self, pipeline: Sequence[Mapping[str, Any]], **_options: Any) -> Iterator[Any]:
        found = self._call("aggregate", lambda _: self._run(pipeline))
        return iter([self._form(document) for document in found])

    def _run(self, pipeline: Sequence[Mapping[str, Any]]) -> list[Document]:
        found = self._server.find(self.name, {})
        for stage in pipeline:
            ((name, what),) = stage.items()
            match name:
                case "$match":
                    found = [document for document in found if documents.matches(document, what)]
                case "$sort":
                    found = documents.in_order(found, list(what.items()))
                case "$limit":
                    found = found[:what]
                case "$project":
                    found = [documents.project(document, what) for document in found]
                case "$group" if list(what) == ["_id"]:
                    values = [documents.evaluate(what["_id"], document) for document in found]
                    found = [{"_id": each} for each in {repr(value): value for value in values}.values()]
                case "$unionWith":
                    other = Collection(self.database, what["coll"], raw=self._raw)
                    found = [*found, *other._run(what["pipeline"])]
                case _:
                    raise NotImplementedError(stage)
        return found

    # -- writing -----------------------------------------------------------------------------------------------------

    def insert_one(self, document: Mapping[str, Any], session: Session | None = None) -> None:
        self.insert_many([document], session)

    def insert_many(
        self, new: Sequence[Mapping[str, Any]], session: Session | None = None, ordered: bool = True
    ) -> None:
        if not ordered:
            self.bulk_write([InsertOne(document) for document in new], ordered=False, session=session)
            return
        self._call("insert", lambda t: self._server.insert(self.name, new, t), session, writes=True)

    def update_one(
        self,
        query: Mapping[str, Any],
        update: Update,
        upsert: bool = False,
        session: Session | None = None,
        **_options: Any,
    ) -> Any:
        return self._updated("update_one", query, update, session, upsert=upsert)

    def update_many(
        self, query: Mapping[str, Any], update: Update, session: Session | None = None, **_options: Any
    ) -> Any:
        return self._updated("update_many", query, update, session, many=True)

    def _updated(
        self,
        what: str,
        query: Mapping[str, Any],
        update: Update,
        session: Session | None,
        *,
        many: bool = False,
        upsert: bool = False,
    ) -> Any:
        def act(transaction: Transaction | None) -> Any:
            matched, changed, _, _ = self._server.update(
                self.name, query, update, transaction, many=many, upsert=upsert
            )
            return SimpleNamespace(matched_count=matched, modified_count=changed)

        return self._call(what, act, session, writes=True)

    def replace_one(
        self, query: Mapping[str, Any], new: Mapping[str, Any], upsert: bool = False, session: Session | None = None
    ) -> Any:
        def act(transaction: Transaction | None) -> int:
            return self._server.replace(self.name, query, new, transaction, upsert=upsert)

        return SimpleNamespace(matched_count=self._call("replace_one", act, session, writes=True))

    def find_one_and_update(
        self,
        query: Mapping[str, Any],
        update: Update,
        projection: Mapping[str, Any] | None = None,
        return_document: bool = ReturnDocument.BEFORE,
        upsert: bool = False,
        session: Session | None = None,
    ) -> Any:
        def act(transaction: Transaction | None) -> Any:
            _, _, before, after = self._server.update(self.name, query, update, transaction, upsert=upsert)
            found = before if return_document == ReturnDocument.BEFORE else after
            return None if found is None else self._form(self._server.projected(found, projection))

        return self._call("find_one_and_update", act, session, writes=True)

    def find_one_and_delete(
        self,
        query: Mapping[str, Any],
        projection: Mapping[str, Any] | None = None,
        session: Session | None = None,
    ) -> Any:
        gone = self._call("delete", lambda t: self._server.delete(self.name, query, t), session, writes=True)
        return self._form(self._server.projected(gone[0], projection)) if gone else None

    def delete_one(self, query: Mapping[str, Any], session: Session | None = None) -> Any:
        gone = self._call("delete_one", lambda t: self._server.delete(self.name, query, t), session, writes=True)
        return SimpleNamespace(deleted_count=len(gone))

    def delete_many(self, query: Mapping[str, Any], session: Session | None = None) -> Any:
        def act(transaction: Transaction | None) -> int:
            return len(self._server.delete(self.name, query, transaction, many=True))

        return SimpleNamespace(deleted_count=self._call("delete_many", act, session, writes=True))

    def bulk_write(
        self, requests: Sequence[Any], ordered: bool = True, session: Session | None = None, **_options: Any
    ) -> Any:
        done: list[int] = []
        """The number of matches of each request: after a wait for a lock, the write continues behind these requests."""

        def act(transaction: Transaction | None) -> Any:
            failures = []
            for position in range(len(done), len(requests)):
                if position and transaction is None:
                    self._server.between_documents()
                try:
                    done.append(self._one(requests[position], transaction))
                except DuplicateKeyError as error:
                    done.append(0)
                    failures.append({"index": position, "code": DUPLICATE_KEY, "errmsg": str(error)})
                    if ordered or transaction is not None:
                        break
            matched = sum(done)
            done.clear()
            if failures:
                raise BulkWriteError({"writeErrors": failures})
            return SimpleNamespace(matched_count=matched)

        inserts = all(isinstance(request, InsertOne) for request in requests)
        return self._call("insert" if inserts else "bulk_write", act, session, writes=True)

    def _one(self, request: Any, transaction: Transaction | None) -> int:
        if isinstance(request, InsertOne):
            self._server.insert(self.name, [request._doc], transaction)
            return 0
        if isinstance(request, UpdateOne | UpdateMany):
            many, upsert = isinstance(request, UpdateMany), bool(request._upsert)
            update: Any = request._doc
            return self._server.update(self.name, request._filter, update, transaction, many=many, upsert=upsert)[0]
        if isinstance(request, DeleteOne):
            self._server.delete(self.name, request._filter, transaction)
            return 0
        raise NotImplementedError(type(request).__name__)


class Cursor:
    """Reads everything with its first document."""

    def __init__(
        self,
        read: Callable[[Sequence[tuple[str, int]], int], list[Document]],
        form: Callable[[Document], Any],
        encoded: Callable[[Document], bytes],
        order: Sequence[tuple[str, int]],
        most: int,
    ) -> None:
        self._read = read
        self._form = form
        self._encoded = encoded
        self._order = order
        self._most = most
        self._found: Iterator[Any] | None = None
        self.raw_batches = False

    def sort(self, key: str | Sequence[tuple[str, int]], direction: int = 1) -> Cursor:
        self._order = [(key, direction)] if isinstance(key, str) else key
        return self

    def limit(self, most: int) -> Cursor:
        self._most = most
        return self

    def hint(self, _index: Any) -> Cursor:
        return self

    def to_list(self) -> list[Any]:
        return list(self)

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> Any:
        if self._found is None:
            found = self._read(self._order, self._most)
            forms = [b"".join(map(self._encoded, found))] if self.raw_batches else map(self._form, found)
            self._found = iter(forms)
        return next(self._found)
