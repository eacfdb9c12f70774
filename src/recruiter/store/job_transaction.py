"""A job's own transaction: the writes of the job and the end of the job are committed together, or not at all.

    begin      scheduled delete {_id, token}      the fence, first: a run that lost its job begins nothing (runs.py)
    …          the writes of the job with the session
    commit     archived insert + statistics       as `transactions.py` does for all other jobs; and for a step of a
                                                  flow, a marker

So the job is either in `scheduled` or in `archived`, and its effects exist if, and only if, it is in the archive as
done. The supervisor need not know: if the child dies silently, the supervisor settles a crash, which changes nothing
for a job that has left `scheduled`.

A conflict with another transaction, a new primary, or a commit with an unknown outcome cannot be repaired here: Python
cannot repeat the block of a `with`. So the block ends with `TransactionRepeats`, and the executor runs the job from its
beginning, with no attempt counted. If the commit had succeeded, the fence finds no job, and the archive shows that this
run has ended it.

Some blocks can never be committed, and would be repeated without end. They end with `TransactionFailed`, an ordinary
failure of the attempt:

    the block takes longer than the lifetime of a transaction             recognised by its duration
    an operation failed in the block, which ends the transaction, and     the server reports that the transaction "has
    the error was caught there                                            been aborted", in `_ENDED_EARLY` runs in a row
    the client cannot reach its MongoDB, while the recruiter reaches its  at the beginning

The job must not end the transaction itself, so the session refuses it until the end of the block.

One implementation serves `MongoClient` and `AsyncMongoClient`: a generator that yields the calls to make (`Steps`) and
receives their answers. A coroutine awaits them itself: if it is cancelled, the transaction is still aborted.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient, ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession
from pymongo.errors import ConnectionFailure, DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern

from recruiter.async_face import in_a_thread
from recruiter.coroutines import adrive, drive
from recruiter.domain.duration import brief
from recruiter.domain.names import id_told
from recruiter.errors import (
    InvalidSession,
    JobEnded,
    JobExists,
    StoreUnreachable,
    TransactionFailed,
    TransactionRepeats,
)
from recruiter.interruption import shielded
from recruiter.store.codec import OPTIONS
from recruiter.store.collections import archived, flows, scheduled, statistics
from recruiter.store.collections.flows import marker_document, markers_of
from recruiter.store.errors import WRITE_CONFLICT, Meaning, meaning_of, translate
from recruiter.store.in_session import Session, another_deployment, is_known_deployment, is_same_deployment
from recruiter.store.outcomes import as_archived
from recruiter.store.runs import Run
from recruiter.store.sessions import DURABLE, SessionId, digest_of_user

T = TypeVar("T")
Steps: TypeAlias = Generator[Callable[[], Any], Any, T]

_MAX_WAIT_SECONDS = 30.0
"""For the begin, and for the answer to a commit."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.005, 1.0
_UNKNOWN = "UnknownTransactionCommitResult"
_ENDED_EARLY = 3
"""The number of consecutive runs with an aborted transaction after which the job has caught an error. An ended session
or a repeated commit look the same, but they pass."""
_HAS_BEEN_ABORTED = "has been aborted"
_ENDED_BY_THE_SERVER = (251, 290, 11601)
"""No such transaction; it has lived too long; an operation was interrupted."""
_DEFAULT_LIFETIME_SECONDS = 60.0
"""The lifetime of a transaction if this user may not read it from the server."""
_OURS_TO_END = ("commit_transaction", "abort_transaction", "end_session")

_users: WeakKeyDictionary[Any, bytes | None] = WeakKeyDictionary()
"""The digests of the users of the application's clients."""


class Ours(partial[Any]):
    """A call on our own connection, which blocks."""


class _JobTransaction:
    """The steps of a job's own transaction, for both kinds of client."""

    def __init__(self, run: Run, session: Session, sleep: Callable[[float], Any]) -> None:
        self._run = run
        self._session = session
        self._sleep = sleep
        store = run.store
        database = session.client.get_database(store.target.database, OPTIONS, read_preference=ReadPreference.PRIMARY)
        self._collection: Callable[[str], Any] = lambda name: database.get_collection(store.name_of(name))

    def begin(self) -> Steps[None]:
        """Proves that this run has its job, and begins the transaction with the fence. Until the end of the block, the
        session refuses to be committed, aborted or ended."""
        run = self._run
        if run.committed is not None:
            raise JobEnded(
                f"job {id_told(run.id)} has ended in its own transaction already; nothing more can be written"
            )
        if run.in_transaction:
            raise InvalidSession(
                f"job {id_told(run.id)} is in its own transaction already: use the session that it has"
            )
        try:
            yield from self._same_deployment()
            session = yield from self._session_id()
            yield Ours(lambda: run.prove(session, transaction=True))
            yield from self._fence()
        except StoreUnreachable as error:
            raise self._remembered(
                TransactionRepeats(f"job {id_told(run.id)} could not begin its own transaction: {error}")
            ) from error
        except PyMongoError as error:
            raise self._remembered(self._translated(error, None)) from error
        run.in_transaction = True
        for name in _OURS_TO_END:
            setattr(self._session, name, self._refuse)

    def end(self, error: BaseException | None) -> Steps[None]:
        """Ends the transaction after the block: commits, or aborts if `error` has left the block. Raises the error that
        the attempt gets: an error of MongoDB is translated, any other one is not."""
        self._run.in_transaction = False
        for name in _OURS_TO_END:
            delattr(self._session, name)
        block_succeeded = error is None
        if error is None:
            try:
                yield from self._commit()
                return
            except BaseException as raised:
                error = raised
        took = time.monotonic() - self._began
        yield from self._abort()
        if isinstance(error, PyMongoError) and (block_succeeded or _passes(error)):
            ended = getattr(error, "code", None) in _ENDED_BY_THE_SERVER
            lifetime = (yield Ours(lambda: _lifetime(self._run.store.client))) if ended else None
            raise self._remembered(self._translated(error, lifetime, took)) from error
        raise self._remembered(error) if block_succeeded else error

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidSession(
            f"the transaction of job {id_told(self._run.id)} is committed when its block is left, and rolled back when "
            "an error leaves it: do not commit or abort it, or end its session, yourself; raise an error to roll back"
        )

    def _remembered(self, error: BaseException) -> BaseException:
        """Returns the error, and notes it: the attempt does not succeed even if the job catches it."""
        self._run.not_committed = error
        return error

    def _same_deployment(self) -> Steps[None]:
        """Raises TransactionFailed when only the application's client cannot reach its MongoDB, and InvalidSession when
        it is connected to another deployment."""
        store, client = self._run.store, self._session.client
        if is_known_deployment(store, client):
            return
        for _ in range(2):  # the primary may change between the two calls
            try:
                theirs = yield lambda: client.admin.command("hello")
            except ConnectionFailure as error:
                yield Ours(lambda: store.client.admin.command("hello"))  # an outage of the deployment passes
                raise TransactionFailed(
                    f"the client that job {id_told(self._run.id)} has given to current_job.transaction() does not find "
                    f"its MongoDB: {translate(error)}. Give it the same address as the recruiter has"
                ) from error
            ours = yield Ours(lambda: store.client.admin.command("hello"))
            if is_same_deployment(store, client, theirs, ours):
                return
        raise another_deployment(theirs, ours)

    def _fence(self) -> Steps[None]:
        """Begins the transaction, and takes the job out of `scheduled` in it; repeats both after errors that pass. If
        the job is not there: raises JobEnded if this run has ended it before, else the error of a run that lost its
        job."""
        deadline, pause = time.monotonic() + _MAX_WAIT_SECONDS, _FIRST_PAUSE_SECONDS
        while True:
            try:
                yield self._start
                if (yield from self._take_job()):
                    return
                break
            except PyMongoError as error:
                yield from self._abort()
                if not _passes(error) or time.monotonic() > deadline:
                    raise
            yield self._pause(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        yield from self._abort()
        run = self._run
        ended = yield Ours(lambda: run.store.archived.document(run.id))
        if run.is_mine(ended):
            run.committed = as_archived(ended)
            run.answer_was_lost = True
            raise JobEnded(f"job {id_told(run.id)} has ended in its own transaction; the answer to its commit was lost")
        raise run.lost()

    def _start(self) -> Any:
        self._began = time.monotonic()
        concerns: dict[str, Any] = {"read_concern": ReadConcern("snapshot"), "write_concern": DURABLE}
        return self._session.start_transaction(**concerns, read_preference=ReadPreference.PRIMARY)

    def _take_job(self) -> Steps[bool]:
        """Takes the job out of `scheduled`; False if this run no longer has it. If the job was never stored, only makes
        sure that its id is free. Raises JobExists."""
        run, jobs = self._run, self._collection(scheduled.NAME)
        if run.stored:
            mine = {"_id": run.id, "token": run.token}
            taken = yield lambda: jobs.find_one_and_delete(mine, {"signals": 1}, session=self._session)
            if taken is not None and "signals" in taken:
                run.document["signals"] = taken["signals"]  # with the signals that came while it ran
            return taken is not None
        try:
            # Inserted and removed again, so that this and another insert of the same id cannot both succeed.
            yield lambda: jobs.insert_one({"_id": run.id}, session=self._session)
            yield lambda: jobs.delete_one({"_id": run.id}, session=self._session)
        except DuplicateKeyError as error:
            raise JobExists(f"a job with id {id_told(run.id)} exists already; it was not changed") from error
        return True

    def _commit(self) -> Steps[None]:
        """Writes that the job has succeeded, as settling does for other jobs, and commits."""
        run, session = self._run, self._session
        succeeded = run.succeeded()
        ended, counts = self._collection(archived.NAME), self._collection(statistics.NAME)
        writes = statistics.counting([succeeded.end], session.session_id["id"].as_uuid())
        try:
            yield lambda: ended.insert_one(RawBSONDocument(succeeded.document), session=session)
            yield lambda: counts.bulk_write(writes, ordered=False, session=session)
            for marker in map(marker_document, markers_of([succeeded.end])):
                yield lambda marker=marker: self._collection(flows.MARKERS).insert_one(marker, session=session)  # type: ignore[misc]
        except DuplicateKeyError as error:
            raise JobExists(f"a job with id {id_told(run.id)} is in the archive already; it was not changed") from error
        yield from self._until_known()
        run.committed = succeeded

    def _until_known(self) -> Steps[None]:
        """Repeats the commit while its outcome is unknown: that is safe."""
        deadline, pause = time.monotonic() + _MAX_WAIT_SECONDS, _FIRST_PAUSE_SECONDS
        while True:
            try:
                yield self._session.commit_transaction
                return
            except PyMongoError as error:
                if not error.has_error_label(_UNKNOWN) or time.monotonic() > deadline:
                    raise
            yield self._pause(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _abort(self) -> Steps[None]:
        if self._session.in_transaction:
            with suppress(PyMongoError):  # the server has ended it, or will
                yield self._session.abort_transaction

    def _pause(self, seconds: float) -> Callable[[], Any]:
        return lambda: self._sleep(seconds * random.uniform(0.5, 1.0))

    def _translated(self, error: PyMongoError, lifetime: float | None, took: float = 0.0) -> BaseException:
        """The error of Recruiter for this error of the driver: TransactionRepeats if another run may succeed, and
        TransactionFailed if none can (see above). `lifetime` is given if the server may have ended the transaction for
        its age."""
        run = self._run
        if not _passes(error):
            return translate(error)
        if lifetime is not None and took >= lifetime:
            return TransactionFailed(
                f"the transaction of job {id_told(run.id)} took {brief(took)}, and MongoDB ends a transaction after "
                f"{brief(lifetime)} (transactionLifetimeLimitSeconds). Keep the block short: do the long work "
                "before it"
            )
        run.ended_early = run.ended_early + 1 if _HAS_BEEN_ABORTED in str(error) else 0
        if run.ended_early >= _ENDED_EARLY:
            return TransactionFailed(
                f"an operation inside the transaction of job {id_told(run.id)} failed, and MongoDB ended the "
                "transaction with it; the error was caught inside the block, which cannot continue after it. Let the "
                "error out of the block, or check before you write"
            )
        met = "met another one" if getattr(error, "code", None) == WRITE_CONFLICT else "was ended by MongoDB"
        return TransactionRepeats(
            f"the transaction of job {id_told(run.id)} {met}, and nothing was written: {translate(error)}"
        )

    def _session_id(self) -> Steps[SessionId]:
        """The id of the session as the roster stores it: with the user, if MongoDB has users."""
        client: Any = self._session.client
        if client is self._run.store.client:
            assert isinstance(self._session, ClientSession)
            return self._run.store.transactions.sessions.id_of(self._session)
        if client not in _users:
            _users[client] = digest_of_user((yield lambda: client.admin.command("connectionStatus")))
        id, uid = self._session.session_id["id"].as_uuid(), _users[client]
        return id if uid is None else {"id": id, "uid": uid}


class JobTransaction:
    """`with current_job.transaction() as session:`, on a client of the application or on the recruiter's own."""

    def __init__(self, run: Callable[[], Run], client: MongoClient[Any] | None = None) -> None:
        if client is not None and not isinstance(client, MongoClient):
            raise InvalidSession(
                f"transaction() needs a MongoClient, not {type(client).__name__}; for an AsyncMongoClient there is "
                "`async with current_job.atransaction(client) as session:`"
            )
        self._run = run
        self._client = client

    @shielded
    def __enter__(self) -> ClientSession:
        run = self._run()
        self._session: ClientSession = (self._client or run.store.client).start_session()
        self._steps = _JobTransaction(run, self._session, time.sleep)
        try:
            drive(self._steps.begin(), _make)
        except BaseException:
            self._session.end_session()
            raise
        return self._session

    @shielded
    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        try:
            drive(self._steps.end(error), _make)
        except BaseException as raised:
            if raised is not error:
                raise
        finally:
            self._session.end_session()


class AsyncJobTransaction:
    """`async with current_job.atransaction(client) as session:`, on an AsyncMongoClient of the application."""

    def __init__(self, run: Callable[[], Run], client: AsyncMongoClient[Any]) -> None:
        if not isinstance(client, AsyncMongoClient):
            raise InvalidSession(
                f"atransaction() needs an AsyncMongoClient, not {type(client).__name__}; for a MongoClient there is "
                "`with current_job.transaction(client) as session:`"
            )
        self._run = run
        self._client = client

    async def __aenter__(self) -> AsyncClientSession:
        self._session: AsyncClientSession = self._client.start_session()
        try:
            self._steps = _JobTransaction(self._run(), self._session, asyncio.sleep)
            await adrive(self._steps.begin(), _amake)
        except BaseException:
            await self._session.end_session()
            raise
        return self._session

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        try:
            await adrive(self._steps.end(error), _amake)
        except BaseException as raised:
            if raised is not error:
                raise
        finally:
            await self._session.end_session()


def _make(call: Callable[[], Any]) -> Any:
    return call()


def _amake(call: Callable[[], Any]) -> Awaitable[Any]:
    return in_a_thread(call) if isinstance(call, Ours) else cast("Awaitable[Any]", call())


def _lifetime(client: MongoClient[Any]) -> float:
    name = "transactionLifetimeLimitSeconds"
    try:
        return float(client.admin.command({"getParameter": 1, name: 1})[name])
    except (PyMongoError, KeyError):
        return _DEFAULT_LIFETIME_SECONDS


def _passes(error: PyMongoError) -> bool:
    return meaning_of(error) in (Meaning.TRY_AGAIN, Meaning.RECONNECT)
