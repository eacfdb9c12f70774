"""The transactions: everything that moves a job from one place to another, all or nothing.

    mark      roster write  +  scheduled update                                     before an at-most-once job starts
    begin     roster write  +  scheduled update                                     by a job that writes itself: runs.py
    settle    roster.$pull  +  archived insert  +  scheduled delete / update        by the worker that holds the jobs
    retire    roster delete +  scheduled update / archived insert                   by the leader, a silent worker
    set aside lease fence   +  archived insert  +  scheduled delete                 by the leader, jobs nobody holds
    repeat    lease fence   +  schedulers update  +  scheduled insert               by the leader, when it is time
    lead      lease fence   +  what the leader decides for the steps of flows       by the leader (steps/release.py)
    by hand   jobs that are created or recovered, flows that are controlled         by a producer or a person

Whatever goes into the archive, and each attempt after which a job waits again, is counted in the same transaction
(statistics.py), so the counts are exact. A step of a flow that goes into the archive, or comes back from it, leaves a
marker in the same transaction (flows.py).

A job is therefore in exactly one of `scheduled` and `archived` at every instant. The first write of each transaction
proves the right to make it (the worker is on the roster; the worker has been silent; the term still leads), and
conflicts with whatever would take that right away, so there is nothing to check afterwards.

A process that is killed in the middle of a transaction leaves it open on the server, and with it the locks on all that
it wrote: a worker's roster document, the lease. For a minute no other process could write there. So all transactions
of a process run on one session. Its id is in the roster document or in the lease, and the process that takes over ends
that session first (`end_session_of`). If the old process is alive after all, no harm is done: it repeats its
transaction.

Every transaction may be run again after an unknown outcome: a second settle finds its jobs already archived, and
rescheduling only matches a job whose `attempts` have not moved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from recruiter.store.codec import RAW, Document, decode, decode_leniently, job_document
from recruiter.store.collections.archived import Archived
from recruiter.store.collections.flows import FlowCollection
from recruiter.store.collections.leases import Leases
from recruiter.store.collections.roster import Roster
from recruiter.store.collections.scheduled import Marked, Scheduled
from recruiter.store.collections.schedulers import Schedulers
from recruiter.store.collections.statistics import Statistics
from recruiter.store.errors import is_duplicate, our_own_documents, store_call
from recruiter.store.outcomes import OutcomeBatch, ToArchive, end_of, reduced
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
"""A session with a transaction, for those who decide in one what to write."""

_PROBED_WITHIN = 1.0

MAY_HAVE_STARTED = 100
"""So many jobs of a dead worker's list may have been started since its last heartbeat, near enough."""


_NONE: Mapping[JobId, datetime] = MappingProxyType({})

DecideOutcomes = Callable[[LastEntry, list[Document]], OutcomeBatch]
"""Decides the outcomes of the jobs of a worker that is retired."""


class Transactions:
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

    @property
    def session_id(self) -> SessionId:
        """The session on which this process runs its transactions."""
        with self._turn:
            return self.sessions.id_of(self._opened())

    @property
    def answered_at(self) -> int:
        """The cluster time of the last answer on this session; 0 before the first."""
        session = self._session
        return cluster_time(session.operation_time) if session is not None else 0

    def end_session_of(self, session: SessionId | None) -> None:
        """Frees what a dead process has left locked."""
        if session is not None and session != self.session_id:
            self.sessions.end(session)

    @store_call
    def is_locked(self, worker: str) -> bool:
        """Whether a transaction holds the worker's roster document now. Does not wait for it, and changes nothing."""
        # On the session whose id is in the lease: if this process dies in here, its successor frees the lock.
        with self._turn, pymongo.timeout(_PROBED_WITHIN):
            session = self._opened()
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
        """Settles a worker's finished jobs; returns what it still holds.

        Nothing is written for a job that the worker does not hold: it was settled before, with an unknown outcome
        then, or another worker holds it. Raises Superseded, with nothing written, when the worker is no longer on the
        roster; and DocumentLocked when another transaction holds one of the jobs.
        """
        fence = _Fence(f"the roster document of worker {worker}")

        def write(session: ClientSession, batch: OutcomeBatch) -> Holding:
            fence.passed = False
            with our_own_documents(f"the roster document of worker {worker}"):
                released = self._roster.release(worker, batch.ids, session, facts)
            if released is None:
                raise Superseded(f"worker {worker} is no longer on the roster; its results were dropped")
            fence.passed = True
            self._write(batch.only(released.held), session)
            return released.holding

        with fence:
            return self._without_archived(batch, write)

    def hand_back(self, worker: str, ids: Sequence[JobId]) -> Holding:
        """Lets go of jobs that were never started; nothing else changes for them. Raises Superseded like `settle`."""
        held = self._roster.hand_back(worker, ids)
        if held is None:
            raise Superseded(f"worker {worker} is no longer on the roster")
        return held

    @store_call
    def mark_started(
        self, worker: str, ids: Sequence[JobId], at: datetime, debounced: Mapping[JobId, datetime] = _NONE
    ) -> Marked:
        """Writes durably that these at-most-once jobs, and debounced ones that were due then, are about to start here;
        and proves that the worker holds them: a worker that was retired, or a write that arrives late, must not mark
        the job of another worker.

        Raises Superseded, with nothing written, when the worker is no longer on the roster.
        """

        def write(session: ClientSession) -> Marked:
            held = self._roster.show_life(worker, session)
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
        """Proves that the worker holds the job, and leaves the fields of a run on it (see `store/runs.py`); false, with
        nothing written, when it does not."""

        def write(session: ClientSession) -> bool:
            if not self._roster.prove(worker, id, session):
                session.abort_transaction()
                return False
            if not self._scheduled.begin_run(id, attempts, fields, session):
                session.abort_transaction()
                return False
            return True

        return self._transaction(write, locked_for=LONGEST_TRANSACTION)

    def retire(self, worker: str, beats: int, decide: DecideOutcomes) -> LastEntry | None:
        """One worker: see `retire_all`."""
        return self.retire_all([(worker, beats)], decide)[0]

    @store_call
    def retire_all(
        self, silent: Sequence[tuple[str, int] | Unreadable], decide: DecideOutcomes
    ) -> list[LastEntry | None]:
        """Takes silent workers, by id and beats, and entries that cannot be read off the roster. `decide`
        returns the outcomes of the jobs that each was running, and of those that it may have started since its last
        heartbeat: the next few in its list.

        Returns what each held, or None where it showed life, can be read again, or is gone already.
        """

        def write(session: ClientSession) -> list[LastEntry | None]:
            return [self._retired(self._roster.remove(each, session), decide, session) for each in silent]

        return self._transaction(write)

    def _retired(self, entry: LastEntry | None, decide: DecideOutcomes, session: ClientSession) -> LastEntry | None:
        if entry is None:
            return None
        if not entry.assigned:
            self._write(decide(entry, []), session)
            return entry
        first = [*entry.running, *entry.assigned[:MAY_HAVE_STARTED]]
        query = {
            "_id": {"$in": list(entry.assigned)},
            "$or": [{"_id": {"$in": first}}, {"started_by": entry.worker}, {"locked_by": entry.worker}],
        }
        raw: Any = self._scheduled.collection.with_options(codec_options=RAW)
        jobs = [decode_leniently(bytes(document.raw)) for document in raw.find(query, session=session)]
        self._write(decide(entry, jobs), session)
        return entry

    @store_call
    def archive_unheld(self, batch: OutcomeBatch, term: int, holder: str) -> None:
        """Archives jobs that no worker holds. Only the leader knows that, so it must still lead. Raises DocumentLocked,
        with nothing written, when another transaction holds one of the jobs."""
        fence = _Fence("the lease")

        def write(session: ClientSession, batch: OutcomeBatch) -> None:
            fence.passed = False
            self._prove(term, holder, session)
            fence.passed = True
            self._write(batch, session)

        with fence:
            self._without_archived(batch, write)

    def archive_reduced(
        self, id: JobId, outcome: ToArchive, refused: DocumentRefused, now: datetime, term: int, holder: str
    ) -> None:
        """The same of a job whose outcome MongoDB refuses: as much of it as it takes. Raises the last refusal."""
        for form in reduced(id, outcome, None, now, str(refused)):
            if isinstance(form, ToArchive):
                try:
                    return self.archive_unheld(OutcomeBatch(archive={id: form}), term, holder)
                except DocumentRefused as error:
                    refused = error
        raise refused

    @store_call
    def set_aside(self, record: Document, document: Mapping[str, Any], term: int, holder: str) -> bool:
        """Moves a document that cannot be a job out of `scheduled`: a record of it goes into the archive. `document` is
        the query that finds it; false, with nothing written, when that finds nothing any more."""

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
        """A job that never waited: it ran where it was made. With an id of the user's own (`own_id`): false, with
        nothing written, when another job has that id."""
        if not own_id:
            self._without_archived(OutcomeBatch({id: ended}), lambda session, batch: self._write(batch, session))
            return True

        def write(session: ClientSession) -> None:
            # It waits for a moment, so that this and another insert of the same id cannot both succeed.
            self._scheduled.collection.insert_one({"_id": id}, session=session)
            self._write(OutcomeBatch({id: ended}), session)

        try:
            self._transaction(write, locked_for=LONGEST_TRANSACTION)
        except (BulkWriteError, DuplicateKeyError) as error:
            if not is_duplicate(error):
                raise
            # It is ours, if the answer was lost.
            return bool(self._archived.collection.find_one({"_id": id}) == decode(ended.document))
        return True

    @store_call
    def lead(self, term: int, holder: str, write: Callable[[ClientSession], T]) -> T:
        """What only the leader may write. Raises Superseded, with nothing written, unless this term leads."""

        def fenced(session: ClientSession) -> T:
            self._prove(term, holder, session)
            return write(session)

        return self._transaction(fenced)

    def archive(self, batch: OutcomeBatch, session: ClientSession) -> None:
        """Inside a transaction of the leader: archives jobs that nobody holds."""
        self._write(batch, session)

    @store_call
    def by_hand(self, write: Callable[[ClientSession], T]) -> T:
        """What a person does, all or nothing: on a session of its own, since many may do so at once."""
        with self._client.start_session() as session:
            return run_transaction(session, write)

    @store_call
    def fold_statistics(self, now: datetime) -> int:
        """Adds up the counts of minutes that are over; returns how many documents that made superfluous."""
        return self._transaction(lambda session: self._statistics.fold(now, session))

    @store_call
    def repeat(
        self,
        urns: Sequence[str],
        decide: Callable[[set[str]], list[Plan]],
        now: datetime,
        term: int,
        holder: str,
    ) -> list[Plan] | None:
        """Makes occurrences and moves their schedulers on. `decide` is told which urns have a job that has not ended.

        None, with nothing written, when one of the schedulers is no longer what was seen.
        """

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
        """All but those that exist: of a scheduler that was removed and made again while a clock went back."""
        by_id = {job.id: job_document(job) for job in jobs}
        for id in self.ids_in_use(by_id, session):
            del by_id[id]
        if by_id:
            self._scheduled.collection.insert_many(list(by_id.values()), session=session)

    def ids_in_use(self, ids: Iterable[JobId], session: ClientSession) -> set[JobId]:
        """Inside a transaction: those of these ids that a job has, waiting or ended."""
        query, both = {"_id": {"$in": list(ids)}}, (self._scheduled.collection, self._archived.collection)
        if not query["_id"]["$in"]:
            return set()
        return {found["_id"] for collection in both for found in collection.find(query, {"_id": 1}, session=session)}

    def _write(self, batch: OutcomeBatch, session: ClientSession) -> None:
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
            scheduled.delete_many({"_id": {"$in": [*batch.archive, *batch.forget]}}, session=session)
        if batch.reschedule:
            writes = [UpdateOne(*update) for job in batch.reschedule for update in job.updates]
            scheduled.bulk_write(writes, ordered=False, session=session)

    def _without_archived(self, batch: OutcomeBatch, write: Callable[[ClientSession, OutcomeBatch], T]) -> T:
        """Runs the transaction; if jobs are in the archive already (settled before, with an unknown outcome then),
        runs it again without these."""
        try:
            return self._transaction(lambda session: write(session, batch))
        except (BulkWriteError, DuplicateKeyError) as error:
            if not is_duplicate(error):
                raise
        rest = batch.without(self._archived.which_exist(batch.archive))
        return self._transaction(lambda session: write(session, rest))

    def _transaction(self, write: Callable[[ClientSession], T], locked_for: float = LOCKED_FOR_SECONDS) -> T:
        with self._turn:
            return run_transaction(self._opened(), write, locked_for=locked_for)

    def _opened(self) -> ClientSession:
        if self._session is None:
            self._session = self._client.start_session()
        return self._session


class _Fence:
    """The first write of a transaction, which proves the right to make it. If it meets another transaction, that says
    nothing about the jobs: a smaller batch would meet it too."""

    def __init__(self, what: str) -> None:
        self.passed = False
        self._what = what

    def __enter__(self) -> None:
        self.passed = False

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, DocumentLocked) and not self.passed:
            raise StoreUnreachable(f"another transaction holds {self._what}") from error
