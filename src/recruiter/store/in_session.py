"""Writes jobs in a session: in the caller's transaction, on the caller's client, or in a transaction of Recruiter.

The client may be pymongo's MongoClient or its AsyncMongoClient. There is one implementation for both: a method yields
calls to the driver and receives the answers. `perform` makes the calls; those on a session of an AsyncMongoClient are
awaited on the loop of the coroutine that waits for this thread.

A session writes where its client is connected. If that is another deployment than the recruiter's, the job would be
stored where no worker looks, so this is refused. Two clients are on the same deployment if they reach the same primary:
MongoDB names each of its processes in the answer to `hello`, which needs no rights. Behind mongos this is not compared,
since two clients may use two of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference, UpdateOne, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, PyMongoError

from recruiter.async_face import in_a_thread, waiting_caller
from recruiter.coroutines import drive
from recruiter.domain.flow import FlowStep, joined
from recruiter.domain.job import Job, JobId
from recruiter.domain.names import BLOCKED_LANE, CANCELLED_LANE, id_told
from recruiter.domain.state import Why
from recruiter.domain.uniqueness import Existing, KnownJob, Make, Replace, UniqueKind, Uniqueness, decide
from recruiter.errors import (
    FlowNotFound,
    InvalidJob,
    InvalidSession,
    JobExists,
    RecruiterError,
    StoreError,
    Superseded,
)
from recruiter.interruption import shielded
from recruiter.store.batches import in_batches
from recruiter.store.codec import OPTIONS, Document, decode, encode_job, flow_of, id_of
from recruiter.store.collections import archived, creations, flows, roster, scheduled, unique_keys
from recruiter.store.errors import DUPLICATE_KEY, is_duplicate, translate
from recruiter.store.fields import moment_or_none
from recruiter.store.job_fields import begun_at, dependencies
from recruiter.store.payload import Owner
from recruiter.store.roster_fields import job_ids_in
from recruiter.store.sessions import DURABLE

if TYPE_CHECKING:
    from recruiter.store.database import Store

T = TypeVar("T")

Session: TypeAlias = ClientSession | AsyncClientSession
"""A session of `MongoClient` or of `AsyncMongoClient`."""
Steps: TypeAlias = Generator[Callable[[], Any], Any, T]

Produced: TypeAlias = tuple[JobId, bool] | RecruiterError
"""The id of the job that exists now, and whether it is new; or the reason why it cannot be stored."""

_TRANSIENT = "TransientTransactionError"
_TRIES = 20
"""The number of times that one call may conflict with producers of the same key."""
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
    """Its arguments, sealed for a job with another id."""


class Ours:
    """A call on our own connection, which blocks."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def __call__(self) -> Any:
        return self._call()


def is_session(value: object) -> bool:
    return isinstance(value, ClientSession | AsyncClientSession)


def is_async(session: object) -> bool:
    """Whether it is a session of an AsyncMongoClient. Raises InvalidSession for any other value."""
    if session is not None and not is_session(session):
        raise InvalidSession(f"session is a {type(session).__name__}; it must come from client.start_session()")
    return isinstance(session, AsyncClientSession)


@shielded
def perform(store: Store, session: Session, write: Callable[[InSession], Steps[T]]) -> T:
    """Makes the calls. Raises InvalidSession for a session that must be awaited, where no coroutine waits."""
    steps = _guarded(store, session, write)
    if not is_async(session):
        return drive(steps, call)
    caller = waiting_caller()
    if caller is None:
        raise InvalidSession(
            "this session is of an AsyncMongoClient, and a plain call cannot await it: use the call with an `a` in "
            "front, as in `await task.job(…).aenqueue(session=session)`"
        )
    return drive(
        _guarded(store, session, write), lambda made: made() if isinstance(made, Ours) else caller.on_loop(made)
    )


def in_own_transaction(store: Store, write: Callable[[InSession], Steps[T]]) -> T:
    """Makes the calls in a new transaction. It is repeated if another producer stores the same id or key at the same
    time: then it sees the other job."""
    for tries in range(_TRIES, 0, -1):
        try:
            return store.transactions.by_hand(lambda session: in_transaction(store, session, write))
        except StoreError as error:
            if tries == 1 or not is_duplicate(error.__cause__):
                raise
    raise AssertionError("unreachable")


def in_transaction(store: Store, session: ClientSession, write: Callable[[InSession], Steps[T]]) -> T:
    """Makes the calls in a transaction of Recruiter that has begun."""
    return drive(write(InSession(store, session, own=True)), call)


def call(made: Callable[[], Any]) -> Any:
    """For `drive`: makes the call."""
    return made()


def acall(made: Callable[[], Any]) -> Awaitable[Any]:
    """For `adrive`: makes the call, for its answer to be awaited."""
    return in_a_thread(made) if isinstance(made, Ours) else cast("Awaitable[Any]", made())


def _guarded(store: Store, session: Session, write: Callable[[InSession], Steps[T]]) -> Steps[T]:
    """Translates errors of the driver. An error that only aborts this try of the caller's transaction passes:
    `session.with_transaction` must see it to try again."""
    try:
        yield from same_deployment(store, session)
        return (yield from write(InSession(store, session)))
    except (DuplicateKeyError, BulkWriteError) as error:
        taken = _taken(error)
        if taken is None:
            raise translate(error) from error
        raise _exists(taken) from error
    except PyMongoError as error:
        if isinstance(error, OperationFailure) and error.code == _SNAPSHOT_UNAVAILABLE:
            raise OperationFailure(_TOO_NEW, error.code, error.details) from None
        if session.in_transaction and error.has_error_label(_TRANSIENT):
            raise
        raise translate(error) from error


class InSession:
    """The writes of producers. Every method returns steps for `perform`."""

    def __init__(self, store: Store, session: Session, *, own: bool = False) -> None:
        """`own`: the transaction belongs to Recruiter and contains only this call."""
        self._session = session
        self._own = own
        concern: WriteConcern | None = None if session.in_transaction else DURABLE  # a transaction has its own
        database = session.client.get_database(
            store.target.database, OPTIONS, read_preference=ReadPreference.PRIMARY, write_concern=concern
        )
        self._collection: Callable[[str], Any] = lambda name: database.get_collection(store.name_of(name))

    def enqueue(self, jobs: Sequence[Job], *, own_ids: bool) -> Steps[list[Produced]]:
        """Stores jobs. Ids of the user's own (`own_ids`) are compared with the archive too."""
        in_use: set[JobId] = set()
        if own_ids:
            self._needs_a_transaction("a job with a custom id")
            in_use = yield from self._in_use([job.id for job in jobs])
        produced: list[Produced] = []
        documents = []
        for job in jobs:
            try:
                if job.id in in_use:
                    raise _exists(job.id)
                documents.append(encode_job(job))
                in_use.add(job.id)
                produced.append((job.id, True))
            except InvalidJob as error:
                produced.append(error)
        yield from self._insert(scheduled.NAME, documents)
        return produced

    def insert_unused(self, job: Document) -> Steps[bool]:
        """Stores a waiting job, unless a job has its id, waiting or ended."""
        if (yield from self._in_use([job["_id"]])):
            return False
        yield from self._insert(scheduled.NAME, [job])
        return True

    def create(self, wanted: Sequence[Creation]) -> Steps[list[Produced]]:
        """Stores the jobs that were never created before."""
        self._needs_a_transaction("create")
        ids = [id for creation in wanted for id in (creation.job.id, *creation.formerly)]
        created = yield from self._find(creations.NAME, ids)
        known = {document["_id"]: document.get("job", document["_id"]) for document in created}
        known |= {id: id for id in (yield from self._in_use([creation.job.id for creation in wanted]))}
        produced: list[Produced] = []
        jobs, remembered = [], []
        for creation in wanted:
            job, names = creation.job, (creation.job.id, *creation.formerly)
            first = next((known[id] for id in names if id in known), None)
            if first is not None:
                produced.append((first, False))
                continue
            try:
                jobs.append(encode_job(job))
            except InvalidJob as error:
                produced.append(error)
                continue
            produced.append((job.id, True))
            remembered.append({"_id": job.id, "at": job.created_at})
            remembered += [{"_id": id, "at": job.created_at, "job": job.id} for id in creation.formerly]
            known |= dict.fromkeys(names, job.id)
        yield from self._insert(creations.NAME, remembered)
        yield from self._insert(scheduled.NAME, jobs)
        return produced

    def enqueue_unique(self, jobs: Sequence[UniqueJob]) -> Steps[list[Produced]]:
        """Stores or changes each job as its rule demands (domain/uniqueness.py)."""
        self._needs_a_transaction("a unique job")
        known = yield from self._known_jobs(jobs)
        produced: list[Produced] = []
        new: dict[JobId, Any] = {}
        keys: dict[str, Document] = {}
        for unique in jobs:
            job, key, wanted = unique.job, unique.key, unique.wanted
            decision = decide(wanted, known.get(key), job.created_at)
            if isinstance(decision, Existing):
                if wanted.kind is UniqueKind.STARTED and decision.id not in new and not self._own:
                    # The caller's transaction assumes that this job has not begun. A worker writes the start of such a
                    # job first (`mark_debounced`), so the two conflict: the job starts after the commit, or the caller
                    # decides again.
                    query, touch = {"_id": decision.id}, {"$inc": {"touched": 1}}
                    yield partial(self._collection(scheduled.NAME).update_one, query, touch, session=self._session)
                produced.append((decision.id, False))
                continue
            if isinstance(decision, Replace):
                args, first = unique.sealed(Owner(decision.id)), known[key].created_at
                job = replace(_due(job, decision.at), id=decision.id, args=args, created_at=first)
            elif decision.at is not None:
                job = _due(job, max(decision.at, job.scheduled_at))
            try:
                document = encode_job(job)
            except InvalidJob as error:
                produced.append(error)
                continue
            if isinstance(decision, Make) or job.id in new:
                new[job.id] = document
            else:
                yield from self._replace(job.id, document)
            known[key] = KnownJob(job.id, job.created_at, job.scheduled_at, True, None)
            keys[key] = unique_keys.key_document(key, job.id, job.created_at, job.scheduled_at, wanted)
            produced.append((job.id, isinstance(decision, Make)))
        for key, stored in keys.items():
            store_key = self._collection(unique_keys.NAME).replace_one
            yield partial(store_key, {"_id": key}, stored, upsert=True, session=self._session)
        yield from self._insert(scheduled.NAME, list(new.values()))
        return produced

    def _known_jobs(self, jobs: Sequence[UniqueJob]) -> Steps[dict[str, KnownJob]]:
        """The last job of each key, with its current state."""
        documents = yield from self._find(unique_keys.NAME, [job.key for job in jobs])
        found = [key for key in map(unique_keys.key_from, documents) if key is not None]
        ids = [key.job for key in found]
        documents = yield from self._find(scheduled.NAME, ids, _ABOUT_THE_START)
        ended = [id for id in ids if id not in {document["_id"] for document in documents}]
        if ended and any(job.wanted.counts_ended for job in jobs):
            documents += yield from self._find(archived.NAME, ended, _ABOUT_THE_START)
        about = {document["_id"]: document for document in documents}
        needs_start = any(job.wanted.needs_start for job in jobs)
        asked = [
            id for id, job in about.items() if job.get("lane") == CANCELLED_LANE or (needs_start and "lane" in job)
        ]
        held: set[JobId] = set()
        if asked:
            roster_of = self._collection(roster.NAME).find
            cursor = roster_of({"assigned": {"$in": asked}}, {"assigned": 1}, session=self._session)
            held = {id for document in (yield cursor.to_list) for id in job_ids_in(document.get("assigned"))}
        return {key.key: _known_job(key, about.get(key.job), key.job in held) for key in found}

    def _replace(self, id: JobId, document: Any) -> Steps[None]:
        """Replaces the contents of a job that has not begun: its start conflicts with this write."""
        jobs, query = self._collection(scheduled.NAME), {"_id": id}
        contents = [
            {"$replaceWith": {"$mergeObjects": [{"$literal": document}, {name: f"${name}" for name in _STAYS}]}}
        ]
        yield lambda: jobs.update_one(query, contents, session=self._session)

    def recover(
        self, jobs: Mapping[JobId, RawBSONDocument], *, again: bool = False, cancelled: bool = False
    ) -> Steps[int]:
        """Stores the job that repeats each ended job, and marks the ended job; returns how many. Skips jobs that no
        longer exist, jobs that were recovered before unless `again`, and steps that were recovered before, because a
        step waits or runs once. Skips steps of a forgotten flow, and steps of a cancelled flow unless `cancelled`: then
        the flow is no longer cancelled."""
        self._needs_a_transaction("recover")
        if not jobs:
            return 0
        places = {id: flow_of(decode(bytes(job.raw))) for id, job in jobs.items()}
        old: Document = {"_id": {"$in": list(jobs)}}
        if not again:
            old["recovered_as"] = None
        elif steps := [id for id, place in places.items() if place is not None]:
            old["$or"] = [{"recovered_as": None}, {"_id": {"$nin": steps}}]
        ended = self._collection(archived.NAME)
        there = [document["_id"] for document in (yield ended.find(old, {"_id": 1}, session=self._session).to_list)]
        by_flow: dict[ObjectId, list[FlowStep]] = {}
        for step in filter(None, map(places.__getitem__, there)):
            by_flow.setdefault(step.flow, []).append(step)
        cancels: dict[ObjectId, int] = {}
        for flow, steps_of_flow in by_flow.items():
            number = yield from self._go_on(flow, steps_of_flow, cancelled=cancelled)
            if number is not None:
                cancels[flow] = number
        new = {id: id_of(bytes(jobs[id].raw)) for id in there if (place := places[id]) is None or place.flow in cancels}
        if not new:
            return 0
        marks = [UpdateOne({"_id": id}, {"$set": {"recovered_as": new_id}}) for id, new_id in new.items()]
        yield lambda: ended.bulk_write(marks, ordered=False, session=self._session)
        yield from self._insert(scheduled.NAME, [jobs[id] for id in new])
        for flow, number in cancels.items():
            stored = [new[id] for id in new if (place := places[id]) is not None and place.flow == flow]
            yield from self._look_again(flows.recovered_marker(flow, by_flow[flow]), stored, number)
        return len(new)

    def _go_on(self, flow: ObjectId, steps: Sequence[FlowStep], *, cancelled: bool) -> Steps[int | None]:
        """The flow gets these steps. Returns how often it was cancelled; None if it does not exist."""
        query, update = flows.going_on(flow, steps, cancelled=cancelled)
        collection, fields = self._collection(flows.NAME), {"cancels": 1}
        before = yield lambda: collection.find_one_and_update(query, update, fields, session=self._session)
        return None if before is None else flows.cancels_of(before)

    def _look_again(self, marker: flows.Marker, jobs: Sequence[JobId], cancels: int) -> Steps[None]:
        """Leaves the marker of these new jobs, and writes on them how often their flow was cancelled."""
        if cancels:
            collection, number = self._collection(scheduled.NAME), {"$set": {"flow.cancels": cancels}}
            query = {"_id": {"$in": list(jobs)}}
            yield lambda: collection.update_many(query, number, session=self._session)
        yield from self._insert(flows.MARKERS, [flows.marker_document(marker)])

    def start_flow(self, flow: flows.StoredFlow, jobs: Sequence[Job], *, own_ids: bool) -> Steps[None]:
        """Stores a flow and all its steps. Raises JobExists if a step has an id that is taken."""
        self._needs_a_transaction("a flow")
        documents = yield from self._checked_steps(jobs, own_ids, [job["_id"] for _, job in flow.ends])
        yield from self._insert(flows.NAME, [flows.flow_record(flow)])
        yield from self._insert(scheduled.NAME, documents)

    def add_steps(
        self,
        flow: ObjectId,
        jobs: Sequence[Job],
        known: Sequence[JobId] = (),
        *,
        own_ids: bool,
        before: JobId | None = None,
        holder: Document | None = None,
    ) -> Steps[None]:
        """Stores steps of a flow that has begun, and a marker: their dependencies may have ended. The steps that wait
        for the running step `before` wait for these steps too, and for the `known` ones, which are there. Raises
        JobExists for a name that is taken, and Superseded if the run that adds them no longer has its job."""
        self._needs_a_transaction("a step of a flow")
        if holder is not None:
            jobs_there = self._collection(scheduled.NAME)
            if (yield lambda: jobs_there.find_one(holder, {"_id": 1}, session=self._session)) is None:
                raise Superseded("this run has lost its job, which runs elsewhere or has ended; no step was added")
        documents = yield from self._checked_steps(jobs, own_ids)
        cancels = yield from self._go_on(flow, [job.flow for job in jobs if job.flow is not None], cancelled=False)
        if cancels is None:
            found = yield from self._find(flows.NAME, [flow])
            if not found or found[0].get("forgotten"):
                raise FlowNotFound(f"there is no flow {flow!r}: it was forgotten, or never was")
            raise flows.is_cancelled(found[0])
        yield from self._check_names(flow, jobs)
        if before is not None:
            yield from self._let_dependents_wait(flow, before, jobs, known)
        yield from self._insert(scheduled.NAME, documents)
        marker = flows.Marker(flow, added=frozenset(job.id for job in jobs))
        yield from self._look_again(marker, [job.id for job in jobs], cancels)

    def _check_names(self, flow: ObjectId, jobs: Sequence[Job]) -> Steps[None]:
        """After the flow was written: another process that adds a step conflicts with this transaction."""
        names = [job.flow.name for job in jobs if job.flow is not None and job.flow.name is not None]
        for name in (scheduled.NAME, archived.NAME) if names else ():
            query, steps = {"flow.id": flow, "flow.name": {"$in": names}}, self._collection(name)
            for taken in (yield steps.find(query, {"flow.name": 1}, session=self._session).to_list):
                raise JobExists(f"flow {flow} has a step named {taken['flow']['name']!r} already")

    def _let_dependents_wait(
        self, flow: ObjectId, running: JobId, jobs: Sequence[Job], known: Sequence[JobId]
    ) -> Steps[None]:
        """Writes these steps into the dependencies of every step that waits for the running step, or that was given up
        and may come back. Steps that they wait for are left out: they could never start."""
        new, places = [*(job.id for job in jobs), *known], [job.flow for job in jobs if job.flow is not None]
        first = yield from self.all_before(flow, [*known, *(id for place in places for id in place.after)])
        waits = {"flow.id": flow, "$or": [{"flow.after": running}, {"flow.many": running}]}
        given_up = {"why": Why.DEPENDENCY_FAILED.value, "recovered_as": None}
        for name, where in ((scheduled.NAME, {"lane": BLOCKED_LANE}), (archived.NAME, given_up)):
            collection = self._collection(name)
            found = yield collection.find({**waits, **where}, {"flow": 1}, session=self._session).to_list
            steps = {document["_id"]: flow_of(document) for document in found}
            updates = [
                UpdateOne({"_id": id}, {"$set": dependencies(joined(place, running, new))})
                for id, place in steps.items()
                if place is not None and place.step not in first
            ]
            if updates:
                write = partial(collection.bulk_write, updates, ordered=False, session=self._session)
                yield write

    def all_before(self, flow: ObjectId, steps: Sequence[JobId]) -> Steps[set[JobId]]:
        """These steps, and the steps that they wait for, directly or not, that have not ended."""
        to_visit = list(steps)
        if not to_visit:
            return set()
        collection = self._collection(scheduled.NAME)
        fields = {"flow.id": 1, "flow.step": 1, "flow.after": 1, "flow.many": 1}
        rows = yield collection.find({"flow.id": flow}, fields, session=self._session).to_list
        after = {place.step: place.after for place in map(flow_of, rows) if place is not None}
        before: set[JobId] = set()
        while to_visit:
            id = to_visit.pop()
            if id not in before:
                before.add(id)
                to_visit += after.get(id, ())
        return before

    def _checked_steps(self, jobs: Sequence[Job], own_ids: bool, later: Sequence[JobId] = ()) -> Steps[list[Any]]:
        """Their documents. Errors are raised before anything is written: a caller that catches them and commits must
        not store a part of the steps."""
        documents = [encode_job(job) for job in jobs]
        ids = [*(job.id for job in jobs), *later] if own_ids else []
        for id in (yield from self._in_use(ids)) if ids else ():
            raise _exists(id)
        return documents

    def find_waiting(self, id: JobId) -> Steps[Document | None]:
        """The stored job, if it has not ended."""
        found = yield from self._find(scheduled.NAME, [id])
        return found[0] if found else None

    def signal(self, id: JobId, name: str, data: Any, at: datetime, by: str | None = None) -> Steps[bool]:
        """Sends a signal to a job. False when there is no such job, or it has too many signals."""
        jobs, (query, update) = self._collection(scheduled.NAME), scheduled.signalling(id, name, data, at, by)
        updated = yield lambda: jobs.update_one(query, update, session=self._session)
        return bool(updated.matched_count)

    def _needs_a_transaction(self, what: str) -> None:
        if not self._session.in_transaction:
            raise InvalidSession(f"{what} needs a transaction in its session: call session.start_transaction() first")

    def _in_use(self, ids: Sequence[JobId]) -> Steps[set[JobId]]:
        """The ids among these that a waiting or ended job has."""
        waiting = yield from self._find(scheduled.NAME, ids, {"_id": 1})
        ended = yield from self._find(archived.NAME, ids, {"_id": 1})
        return {document["_id"] for document in (*waiting, *ended)}

    def _find(self, name: str, ids: Sequence[JobId], fields: Document | None = None) -> Steps[list[Document]]:
        cursor = self._collection(name).find({"_id": {"$in": list(ids)}}, fields, session=self._session)
        found: list[Document] = yield cursor.to_list
        return found

    def _insert(self, name: str, documents: Sequence[Any]) -> Steps[None]:
        collection = self._collection(name)
        for batch in in_batches(documents, lambda document: len(getattr(document, "raw", b"")) or 200, 1000):
            if len(batch) == 1:
                yield partial(collection.insert_one, batch[0], session=self._session)
            else:
                yield partial(collection.insert_many, batch, session=self._session)


def same_deployment(store: Store, session: Session) -> Steps[None]:
    """Raises InvalidSession when its client is connected to another deployment."""
    client: Any = session.client
    if client is store.client or client in store.compared:
        return
    for _ in range(2):  # the primary may change between the two calls
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
    """The same job for another time; its expiry moves with it."""
    return replace(job, scheduled_at=at, expires_at=job.expiry(at) or job.expires_at)


def _known_job(key: unique_keys.UniqueKey, job: Document | None, is_held: bool) -> KnownJob:
    """From its document in `scheduled` or in the archive. A job that no longer exists counts as begun."""
    if job is None:
        return KnownJob(key.job, key.created_at, key.scheduled_at, False, key.scheduled_at)
    lane, due = job.get("lane"), moment_or_none(job.get("scheduled_at")) or key.scheduled_at
    begun = begun_at(job)
    if begun is None and is_held and not job.get("debounced"):
        begun = due  # it may run already: the start of such a job is not written
    exists = lane is not None and (lane != CANCELLED_LANE or is_held)
    return KnownJob(key.job, key.created_at, due, exists, begun)


def _process(hello: Mapping[str, Any]) -> Any:
    return (hello.get("topologyVersion") or {}).get("processId")


def _place(hello: Mapping[str, Any]) -> str:
    return f"{hello.get('me', 'a server')} (replica set {hello.get('setName')})"


def _taken(error: DuplicateKeyError | BulkWriteError) -> Any:
    """The duplicate id, if that was the error."""
    details = error.details or {}
    if isinstance(error, BulkWriteError):
        details = next((error for error in details.get("writeErrors", ()) if error["code"] == DUPLICATE_KEY), {})
    return details.get("keyValue", {}).get("_id")


def _exists(id: JobId) -> JobExists:
    return JobExists(f"a job with id {id_told(id)} exists already; it was not changed")
