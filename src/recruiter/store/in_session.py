"""Jobs that are made in a session: in the caller's own transaction, on the caller's own client, or in one of ours.

The client may be pymongo's MongoClient or its AsyncMongoClient. There is one implementation for both: a method yields
the calls it wants made, and gets the answers back. `perform` makes the calls; `aperform` makes and awaits them.

A session writes where its client is connected. If that is another deployment than the recruiter's, the job would be
stored where no worker looks, so this is refused. Two clients are on the same deployment if they reach the same primary:
MongoDB names each of its processes in the answer to `hello`, which needs no rights. Behind mongos this is not compared,
since two clients may use two of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from bson import ObjectId
from pymongo import ReadPreference, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, PyMongoError

from recruiter.async_face import in_a_thread
from recruiter.coroutines import adrive, drive
from recruiter.domain.flow import FlowStep
from recruiter.domain.job import Job, JobId
from recruiter.domain.names import CANCELLED_LANE, id_told
from recruiter.domain.uniqueness import Existing, KnownJob, Make, Replace, UniqueKind, Uniqueness, decide
from recruiter.errors import (
    FlowNotFound,
    InvalidFlow,
    InvalidJob,
    InvalidSession,
    JobExists,
    JobNotFound,
    RecruiterError,
    StoreError,
)
from recruiter.first_use import ImportedOnUse
from recruiter.interruption import shielded
from recruiter.store.codec import LARGEST_JOB, OPTIONS, Document, encode_job
from recruiter.store.collections import creations
from recruiter.store.errors import store_call, translate
from recruiter.store.fields import is_job_id, moment_or_none
from recruiter.store.job_fields import begun_at
from recruiter.store.payload import Owner, owner_of
from recruiter.store.sessions import DURABLE, run_transaction

if TYPE_CHECKING:
    from recruiter.store.collections import archived, flows, roster, scheduled, unique_keys
    from recruiter.store.database import Store
else:  # with the first job
    archived = ImportedOnUse("recruiter.store.collections.archived")
    flows = ImportedOnUse("recruiter.store.collections.flows")
    roster = ImportedOnUse("recruiter.store.collections.roster")
    scheduled = ImportedOnUse("recruiter.store.collections.scheduled")
    unique_keys = ImportedOnUse("recruiter.store.collections.unique_keys")

T = TypeVar("T")

Session: TypeAlias = ClientSession | AsyncClientSession
"""A session of `MongoClient` or of `AsyncMongoClient`."""
Steps: TypeAlias = Generator[Callable[[], Any], Any, T]

_TRANSIENT = "TransientTransactionError"
_TRIES = 20
"""How often producers of the same key may meet in one call."""
_DUPLICATE = 11000
_SNAPSHOT_UNAVAILABLE = 246
_TOO_NEW = (
    "Recruiter's collections were created after this transaction began, so it cannot use them. Run the transaction "
    "again. To avoid this, call recruiter.prepare() when your program starts"
)


@dataclass(frozen=True, slots=True)
class Creation:
    """A job to be created once, ever, and the ids that it would have had under former names of its task."""

    job: Job
    formerly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UniqueJob:
    """A job that may meet another of the same key (domain/uniqueness.py)."""

    job: Job
    key: str
    wanted: Uniqueness
    sealed: Callable[[Owner], Any]
    """Its arguments, as they are stored in a job of another id."""


class Ours:
    """A call on our own connection, which blocks."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def __call__(self) -> Any:
        return self._call()


def is_session(value: object) -> bool:
    return isinstance(value, ClientSession | AsyncClientSession)


def is_async(session: object) -> bool:
    """Whether it is a session of an AsyncMongoClient. Raises InvalidSession for what is no session at all."""
    if session is not None and not is_session(session):
        raise InvalidSession(f"session is a {type(session).__name__}; it must come from client.start_session()")
    return isinstance(session, AsyncClientSession)


@shielded
def perform(store: Store, session: Session, write: Callable[[InSession], Steps[T]]) -> T:
    """Makes the calls. Raises InvalidSession for a session that must be awaited."""
    if is_async(session):
        raise InvalidSession(
            "this session is of an AsyncMongoClient, and a plain call cannot await it: use the call with an `a` in "
            "front, as in `await task.job(…).aenqueue(session=session)`"
        )
    return drive(_guarded(store, session, write), call)


@store_call
def in_own_transaction(store: Store, write: Callable[[InSession], Steps[T]]) -> T:
    """The same in a transaction of our own, which is run again if it must be."""
    with store.client.start_session() as session:
        return run_transaction(session, lambda session: drive(write(InSession(store, session, own=True)), call))


@store_call
def enqueue_unique(store: Store, jobs: Sequence[UniqueJob]) -> list[tuple[JobId, bool] | RecruiterError]:
    """Unique jobs in a transaction of our own. One that meets another producer's with the same key decides again."""
    for tries in range(_TRIES, 0, -1):
        try:
            return in_own_transaction(store, lambda here: here.enqueue_unique(jobs))
        except StoreError as error:
            if tries == 1 or not isinstance(error.__cause__, DuplicateKeyError):
                raise
    raise AssertionError("unreachable")


async def aperform(store: Store, session: Session, write: Callable[[InSession], Steps[T]]) -> T:
    """Makes the calls and awaits their answers, in the loop of the session's client."""
    return await adrive(_guarded(store, session, write), acall)


def call(made: Callable[[], Any]) -> Any:
    """For `drive`: makes the call."""
    return made()


def acall(made: Callable[[], Any]) -> Awaitable[Any]:
    """For `adrive`: makes the call, for its answer to be awaited."""
    return in_a_thread(made) if isinstance(made, Ours) else cast("Awaitable[Any]", made())


def _guarded(store: Store, session: Session, write: Callable[[InSession], Steps[T]]) -> Steps[T]:
    """What the driver raises leaves as our own error. One that ends the caller's transaction only for now leaves as it
    is: `session.with_transaction` must see it to try again."""
    try:
        yield from same_deployment(store, session)
        return (yield from write(InSession(store, session)))
    except (DuplicateKeyError, BulkWriteError) as error:
        taken = _taken(error)
        if taken is None:
            raise translate(error) from error
        raise JobExists(f"a job with id {taken!r} exists already; it was left as it is") from error
    except PyMongoError as error:
        if isinstance(error, OperationFailure) and error.code == _SNAPSHOT_UNAVAILABLE:
            raise OperationFailure(_TOO_NEW, error.code, error.details) from None
        if session.in_transaction and error.has_error_label(_TRANSIENT):
            raise
        raise translate(error) from error


class InSession:
    """What can be written in a session. Every method is steps for `perform` or `aperform`."""

    def __init__(self, store: Store, session: Session, *, own: bool = False) -> None:
        """`own`: the transaction is ours, and holds nothing but this call."""
        self._session = session
        self._own = own
        concern: WriteConcern | None = None if session.in_transaction else DURABLE  # a transaction has its own
        database = session.client.get_database(
            store.target.database, OPTIONS, read_preference=ReadPreference.PRIMARY, write_concern=concern
        )
        self._collection: Callable[[str], Any] = lambda name: database.get_collection(store.name_of(name))

    def enqueue(self, jobs: Sequence[Job], *, own_ids: bool) -> Steps[list[RecruiterError | None]]:
        """Stores jobs; for each an error, or None when it is stored. Those with an id of the user's own (`own_ids`) are
        compared with the archive too."""
        taken: set[JobId] = set()
        if own_ids:
            self._needs_a_transaction("a job with an id of your own")
            ids = [job.id for job in jobs]
            taken = (yield from self._existing(scheduled.NAME, ids)) | (yield from self._existing(archived.NAME, ids))
        errors: list[RecruiterError | None] = []
        documents = []
        for job in jobs:
            try:
                if job.id in taken:
                    raise JobExists(f"a job with id {id_told(job.id)} exists already; it was left as it is")
                documents.append(encode_job(job))
                taken.add(job.id)
                errors.append(None)
            except InvalidJob as error:
                errors.append(error)
        yield from self._insert(scheduled.NAME, documents)
        return errors

    def create(self, wanted: Sequence[Creation]) -> Steps[list[tuple[JobId, bool]]]:
        """Stores those that were never created; for each the id of the job that there is, and whether it is new."""
        self._needs_a_transaction("create")
        ids = [id for each in wanted for id in (each.job.id, *each.formerly)]
        known = {d["_id"]: d.get("job", d["_id"]) for d in (yield from self._find(creations.NAME, ids))}
        for name in (scheduled.NAME, archived.NAME):
            known |= {id: id for id in (yield from self._existing(name, [each.job.id for each in wanted]))}
        answers: list[tuple[JobId, bool]] = []
        jobs, remembered = [], []
        for each in wanted:
            names = (each.job.id, *each.formerly)
            first = next((known[id] for id in names if id in known), None)
            answers.append((each.job.id, True) if first is None else (first, False))
            if first is None:
                jobs.append(encode_job(each.job))
                remembered.append({"_id": each.job.id, "at": each.job.created_at})
                remembered += [{"_id": id, "at": each.job.created_at, "job": each.job.id} for id in each.formerly]
                known |= dict.fromkeys(names, each.job.id)
        yield from self._insert(creations.NAME, remembered)
        yield from self._insert(scheduled.NAME, jobs)
        return answers

    def enqueue_unique(self, jobs: Sequence[UniqueJob]) -> Steps[list[tuple[JobId, bool] | RecruiterError]]:
        """For each the id of the job that there is now, and whether it is new; or an error."""
        self._needs_a_transaction("a unique job")
        known = yield from self._known_jobs(jobs)
        answers: list[tuple[JobId, bool] | RecruiterError] = []
        new: dict[JobId, Any] = {}
        keys: dict[str, Document] = {}
        for each in jobs:
            job, now = each.job, each.job.created_at
            decision = decide(each.wanted, known.get(each.key), now)
            if isinstance(decision, Existing):
                if each.wanted.kind is UniqueKind.STARTED and decision.id not in new and not self._own:
                    yield from self._touch(decision.id)
                answers.append((decision.id, False))
                continue
            if isinstance(decision, Replace):
                first = known[each.key].created_at
                args = each.sealed(Owner(decision.id))
                job = replace(_due(job, decision.at), id=decision.id, args=args, created_at=first)
            elif decision.at is not None:
                job = _due(job, max(decision.at, job.scheduled_at))
            try:
                document = encode_job(job)
            except InvalidJob as error:
                answers.append(error)
                continue
            if isinstance(decision, Make) or job.id in new:
                new[job.id] = document
            else:
                yield from self._replace(job.id, document)
            known[each.key] = KnownJob(job.id, job.created_at, job.scheduled_at, True, None)
            keys[each.key] = unique_keys.key_document(each.key, job.id, job.created_at, job.scheduled_at, each.wanted)
            answers.append((job.id, isinstance(decision, Make)))
        for key in keys.values():
            yield from self._set_key(key)
        yield from self._insert(scheduled.NAME, list(new.values()))
        return answers

    def _known_jobs(self, jobs: Sequence[UniqueJob]) -> Steps[dict[str, KnownJob]]:
        """The last jobs of these keys, as they are at this moment."""
        documents = yield from self._find(unique_keys.NAME, [each.key for each in jobs])
        found = [key for key in map(unique_keys.key_from, documents) if key is not None]
        ids = [key.job for key in found]
        documents = yield from self._find(scheduled.NAME, ids, _ABOUT_THE_START)
        ended = [id for id in ids if id not in {document["_id"] for document in documents}]
        if ended and any(each.wanted.counts_ended for each in jobs):
            documents += yield from self._find(archived.NAME, ended, _ABOUT_THE_START)
        about = {document["_id"]: document for document in documents}
        needs_start = any(each.wanted.needs_start for each in jobs)
        asked = [
            id for id, job in about.items() if job.get("lane") == CANCELLED_LANE or (needs_start and "lane" in job)
        ]
        held: set[JobId] = set()
        if asked:
            roster_of = self._collection(roster.NAME).find
            cursor = roster_of({"assigned": {"$in": asked}}, {"assigned": 1}, session=self._session)
            held = {id for document in (yield cursor.to_list) for id in _ids(document.get("assigned"))}
        return {key.key: _known_job(key, about.get(key.job), key.job in held) for key in found}

    def _touch(self, id: JobId) -> Steps[None]:
        """The caller's transaction rests on the fact that this job has not begun. Its start is written before it starts
        (`mark_debounced`), so the two conflict: the job starts after the commit, or the caller decides again."""
        jobs, query = self._collection(scheduled.NAME), {"_id": id}
        yield lambda: jobs.update_one(query, {"$inc": {"touched": 1}}, session=self._session)

    def _set_key(self, document: Document) -> Steps[None]:
        keys = self._collection(unique_keys.NAME)
        query = {"_id": document["_id"]}
        yield lambda: keys.replace_one(query, document, upsert=True, session=self._session)

    def _replace(self, id: JobId, document: Any) -> Steps[None]:
        """Other contents for a job that has not begun: its start conflicts with this."""
        jobs, query = self._collection(scheduled.NAME), {"_id": id}
        contents = [
            {"$replaceWith": {"$mergeObjects": [{"$literal": document}, {name: f"${name}" for name in _STAYS}]}}
        ]
        yield lambda: jobs.update_one(query, contents, session=self._session)

    def recover(self, job: Job) -> Steps[None]:
        """Stores the job that repeats one that has ended, and marks the old one."""
        self._needs_a_transaction("recover")
        ended, mark = self._collection(archived.NAME), {"$set": {"recovered_as": job.id}}
        old: Document = {"_id": job.recovered_from}
        if job.flow is not None:
            old["recovered_as"] = None  # a step waits or runs once
        marked = yield lambda: ended.update_one(old, mark, session=self._session)
        if not marked.matched_count:
            raise not_recovered(job)
        place = job.flow
        cancels = None if place is None else (yield from self._go_on(place.flow, [place], cancelled=True))
        if place is not None and cancels is None:
            raise not_recovered(job)
        yield from self._insert(scheduled.NAME, [encode_job(job)])
        if place is not None:
            yield from self._look_again(flows.recovered_marker(place.flow, [place]), [job.id], cancels or 0)

    def _go_on(self, flow: ObjectId, steps: Sequence[FlowStep], *, cancelled: bool) -> Steps[int | None]:
        """As `Flows.go_on` does: how often the flow was cancelled; None when it is gone."""
        query, update = flows.going_on(flow, steps, cancelled=cancelled)
        collection, fields = self._collection(flows.NAME), {"cancels": 1}
        before = yield lambda: collection.find_one_and_update(query, update, fields, session=self._session)
        return None if before is None else flows.cancels_of(before)

    def _look_again(self, marker: flows.Marker, jobs: Sequence[JobId], cancels: int) -> Steps[None]:
        """Leaves the marker of these new jobs of a flow, and writes on them how often the flow had been cancelled."""
        if cancels:
            collection, number = self._collection(scheduled.NAME), {"$set": {"flow.cancels": cancels}}
            query = {"_id": {"$in": list(jobs)}}
            yield lambda: collection.update_many(query, number, session=self._session)
        yield from self._insert(flows.MARKERS, [flows.marker_document(marker)])

    def start_flow(self, flow: flows.Flow, jobs: Sequence[Job], *, own_ids: bool) -> Steps[None]:
        """Stores a flow and all its steps. Raises JobExists if a step has an id that is taken."""
        self._needs_a_transaction("a flow")
        documents = yield from self._checked_steps(jobs, own_ids, [job["_id"] for _, job in flow.ends])
        yield from self._insert(flows.NAME, [flows.flow_record(flow)])
        yield from self._insert(scheduled.NAME, documents)

    def add_steps(self, flow: ObjectId, jobs: Sequence[Job], *, own_ids: bool) -> Steps[None]:
        """Stores steps of a flow that has begun, and a marker: what they wait for may be over."""
        self._needs_a_transaction("a step of a flow")
        documents = yield from self._checked_steps(jobs, own_ids)
        cancels = yield from self._go_on(flow, [job.flow for job in jobs if job.flow is not None], cancelled=False)
        if cancels is None:
            found = yield from self._find(flows.NAME, [flow])
            if not found or found[0].get("forgotten"):
                raise FlowNotFound(f"there is no flow {flow!r}: it was forgotten, or never was")
            raise flows.is_cancelled(found[0])
        yield from self._insert(scheduled.NAME, documents)
        marker = flows.Marker(flow, added=frozenset(job.id for job in jobs))
        yield from self._look_again(marker, [job.id for job in jobs], cancels)

    def _checked_steps(self, jobs: Sequence[Job], own_ids: bool, later: Sequence[JobId] = ()) -> Steps[list[Any]]:
        """Their documents. What is wrong with one is raised before anything is written: a caller that goes on with its
        transaction must not store a part of them."""
        documents = [encode_job(job) for job in jobs]
        ids = [*(job.id for job in jobs), *later] if own_ids else []
        for name in (scheduled.NAME, archived.NAME) if ids else ():
            for id in (yield from self._existing(name, ids)):
                raise JobExists(f"a job with id {id_told(id)} exists already; it was left as it is")
        return documents

    def owner(self, id: JobId) -> Steps[Owner]:
        """What the payloads of this job belong to."""
        found = yield from self._find(scheduled.NAME, [id], {"origin": 1, "recovered_from": 1})
        return owner_of(found[0]) if found else Owner(id)

    def signal(self, id: JobId, name: str, data: Any, at: datetime, by: str | None = None) -> Steps[bool]:
        """Tells a job something. False when there is no such job, or it has been told too much."""
        jobs, (query, update) = self._collection(scheduled.NAME), scheduled.signalling(id, name, data, at, by)
        told = yield lambda: jobs.update_one(query, update, session=self._session)
        return bool(told.matched_count)

    def _needs_a_transaction(self, what: str) -> None:
        if not self._session.in_transaction:
            raise InvalidSession(f"{what} needs a transaction in its session: call session.start_transaction() first")

    def _existing(self, name: str, ids: Sequence[JobId]) -> Steps[set[JobId]]:
        return {document["_id"] for document in (yield from self._find(name, ids, {"_id": 1}))}

    def _find(self, name: str, ids: Sequence[JobId], fields: Document | None = None) -> Steps[list[Document]]:
        cursor = self._collection(name).find({"_id": {"$in": list(ids)}}, fields, session=self._session)
        found: list[Document] = yield cursor.to_list
        return found

    def _insert(self, name: str, documents: Sequence[Any]) -> Steps[None]:
        collection = self._collection(name)
        for piece in _pieces(documents):
            if len(piece) == 1:
                yield lambda piece=piece: collection.insert_one(piece[0], session=self._session)  # type: ignore[misc]
            else:
                yield lambda piece=piece: collection.insert_many(piece, session=self._session)  # type: ignore[misc]


def same_deployment(store: Store, session: Session) -> Steps[None]:
    """Raises InvalidSession when its client is connected to another deployment."""
    client: Any = session.client
    if client is store.client or client in store.compared:
        return
    for _ in range(2):  # once more, if the primary has moved in this moment
        theirs: Document = yield lambda: client.admin.command("hello")
        ours: Document = yield Ours(lambda: store.client.admin.command("hello"))
        if _process(theirs) == _process(ours) or "isdbgrid" in (theirs.get("msg"), ours.get("msg")):
            store.compared.add(client)
            return
    raise InvalidSession(
        f"the session's client is connected to {_place(theirs)}, and the recruiter to {_place(ours)}. A job in a "
        "transaction is stored where the transaction is, and no worker would look there. Use a client with the same "
        "address as the recruiter; in tests, that of the sandbox"
    )


_STAYS = ("signals", "history")
"""Fields that stay when a debounced or throttled job gets other contents."""
_ABOUT_THE_START = dict.fromkeys(
    ("lane", "scheduled_at", "created_at", "debounced", "begun_at", "attempts", "snoozes", "last_execution.started_at"),
    1,
)


def _due(job: Job, at: datetime) -> Job:
    """The same job for another time; it expires as long after that as it was to."""
    return replace(job, scheduled_at=at, expires_at=job.expiry(at) or job.expires_at)


def _known_job(key: unique_keys.UniqueKey, job: Document | None, is_held: bool) -> KnownJob:
    """From its document in `scheduled` or in the archive. One that neither has any more counts as begun."""
    if job is None:
        return KnownJob(key.job, key.created_at, key.scheduled_at, False, key.scheduled_at)
    lane, due = job.get("lane"), moment_or_none(job.get("scheduled_at")) or key.scheduled_at
    begun = begun_at(job)
    if begun is None and is_held and not job.get("debounced"):
        begun = due  # it may run, and nothing would say so
    exists = lane is not None and (lane != CANCELLED_LANE or is_held)
    return KnownJob(key.job, key.created_at, due, exists, begun)


def _ids(assigned: Any) -> Iterable[JobId]:
    """Of a worker's list; what is no id was never assigned."""
    return [id for id in assigned if is_job_id(id)] if isinstance(assigned, list) else ()


def _process(hello: Mapping[str, Any]) -> Any:
    return (hello.get("topologyVersion") or {}).get("processId")


def _place(hello: Mapping[str, Any]) -> str:
    return f"{hello.get('me', 'a server')} (replica set {hello.get('setName')})"


def _pieces(documents: Sequence[Any]) -> list[list[Any]]:
    """Not too much in one message."""
    pieces: list[list[Any]] = []
    room = 0
    for document in documents:
        size = len(document.raw) if hasattr(document, "raw") else 200
        if not pieces or size > room or len(pieces[-1]) == 1000:
            pieces.append([])
            room = LARGEST_JOB
        pieces[-1].append(document)
        room -= size
    return pieces


def _taken(error: DuplicateKeyError | BulkWriteError) -> Any:
    """The id that made it fail, if that was the reason."""
    details = error.details or {}
    if isinstance(error, BulkWriteError):
        details = next((each for each in details.get("writeErrors", ()) if each["code"] == _DUPLICATE), {})
    return details.get("keyValue", {}).get("_id")


def not_recovered(job: Job) -> JobNotFound | InvalidFlow:
    """Why the job that this one repeats could not be marked."""
    if job.flow is None:
        return JobNotFound(f"job {job.recovered_from!r} cannot be recovered: it has just been removed")
    return InvalidFlow(
        f"job {job.recovered_from!r}, a step of flow {job.flow.flow}, cannot be recovered: it has just been "
        "recovered, or forgotten with its flow"
    )
