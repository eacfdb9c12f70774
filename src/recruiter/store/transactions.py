"""The transactions that move jobs from one collection to another, all or nothing.

    mark      roster write  +  scheduled update                                     before an at-most-once job starts
    begin     roster write  +  scheduled update                                     by a run: steps, waits (runs.py)
    settle    roster.$pull  +  archived insert  +  scheduled delete / update        by the worker that holds the jobs
    retire    roster delete +  scheduled update / archived insert                   by the leader, a silent worker
    set aside lease fence   +  archived insert  +  scheduled delete                 by the leader, jobs without a holder
    repeat    lease fence   +  schedulers update  +  scheduled insert               by the leader, when it is time
    lead      lease fence   +  decisions about the steps of flows                   by the leader (steps/release.py)
    by hand   jobs that are created or recovered, flows that are controlled         by a producer or a person

Every archived job, and every attempt after which a job waits again, is counted in the same transaction (statistics.py),
so the counts are exact. A step of a flow that is archived or recovered leaves a marker in the same transaction
(flows.py). So a job is always in either `scheduled` or `archived`, never in both.

The first write of each transaction proves the right to make it: the worker is on the roster, the worker was silent, or
the term still leads. It conflicts with every write that would end that right, so no later check is needed.

A process that is killed inside a transaction leaves it open on the server, with locks on its roster document or on the
lease. For a minute no other process could write there. So all transactions of a process use one session. Its id is in
the roster document or in the lease, and the process that takes over ends that session first (`end_session_of`). If the
old process is still alive, it repeats its transaction.

Every transaction can be repeated after an unknown outcome: a second settle finds its jobs in the archive, and
rescheduling matches only a job with the same `attempts`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import pymongo
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from recruiter.domain.job import Job, JobId
from recruiter.domain.schedule.scheduler import Plan
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import DocumentLocked, DocumentRefused, StoreUnreachable, Superseded
from recruiter.store.batches import write_first_accepted
from recruiter.store.codec import RAW, Document, decode, decode_leniently, job_document
from recruiter.store.collections.archived import Archived
from recruiter.store.collections.flows import FlowCollection
from recruiter.store.collections.leases import Leases
from recruiter.store.collections.roster import Roster
from recruiter.store.collections.scheduled import Marked, Scheduled
from recruiter.store.collections.schedulers import Schedulers
from recruiter.store.collections.statistics import Statistics
from recruiter.store.errors import is_duplicate, our_own_documents, store_call
from recruiter.store.outcomes import Outcome, OutcomeBatch, ToArchive, end_of, reduced
from recruiter.store.roster_fields import Holding, LastEntry
from recruiter.store.sessions import (
    LOCKED_FOR_SECONDS,
    LONGEST_TRANSACTION,
    SessionId,
    Sessions,
    cluster_time,
    is_conflict,
    run_transaction,
)

T = TypeVar("T")
InTransaction: TypeAlias = ClientSession
"""A session with an open transaction."""

_PROBE_TIMEOUT_SECONDS = 1.0
MAY_HAVE_STARTED = 100
"""The number of jobs at the head of its list that a dead worker may have started since its last heartbeat."""
_LOCKED_FOR_CALLERS_SECONDS = 20.0
"""The time in which the transaction of a caller is repeated while another one holds a document; then the caller gets
DocumentLocked."""
_NONE: Mapping[JobId, datetime] = MappingProxyType({})

DecideOutcomes = Callable[[LastEntry, list[Document]], OutcomeBatch]
"""Decides the outcomes of the jobs of a worker that is retired."""


class Transactions:
    """The transactions that settle, hand back, retire, start runs, and lead."""

    def __init__(
        self,
        client: MongoClient[Document],
        scheduled: Scheduled,
        archived: Archived,
        roster: Roster,
        leases: Leases,
        schedulers: Schedulers,
        statistics: Statistics,
        flows: FlowCollection,
    ) -> None:
        self._client = client
        self._scheduled = scheduled
        self._archived = archived
        self._roster = roster
        self._leases = leases
        self._schedulers = schedulers
        self._statistics = statistics
        self._flows = flows
        self._turn = threading.Lock()
        self._session: ClientSession | None = None
        self.sessions = Sessions(client)
        self.note_session: Callable[[ClientSession], None] = lambda _: None
        """Called with each separate session before it writes, so that the session can be ended if this process dies in
        its transaction."""

    @property
    def session_id(self) -> SessionId:
        """The session on which this process runs its transactions."""
        with self._turn:
            return self.sessions.id_of(self._own_session())

    @property
    def answered_at(self) -> int:
        """The cluster time of the last answer on this session; 0 before the first."""
        session = self._session
        return cluster_time(session.operation_time) if session is not None else 0

    def end_session_of(self, session: SessionId | None) -> None:
        """Releases the locks of a dead process."""
        if session is not None and session != self.session_id:
            self.sessions.end(session)

    @store_call
    def is_locked(self, worker: str) -> bool:
        """Whether a transaction holds the worker's roster document now. Does not wait, and changes nothing."""
        # On the session whose id is in the lease: if this process dies here, its successor releases the lock.
        with self._turn, pymongo.timeout(_PROBE_TIMEOUT_SECONDS):
            session = self._own_session()
            session.start_transaction()
            try:
                self._roster.touch(worker, session)
            except OperationFailure as error:
                if not is_conflict(error):
                    raise
                return True
            finally:
                if session.in_transaction:
                    session.abort_transaction()
        return False

    def close(self) -> None:
        with self._turn:
            session, self._session = self._session, None
        if session is not None:
            session.end_session()

    @store_call
    def settle(self, worker: str, batch: OutcomeBatch, facts: Mapping[str, Any]) -> Holding:
        """Settles a worker's finished jobs; returns its remaining jobs.

        Nothing is written for a job that the worker does not hold: it was settled before, with an unknown outcome, or
        another worker holds it. Raises Superseded, with nothing written, when the worker is no longer on the roster,
        and DocumentLocked when another transaction holds a job.
        """
        fence = _Fence(f"the roster document of worker {worker}")

        def write(session: ClientSession, batch: OutcomeBatch) -> Holding:
            with fence.proving(), our_own_documents(f"the roster document of worker {worker}"):
                released = self._roster.release(worker, batch.ids, session, facts)
            if released is None:
                raise Superseded(f"worker {worker} is no longer on the roster; its results were dropped")
            self._write_outcomes(batch.only(released.held), session)
            return released.holding

        with fence:
            return self._without_archived(batch, write)

    def hand_back(self, worker: str, ids: Sequence[JobId]) -> Holding:
        """Releases jobs that were never started. Raises Superseded like `settle`."""
        held = self._roster.hand_back(worker, ids)
        if held is None:
            raise Superseded(f"worker {worker} is no longer on the roster")
        return held

    @store_call
    def mark_started(
        self, worker: str, ids: Sequence[JobId], at: datetime, debounced: Mapping[JobId, datetime] = _NONE
    ) -> Marked:
        """Marks at-most-once jobs as started here, and also debounced jobs that are still due at this time. Proves that
        the worker holds them: a retired worker, or a late write, must not mark the job of another worker. Raises
        Superseded, with nothing written, when the worker is no longer on the roster."""

        def write(session: ClientSession) -> Marked:
            held = self._roster.prove_on_roster(worker, session)
            if held is None:
                raise Superseded(f"worker {worker} is no longer on the roster; nothing was started")
            mine = [id for id in ids if id in held]
            marked = self._scheduled.mark_started(mine, worker, at, session) if mine else Marked()
            due = {id: moment for id, moment in debounced.items() if id in held}
            fresh = self._scheduled.mark_debounced(due, worker, at, session) if due else {}
            return replace(marked, may_start=marked.may_start | fresh.keys(), fresh=fresh)

        return self._transaction(write)

    @store_call
    def begin_run(self, worker: str, id: JobId, attempts: int, fields: Document) -> bool:
        """Proves that the worker holds the job, and writes the fields of a run on it (see `store/runs.py`); false, with
        nothing written, when it does not hold it."""

        def write(session: ClientSession) -> bool:
            if not self._roster.prove(worker, id, session):
                session.abort_transaction()
                return False
            begun = self._scheduled.begin_run(id, attempts, fields, session)
            if not begun:
                session.abort_transaction()
            return begun

        return self._transaction(write, locked_for=LONGEST_TRANSACTION)

    @store_call
    def retire_all(
        self, silent: Sequence[tuple[str, int] | Unreadable], decide: DecideOutcomes
    ) -> list[LastEntry | None]:
        """Removes silent workers, by id and heartbeat counter, and unreadable entries from the roster. `decide` returns
        the outcomes of the jobs that a worker was running, and of the jobs that it may have started since its last
        heartbeat: the first jobs in its list. Returns the last entry of each worker, or None for an entry that has
        changed or no longer exists."""

        def write(session: ClientSession) -> list[LastEntry | None]:
            return [self._retire(worker, decide, session) for worker in silent]

        return self._transaction(write)

    def _retire(
        self, worker: tuple[str, int] | Unreadable, decide: DecideOutcomes, session: ClientSession
    ) -> LastEntry | None:
        """Inside the transaction: removes the entry of the worker, and writes the outcomes of the jobs that it ran."""
        entry = self._roster.remove(worker, session)
        if entry is None:
            return None
        jobs: list[Document] = []
        if entry.assigned:
            # Jobs that it reported or marked as started, and the first ones: it may have started them since.
            first = [*entry.running, *entry.assigned[:MAY_HAVE_STARTED]]
            query = {
                "_id": {"$in": list(entry.assigned)},
                "$or": [{"_id": {"$in": first}}, {"started_by": entry.worker}, {"locked_by": entry.worker}],
            }
            raw: Any = self._scheduled.collection.with_options(codec_options=RAW)
            jobs = [decode_leniently(bytes(document.raw)) for document in raw.find(query, session=session)]
        self._write_outcomes(decide(entry, jobs), session)
        return entry

    @store_call
    def archive_unheld(self, batch: OutcomeBatch, term: int, holder: str) -> None:
        """Archives jobs that no worker holds. Only the leader knows that, so it must still lead. Raises DocumentLocked,
        with nothing written, when another transaction holds a job."""
        fence = _Fence("the lease")

        def write(session: ClientSession, batch: OutcomeBatch) -> None:
            with fence.proving():
                self._prove(term, holder, session)
            self._write_outcomes(batch, session)

        with fence:
            self._without_archived(batch, write)

    def archive_reduced(
        self, id: JobId, outcome: ToArchive, refused: DocumentRefused, now: datetime, term: int, holder: str
    ) -> None:
        """Like `archive_unheld`, for a job whose outcome MongoDB refuses: stores a smaller form of the outcome. Raises
        the last refusal."""

        def archive(form: Outcome | None) -> None:
            self.archive_unheld(OutcomeBatch.of([(id, form)]), term, holder)

        write_first_accepted(reduced(id, outcome, None, now, str(refused)), archive, refused)

    @store_call
    def set_aside(self, record: Document, document: Mapping[str, Any], term: int, holder: str) -> bool:
        """Replaces a document in `scheduled` that cannot be a job by a record in the archive. `document` is the query
        that finds it; false, with nothing written, when it finds nothing."""

        def write(session: ClientSession) -> bool:
            self._prove(term, holder, session)
            if not self._scheduled.collection.delete_one(document, session=session).deleted_count:
                session.abort_transaction()
                return False
            self._archived.collection.insert_one(record, session=session)
            self._flows.mark_ended([end_of(record)], session)
            return True

        return self._transaction(write)

    @store_call
    def archive_new(self, id: JobId, ended: ToArchive, *, own_id: bool = False) -> bool:
        """Archives a job that ran in the process that created it and was never stored. With a custom id (`own_id`):
        false, with nothing written, when another job has that id."""
        if not own_id:
            self._without_archived(
                OutcomeBatch({id: ended}), lambda session, batch: self._write_outcomes(batch, session)
            )
            return True

        def write(session: ClientSession) -> None:
            # Inserted and removed again, so that this and another insert of the same id cannot both succeed.
            self._scheduled.collection.insert_one({"_id": id}, session=session)
            self._write_outcomes(OutcomeBatch({id: ended}), session)

        try:
            self._transaction(write, locked_for=LONGEST_TRANSACTION)
        except (BulkWriteError, DuplicateKeyError) as error:
            if not is_duplicate(error):
                raise
            # If only the answer was lost, the archived document is this one.
            return bool(self._archived.collection.find_one({"_id": id}) == decode(ended.document))
        return True

    @store_call
    def lead(self, term: int, holder: str, write: Callable[[ClientSession], T]) -> T:
        """Runs the leader's writes. Raises Superseded, with nothing written, unless this term leads."""

        def fenced(session: ClientSession) -> T:
            self._prove(term, holder, session)
            return write(session)

        return self._transaction(fenced)

    def archive(self, batch: OutcomeBatch, session: ClientSession) -> None:
        """Inside a transaction of the leader: archives jobs that no worker holds."""
        self._write_outcomes(batch, session)

    @store_call
    def by_hand(self, write: Callable[[ClientSession], T], locked_for: float = _LOCKED_FOR_CALLERS_SECONDS) -> T:
        """Runs the writes of a person or producer, on a separate session: many such transactions may run at the same
        time."""
        with self._client.start_session() as session:
            self.note_session(session)
            return run_transaction(session, write, locked_for=locked_for)

    @store_call
    def fold_statistics(self, now: datetime) -> int:
        """Adds up the counts of past minutes; returns the number of documents that were folded."""
        return self._transaction(lambda session: self._statistics.fold(now, session))

    @store_call
    def repeat(
        self, urns: Sequence[str], decide: Callable[[set[str]], list[Plan]], now: datetime, term: int, holder: str
    ) -> list[Plan] | None:
        """Creates occurrences and advances their schedulers. `decide` receives the urns with a job that has not ended.
        None, with nothing written, when a scheduler has changed since it was read."""

        def write(session: ClientSession) -> list[Plan] | None:
            self._prove(term, holder, session)
            plans = decide(self._scheduled.busy(urns, session))
            if not self._schedulers.advance(plans, session):
                session.abort_transaction()
                return None
            replaced = [plan.scheduler.urn for plan in plans if plan.cancels]
            if replaced:
                flag = {"at": now, "by": "scheduler", "reason": "replaced by the next occurrence"}
                self._scheduled.flag_all(replaced, flag, session)
            jobs = [plan.scheduler.occurrence(instant, now) for plan in plans for instant in plan.instants]
            self._insert_new(jobs, session)
            return plans

        return self._transaction(write)

    def _prove(self, term: int, holder: str, session: ClientSession) -> None:
        """Raises Superseded unless this term leads."""
        with our_own_documents("the lease"):
            if not self._leases.fence(term, holder, session):
                raise Superseded(f"term {term} is over; nothing was written")

    def _insert_new(self, jobs: Sequence[Job], session: ClientSession) -> None:
        """Stores jobs, except jobs whose id is in use: the scheduler was created again after a clock was set back."""
        by_id = {job.id: job_document(job) for job in jobs}
        for id in self.ids_in_use(by_id, session):
            del by_id[id]
        if by_id:
            self._scheduled.collection.insert_many(list(by_id.values()), session=session)

    def ids_in_use(self, ids: Iterable[JobId], session: ClientSession) -> set[JobId]:
        """Inside a transaction: the ids among these that a waiting or ended job has."""
        query, both = {"_id": {"$in": list(ids)}}, (self._scheduled.collection, self._archived.collection)
        if not query["_id"]["$in"]:
            return set()
        return {found["_id"] for collection in both for found in collection.find(query, {"_id": 1}, session=session)}

    def _write_outcomes(self, batch: OutcomeBatch, session: ClientSession) -> None:
        """Inside a transaction: archives jobs or reschedules them, counts them, and leaves the markers of flows."""
        scheduled, archived = self._scheduled.collection, self._archived.collection
        if batch.archive:
            documents = [RawBSONDocument(ended.document) for ended in batch.archive.values()]
            archived.insert_many(documents, session=session)
        ends = [ended.end for ended in batch.archive.values()]
        attempted = [job.attempted for job in batch.reschedule if job.attempted is not None]
        with our_own_documents("the statistics"):
            self._statistics.count(ends, attempted, session.session_id["id"].as_uuid(), session)
        self._flows.mark_ended(ends, session)
        if batch.archive or batch.forget:
            ids = [*batch.archive, *batch.forget]
            without_signals = {"_id": {"$in": ids}, "signals": None}
            if scheduled.delete_many(without_signals, session=session).deleted_count < len(ids):
                self._remove_signalled(ids, session)
        if batch.reschedule:
            writes = [UpdateOne(*update) for job in batch.reschedule for update in job.updates]
            scheduled.bulk_write(writes, ordered=False, session=session)

    def _remove_signalled(self, ids: Sequence[JobId], session: ClientSession) -> None:
        """Removes jobs that have been sent signals. The documents in the archive do not have the signals that came
        while the jobs ran. Signals that cannot be read were written by hand, and are dropped."""
        query: Document = {"_id": {"$in": list(ids)}}
        raw = self._scheduled.collection.with_options(codec_options=RAW)
        jobs = [decode_leniently(bytes(job.raw)) for job in raw.find(query, {"signals": 1}, session=session)]
        signalled = [job for job in jobs if isinstance(job.get("signals"), list)]
        keep = [UpdateOne({"_id": job["_id"]}, {"$set": {"signals": job["signals"]}}) for job in signalled]
        if keep:
            self._archived.collection.bulk_write(keep, ordered=False, session=session)
        self._scheduled.collection.delete_many(query, session=session)

    def _without_archived(self, batch: OutcomeBatch, write: Callable[[ClientSession, OutcomeBatch], T]) -> T:
        """Runs the transaction. If jobs are in the archive already (settled before, with an unknown outcome), runs it
        again without them."""
        try:
            return self._transaction(lambda session: write(session, batch))
        except (BulkWriteError, DuplicateKeyError) as error:
            if not is_duplicate(error):
                raise
        remaining = batch.without(self._archived.which_exist(batch.archive))
        return self._transaction(lambda session: write(session, remaining))

    def _transaction(self, write: Callable[[ClientSession], T], locked_for: float = LOCKED_FOR_SECONDS) -> T:
        with self._turn:
            return run_transaction(self._own_session(), write, locked_for=locked_for)

    def _own_session(self) -> ClientSession:
        if self._session is None:
            self._session = self._client.start_session()
        return self._session


class _Fence:
    """The first write of a transaction, which proves the right to write. A conflict there is not a conflict about the
    jobs: a smaller batch would meet it too."""

    def __init__(self, what: str) -> None:
        self._has_passed = False
        self._what = what

    @contextmanager
    def proving(self) -> Iterator[None]:
        """Around the proof, in every repetition of the transaction."""
        self._has_passed = False
        yield
        self._has_passed = True

    def __enter__(self) -> None:
        """Around the transaction."""

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, DocumentLocked) and not self._has_passed:
            raise StoreUnreachable(f"another transaction holds {self._what}") from error
