"""Writes jobs in a session: in the caller's transaction, on the caller's client, or in a transaction of Recruiter.

The client may be MongoClient or AsyncMongoClient of pymongo. One implementation serves both: it passes each operation
to a `Call`, which for a session of an AsyncMongoClient awaits the operation on the loop of the coroutine that waits for
this thread.

A session writes where its client is connected. If that is another deployment than the recruiter's, the job would be
stored where no worker looks, so this is refused. Two clients are on the same deployment if they reach the same primary:
MongoDB names each of its processes in the answer to `hello`, which needs no rights. Behind mongos this is not compared,
since two clients may use two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference, UpdateOne, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, PyMongoError

from recruiter.async_face import waiting_caller
from recruiter.domain.flow import FlowStep, conditional_steps, joined
from recruiter.domain.job import Job, JobId
from recruiter.domain.names import ASIDE, CANCELLED_LANE, id_told
from recruiter.domain.uniqueness import Existing, KnownJob, Make, Replace, UniqueKind, Uniqueness, decide
from recruiter.errors import FlowNotFound, InvalidJob, InvalidSession, JobExists, RecruiterError, StoreError, Superseded
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
Call: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Makes an operation of the driver, and returns its answer."""

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


def is_session(value: object) -> bool:
    return isinstance(value, ClientSession | AsyncClientSession)


def is_async(session: object) -> bool:
    """Whether it is a session of an AsyncMongoClient. Raises InvalidSession for any other value."""
    if session is not None and not is_session(session):
        raise InvalidSession(f"session is a {type(session).__name__}; it must come from client.start_session()")
    return isinstance(session, AsyncClientSession)


@shielded
def in_callers_session(store: Store, session: Session, write: Callable[[InSession], T]) -> T:
    """Writes in the caller's session. Raises InvalidSession for a session that must be awaited, if no coroutine waits.

    Translates errors of the driver. An error that only aborts this try of the caller's transaction passes:
    `session.with_transaction` must see it to try again."""
    call = _in_this_thread
    if is_async(session):
        caller = waiting_caller()
        if caller is None:
            raise InvalidSession(
                "this session is of an AsyncMongoClient, and a plain call cannot await it: use the call with an `a` in "
                "front, as in `await task.job(…).aenqueue(session=session)`"
            )
        call = caller.on_loop
    try:
        _require_same_deployment(store, session.client, call)
        return write(InSession(store, session, call))
    except (DuplicateKeyError, BulkWriteError) as error:
        taken = _taken_id(error)
        if taken is None:
            raise translate(error) from error
        raise _job_exists(taken) from error
    except PyMongoError as error:
        if isinstance(error, OperationFailure) and error.code == _SNAPSHOT_UNAVAILABLE:
            raise OperationFailure(_TOO_NEW, error.code, error.details) from None
        if session.in_transaction and error.has_error_label(_TRANSIENT):
            raise
        raise translate(error) from error


def in_own_transaction(store: Store, write: Callable[[InSession], T]) -> T:
    """Writes in a new transaction. It is repeated if another producer stores the same id or key at the same time: then
    it sees the other job."""
    for tries in range(_TRIES, 0, -1):
        try:
            return store.transactions.by_hand(lambda session: write(InSession(store, session, own=True)))
        except StoreError as error:
            if tries == 1 or not is_duplicate(error.__cause__):
                raise
    raise AssertionError("unreachable")


def _in_this_thread(make: Callable[[], Any]) -> Any:
    return make()


class _Collection:
    """A collection of which every operation is a part of the session."""

    def __init__(self, collection: Callable[[], Any], session: Session, call: Call) -> None:
        """`collection` returns the collection, for one operation: most calls use few of the collections."""
        self._collection = collection
        self._session = session
        self._call = call

    def find(self, query: Document, fields: Document | None = None) -> list[Document]:
        found: list[Document] = self._call(self._collection().find(query, fields, session=self._session).to_list)
        return found

    def find_ids(self, ids: Sequence[JobId], fields: Document | None = None) -> list[Document]:
        return self.find({"_id": {"$in": list(ids)}}, fields)

    def insert(self, documents: Sequence[Any]) -> None:
        for batch in in_batches(documents, lambda document: len(getattr(document, "raw", b"")) or 200, 1000):
            if len(batch) == 1:
                self.insert_one(batch[0])
            else:
                self.insert_many(batch)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """All other operations, with the parameters and the answers of the driver."""
        method = partial(getattr(self._collection(), operation), session=self._session)
        return lambda *args, **options: self._call(partial(method, *args, **options))


class InSession:
    """The writes of producers."""

    def __init__(self, store: Store, session: Session, call: Call = _in_this_thread, *, own: bool = False) -> None:
        """`own`: the transaction belongs to Recruiter and contains only this call."""
        self._session = session
        self._own = own
        concern: WriteConcern | None = None if session.in_transaction else DURABLE  # a transaction has its own
        database = session.client.get_database(
            store.target.database, OPTIONS, read_preference=ReadPreference.PRIMARY, write_concern=concern
        )

        def collection(name: str) -> _Collection:
            return _Collection(partial(database.get_collection, store.name_of(name)), session, call)

        self._waiting, self._ended = collection(scheduled.NAME), collection(archived.NAME)
        self._flows, self._markers = collection(flows.NAME), collection(flows.MARKERS)
        self._creations, self._unique_keys = collection(creations.NAME), collection(unique_keys.NAME)
        self._roster = collection(roster.NAME)

    def enqueue(self, jobs: Sequence[Job], *, own_ids: bool) -> list[Produced]:
        """Stores jobs. Ids of the user's own (`own_ids`) are compared with the archive too."""
        in_use: set[JobId] = set()
        if own_ids:
            self._needs_a_transaction("a job with a custom id")
            in_use = self._in_use([job.id for job in jobs])
        produced: list[Produced] = []
        documents = []
        for job in jobs:
            try:
                if job.id in in_use:
                    raise _job_exists(job.id)
                documents.append(encode_job(job))
                in_use.add(job.id)
                produced.append((job.id, True))
            except InvalidJob as error:
                produced.append(error)
        self._waiting.insert(documents)
        return produced

    def insert_unused(self, job: Document) -> bool:
        """Stores a waiting job, unless a job has its id, waiting or ended."""
        if self._in_use([job["_id"]]):
            return False
        self._waiting.insert([job])
        return True

    def create(self, wanted: Sequence[Creation]) -> list[Produced]:
        """Stores the jobs that were never created before."""
        self._needs_a_transaction("create")
        ids = [id for creation in wanted for id in (creation.job.id, *creation.formerly)]
        created = self._creations.find_ids(ids)
        known = {document["_id"]: document.get("job", document["_id"]) for document in created}
        known |= {id: id for id in self._in_use([creation.job.id for creation in wanted])}
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
        self._creations.insert(remembered)
        self._waiting.insert(jobs)
        return produced

    def enqueue_unique(self, jobs: Sequence[UniqueJob]) -> list[Produced]:
        """Stores or changes each job as its rule demands (domain/uniqueness.py)."""
        self._needs_a_transaction("a unique job")
        known = self._known_jobs(jobs)
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
                    self._waiting.update_one({"_id": decision.id}, {"$inc": {"touched": 1}})
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
                self._replace(job.id, document)
            known[key] = KnownJob(job.id, job.created_at, job.scheduled_at, True, None)
            keys[key] = unique_keys.key_document(key, job.id, job.created_at, job.scheduled_at, wanted)
            produced.append((job.id, isinstance(decision, Make)))
        for key, stored in keys.items():
            self._unique_keys.replace_one({"_id": key}, stored, upsert=True)
        self._waiting.insert(list(new.values()))
        return produced

    def _known_jobs(self, jobs: Sequence[UniqueJob]) -> dict[str, KnownJob]:
        """The last job of each key, with its current state."""
        documents = self._unique_keys.find_ids([job.key for job in jobs])
        found = [key for key in map(unique_keys.key_from, documents) if key is not None]
        ids = [key.job for key in found]
        documents = self._waiting.find_ids(ids, _ABOUT_THE_START)
        ended = [id for id in ids if id not in {document["_id"] for document in documents}]
        if ended and any(job.wanted.counts_ended for job in jobs):
            documents += self._ended.find_ids(ended, _ABOUT_THE_START)
        about = {document["_id"]: document for document in documents}
        needs_start = any(job.wanted.needs_start for job in jobs)
        # A held job may have begun; a cancelled job exists only while it is held.
        may_be_held = [
            id for id, job in about.items() if job.get("lane") == CANCELLED_LANE or (needs_start and "lane" in job)
        ]
        holders = self._roster.find({"assigned": {"$in": may_be_held}}, {"assigned": 1}) if may_be_held else ()
        held = {id for holder in holders for id in job_ids_in(holder.get("assigned"))}
        return {key.key: _known_job(key, about.get(key.job), key.job in held) for key in found}

    def _replace(self, id: JobId, document: Any) -> None:
        """Replaces the contents of a job that has not begun: its start conflicts with this write."""
        contents = {"$mergeObjects": [{"$literal": document}, {name: f"${name}" for name in _STAYS}]}
        self._waiting.update_one({"_id": id}, [{"$replaceWith": contents}])

    def recover(self, jobs: Mapping[JobId, RawBSONDocument], *, again: bool = False, cancelled: bool = False) -> int:
        """Stores the job that repeats each ended job, and marks the ended job; returns how many. `jobs` are the new
        jobs, by the ids of the ended ones.

        Skips ended jobs that no longer exist, that were recovered before unless `again`, and steps that were recovered
        before, because a step waits or runs once. Skips steps of a forgotten flow, and steps of a cancelled flow unless
        `cancelled`: then the flow is no longer cancelled.
        """
        self._needs_a_transaction("recover")
        if not jobs:
            return 0
        places = {id: flow_of(decode(bytes(job.raw))) for id, job in jobs.items()}
        old: Document = {"_id": {"$in": list(jobs)}}
        if not again:
            old["recovered_as"] = None
        elif jobs_of_steps := [id for id, place in places.items() if place is not None]:
            old["$or"] = [{"recovered_as": None}, {"_id": {"$nin": jobs_of_steps}}]
        found = [document["_id"] for document in self._ended.find(old, {"_id": 1})]
        by_flow: dict[ObjectId, list[FlowStep]] = {}
        for step in filter(None, map(places.__getitem__, found)):
            by_flow.setdefault(step.flow, []).append(step)
        numbers: dict[ObjectId, Document] = {}
        for flow, steps_of_flow in by_flow.items():
            number = self._note_new_steps(flow, steps_of_flow, cancelled=cancelled)
            if number is not None:
                numbers[flow] = number
        new = {id: id_of(bytes(jobs[id].raw)) for id in found if (place := places[id]) is None or place.flow in numbers}
        if not new:
            return 0
        marks = [UpdateOne({"_id": id}, {"$set": {"recovered_as": new_id}}) for id, new_id in new.items()]
        self._ended.bulk_write(marks, ordered=False)
        self._waiting.insert([jobs[id] for id in new])
        for flow, number in numbers.items():
            stored = [new[id] for id in new if (place := places[id]) is not None and place.flow == flow]
            steps = frozenset(step.step for step in by_flow[flow])  # they wait again, and so do their dependents
            self._leave_marker(flows.Marker(flow, ended=steps, added=steps), stored, number)
        return len(new)

    def _note_new_steps(self, flow: ObjectId, steps: Sequence[FlowStep], *, cancelled: bool) -> Document | None:
        """Writes on the flow that it gets these steps (see `adding_steps`). Returns the numbers of its cancellations
        and pauses; None if it can get none: it was forgotten or cancelled."""
        query, update = flows.adding_steps(flow, steps, cancelled=cancelled)
        before = self._flows.find_one_and_update(query, update, {"cancels": 1, "holds": 1})
        return None if before is None else flows.numbers_of(before)

    def _leave_marker(self, marker: flows.Marker, jobs: Sequence[JobId], numbers: Document) -> None:
        """Leaves the marker of these new jobs, and writes on them how often their flow was cancelled and paused: a late
        write of such a request skips them."""
        if numbers:
            self._waiting.update_many({"_id": {"$in": list(jobs)}}, {"$set": numbers})
        self._markers.insert([flows.marker_document(marker)])

    def start_flow(self, flow: flows.StoredFlow, jobs: Sequence[Job], *, own_ids: bool) -> None:
        """Stores a flow and all its steps. Raises JobExists if a step has an id that is taken."""
        self._needs_a_transaction("a flow")
        documents = self._checked_steps(jobs, own_ids, [job["_id"] for _, job in flow.ends])
        self._flows.insert([flows.flow_record(flow)])
        self._waiting.insert(documents)

    def add_steps(
        self,
        flow: ObjectId,
        jobs: Sequence[Job],
        known: Sequence[JobId] = (),
        *,
        own_ids: bool,
        before: JobId | None = None,
        holder: Document | None = None,
    ) -> None:
        """Stores steps of a flow that has begun, and a marker: their dependencies may have ended. The steps that wait
        for the running step `before` wait for these steps too, and for the `known` ones, which are there. Raises
        JobExists for a name that is taken, and Superseded if the run that adds them no longer has its job."""
        self._needs_a_transaction("a step of a flow")
        if holder is not None and not self._waiting.find(holder, {"_id": 1}):
            raise Superseded("this run has lost its job, which runs elsewhere or has ended; no step was added")
        documents = self._checked_steps(jobs, own_ids)
        numbers = self._note_new_steps(flow, [job.flow for job in jobs if job.flow is not None], cancelled=False)
        if numbers is None:
            found = self._flows.find_ids([flow])
            if not found or found[0].get("forgotten"):
                raise FlowNotFound(f"there is no flow {flow!r}: it was forgotten, or never was")
            raise flows.cancelled_error(found[0])
        self._check_names(flow, jobs)
        if before is not None:
            self._let_dependents_wait(flow, before, jobs, known)
        self._waiting.insert(documents)
        marker = flows.Marker(flow, added=frozenset(job.id for job in jobs))
        self._leave_marker(marker, [job.id for job in jobs], numbers)

    def _check_names(self, flow: ObjectId, jobs: Sequence[Job]) -> None:
        """After the flow was written: another process that adds a step conflicts with this transaction."""
        names = [job.flow.name for job in jobs if job.flow is not None and job.flow.name is not None]
        for jobs_there in (self._waiting, self._ended) if names else ():
            for taken in jobs_there.find({"flow.id": flow, "flow.name": {"$in": names}}, {"flow.name": 1}):
                raise JobExists(f"flow {flow} has a step named {taken['flow']['name']!r} already")

    def _let_dependents_wait(self, flow: ObjectId, running: JobId, jobs: Sequence[Job], known: Sequence[JobId]) -> None:
        """Writes these steps into the dependencies of every step that waits for the running step, or that was given up
        or cancelled and may come back. Steps that they wait for are left out: they could never start."""
        new, places = [*(job.id for job in jobs), *known], [job.flow for job in jobs if job.flow is not None]
        conditional = conditional_steps(places)
        first = self.all_before(flow, [*known, *(id for place in places for id in place.after)])
        waits = {"flow.id": flow, "$or": [{"flow.after": running}, {"flow.many": running}]}
        may_come_back = {"done": False, "recovered_as": None}
        for collection, where in ((self._waiting, {"lane": {"$in": list(ASIDE)}}), (self._ended, may_come_back)):
            steps = {job["_id"]: flow_of(job) for job in collection.find({**waits, **where}, {"flow": 1})}
            updates = [
                UpdateOne({"_id": id}, {"$set": dependencies(joined(place, running, new, conditional))})
                for id, place in steps.items()
                if place is not None and place.step not in first
            ]
            if updates:
                collection.bulk_write(updates, ordered=False)

    def all_before(self, flow: ObjectId, steps: Sequence[JobId]) -> set[JobId]:
        """These steps, and the steps that they wait for, directly or not, that have not ended."""
        to_visit = list(steps)
        if not to_visit:
            return set()
        rows = self._waiting.find({"flow.id": flow}, {"flow.id": 1, "flow.step": 1, "flow.after": 1, "flow.many": 1})
        after = {place.step: place.after for place in map(flow_of, rows) if place is not None}
        before: set[JobId] = set()
        while to_visit:
            id = to_visit.pop()
            if id not in before:
                before.add(id)
                to_visit += after.get(id, ())
        return before

    def _checked_steps(self, jobs: Sequence[Job], own_ids: bool, later: Sequence[JobId] = ()) -> list[Any]:
        """Their documents. Errors are raised before anything is written: a caller that catches them and commits must
        not store a part of the steps."""
        documents = [encode_job(job) for job in jobs]
        ids = [*(job.id for job in jobs), *later] if own_ids else []
        for id in self._in_use(ids) if ids else ():
            raise _job_exists(id)
        return documents

    def find_waiting(self, id: JobId) -> Document | None:
        """The stored job, if it has not ended."""
        found = self._waiting.find_ids([id])
        return found[0] if found else None

    def signal(self, id: JobId, name: str, data: Any, at: datetime, by: str | None = None) -> bool:
        """Sends a signal to a job. False when there is no such job, or it has too many signals."""
        query, update = scheduled.signalling(id, name, data, at, by)
        return bool(self._waiting.update_one(query, update).matched_count)

    def _needs_a_transaction(self, what: str) -> None:
        if not self._session.in_transaction:
            raise InvalidSession(f"{what} needs a transaction in its session: call session.start_transaction() first")

    def _in_use(self, ids: Sequence[JobId]) -> set[JobId]:
        """The ids among these that a waiting or ended job has."""
        waiting = self._waiting.find_ids(ids, {"_id": 1})
        ended = self._ended.find_ids(ids, {"_id": 1})
        return {document["_id"] for document in (*waiting, *ended)}


def is_known_deployment(store: Store, client: Any) -> bool:
    """Whether the client is known to be connected to the deployment of the recruiter."""
    return client is store.client or client in store.compared


def is_same_deployment(store: Store, client: Any, theirs: Document, ours: Document) -> bool:
    """Whether the client is connected to the deployment of the recruiter, by both answers to `hello`. Remembers it."""
    if _process(theirs) != _process(ours) and "isdbgrid" not in (theirs.get("msg"), ours.get("msg")):
        return False
    store.compared.add(client)
    return True


def another_deployment(theirs: Document, ours: Document) -> InvalidSession:
    return InvalidSession(
        f"the session's client is connected to {_place(theirs)}, and the recruiter to {_place(ours)}. A job in a "
        "transaction is stored where the transaction is, and no worker would look there. Use a client with the same "
        "address as the recruiter; in tests, that of the sandbox"
    )


def _require_same_deployment(store: Store, client: Any, call: Call) -> None:
    """Raises InvalidSession when the client is connected to another deployment."""
    if is_known_deployment(store, client):
        return
    for _ in range(2):  # the primary may change between the two calls
        theirs: Document = call(lambda: client.admin.command("hello"))
        ours = store.client.admin.command("hello")
        if is_same_deployment(store, client, theirs, ours):
            return
    raise another_deployment(theirs, ours)


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
    """The last job of a unique key as the rules see it, by its document in `scheduled` or in the archive. A job that no
    longer exists counts as begun."""
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


def _taken_id(error: DuplicateKeyError | BulkWriteError) -> Any:
    details = error.details or {}
    if isinstance(error, BulkWriteError):
        details = next((error for error in details.get("writeErrors", ()) if error["code"] == DUPLICATE_KEY), {})
    return details.get("keyValue", {}).get("_id")


def _job_exists(id: JobId) -> JobExists:
    return JobExists(f"a job with id {id_told(id)} exists already; it was not changed")
