"""`roster`: the workers and the jobs that they hold. **This is the lock table.**

    {_id: "host:pid:1f3a", host, pid, groups, tasks, slots, prefetch, ready, draining, term, beats, settled, given,
     given_at, pauses, session, sessions: [{pid, session}], runs, resources, metered: [{job, lane}], joined_at,
     seen_at, considered_dead_after, clock_offset, version, usage: {memory, cpu},
     stack_asked: {id, job}, stack: {id, job, text, at}, running: [{job, task, since}],
     assigned: [job ids], drained: {at, by, reason}}

A worker holds exactly the jobs in its `assigned`. Only the leader adds to it, and only while no newer term is written
there. Only the worker itself removes jobs from it, by settling or handing back. Retiring a worker deletes the document,
and with it all its holds. So no lock outlives its holder, and a worker that lost its document cannot complete a job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection as Collection_
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

import pymongo
from pymongo import ReturnDocument, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern

from recruiter.domain.job import JobId
from recruiter.domain.planning.arrivals import Offer
from recruiter.domain.planning.workers import RosterWorker
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.store.codec import Document, decode_leniently, new_id, this_document
from recruiter.store.errors import store_call
from recruiter.store.fields import BELIEVED_TERM, MOST, validator
from recruiter.store.reading import ParsedCollection
from recruiter.store.roster_fields import (
    Beat,
    Hold,
    Holding,
    LastEntry,
    ReleaseAnswer,
    RosterEntry,
    entry_from,
    holding_from,
    job_ids_in,
    last_entry_from,
    registration_from,
    released_from,
    sessions_from,
    stack_asked_from,
    whole_entry_from,
    whole_registration_from,
)
from recruiter.store.sessions import SessionId, cluster_time

NAME = "roster"

PATIENCE = 0.5
"""Seconds that the leader waits for a document that may be locked: a worker that died in a transaction locks its own
for a minute. Shorter than a leader may be silent, or another one would take over and wait for the same lock."""
_SESSIONS_KEPT = 500
"""More than the children of a worker, and the dead children whose sessions could not be removed."""
VALIDATOR = validator(
    "groups tasks slots prefetch ready draining term beats running assigned",
    _id="string",
    groups="null array",
    tasks="array",
    slots="int",
    prefetch="int",
    ready="bool",
    draining="bool",
    term="int long",
    beats="int long",
    running="array",
    assigned="array",
)
_PLANNING_FIELDS: Document = {
    **dict.fromkeys(
        ("groups", "tasks", "slots", "prefetch", "ready", "draining", "drained", "beats", "term", "given"), 1
    ),
    **dict.fromkeys(("session", "sessions", "host", "resources", "metered", "seen_at", "considered_dead_after"), 1),
    "holds": {"$cond": [{"$isArray": "$assigned"}, {"$size": "$assigned"}, None]},
}
_VIEW_FIELDS: Document = {
    **_PLANNING_FIELDS,
    **dict.fromkeys(("pid", "joined_at", "running", "clock_offset", "version", "usage"), 1),
}
_HOLDING: Document = {"assigned": 1, "settled": 1, "given": 1}

ASSIGNED_TO_ME = "updateDescription.updatedFields.given"
"""The field that a worker watches on its own document; heartbeats do not change it."""
ASSIGNMENT_FIELDS: Document = {"documentKey": 1, "updateDescription.updatedFields": 1}
"""The fields of an event that `assignment_of` reads."""

ROOM_MADE: Document = {
    "$or": [
        {"operationType": {"$in": ["insert", "delete"]}},
        {"updateDescription.updatedFields.settled": {"$exists": True}},
        {"updateDescription.updatedFields.ready": {"$exists": True}},
    ]
}
"""The events that the leader watches while no worker can take the waiting jobs: a worker joins, or has room again."""


class Roster(ParsedCollection):
    """The workers, and the jobs that each of them holds."""

    name = NAME

    def __init__(self, collection: Collection[Document]) -> None:
        super().__init__(collection)
        self._agreed = collection.with_options(read_concern=ReadConcern("majority"))
        self.patience = PATIENCE
        """Grows while the server is slow; see steps/lead.py."""
        self.answered_at = 0
        """The cluster time of the last answer to `raise_term`, `assign` or `offer`. It is later than everything that
        the leader had read before."""

    # -- the worker's side -------------------------------------------------------------------------------------

    @store_call
    def join(self, worker: str, facts: Mapping[str, Any]) -> None:
        """Inserts the worker as not ready: it is assigned nothing before it knows the newest term (`become_ready`).
        Safe to repeat: the id belongs to this registration only."""
        fresh = {"ready": False, "draining": False, "term": 0, "beats": 0, "settled": 0, "given": 0, "pauses": 0}
        with contextlib.suppress(DuplicateKeyError):
            self.collection.insert_one({"_id": worker, **facts, **fresh, "running": [], "assigned": []})

    @store_call
    def become_ready(self, worker: str, term: int) -> bool:
        update = {"$set": {"ready": True}, "$max": {"term": term}, "$inc": {"beats": 1}}
        return self.collection.update_one({"_id": worker}, update).matched_count == 1

    @store_call
    def beat(self, worker: str, facts: Mapping[str, Any], within: float) -> Beat | None:
        """Writes a heartbeat; None when the worker is off the roster."""
        with pymongo.timeout(within):  # a dead connection must not cost the registration
            found = self.collection.find_one_and_update(
                {"_id": worker},
                {"$inc": {"beats": 1}, "$set": dict(facts), "$currentDate": {"seen_at": True}},
                projection={**_HOLDING, "seen_at": 1, "pauses": 1, "stack_asked": 1},
                return_document=ReturnDocument.AFTER,
            )
        if found is None:
            return None
        return Beat(holding_from(found), found["seen_at"], found.get("pauses", 0), stack_asked_from(found))

    @store_call
    def holding(self, worker: str) -> Holding | None:
        """The jobs of the worker by a majority read: it may start only these. An assignment that is on the primary
        alone can be rolled back, and its jobs assigned to another worker."""
        found = self._agreed.find_one({"_id": worker}, _HOLDING)
        return holding_from(found) if found else None

    @store_call
    def holds_any(self, worker: str) -> bool:
        """Whether jobs are assigned to the worker, including assignments that a majority does not know yet."""
        return self.collection.find_one({"_id": worker, "assigned.0": {"$exists": True}}, {"_id": 1}) is not None

    def release(
        self,
        worker: str,
        ids: Sequence[JobId],
        session: ClientSession | None,
        facts: Mapping[str, Any],
        settled: int | None = None,
    ) -> ReleaseAnswer | None:
        """Removes these jobs from the worker's lists, which ends its hold. With `settled`, only if the worker has made
        this number of releases. None when the worker is off the roster, or has made another release."""
        query: Document = {"_id": worker} if settled is None else {"_id": worker, "settled": settled}
        released = {"$in": list(ids)}
        found = self.collection.find_one_and_update(
            query,
            {
                "$pull": {"assigned": released, "running": {"job": released}, "metered": {"job": released}},
                "$inc": {"beats": 1, "settled": 1},
                "$set": dict(facts),
            },
            projection=_HOLDING,
            return_document=ReturnDocument.BEFORE,
            session=session,
        )
        return released_from(found, ids) if found else None

    @store_call
    def hand_back(self, worker: str, ids: Sequence[JobId]) -> Holding | None:
        """Releases jobs that were never started. The write requires the number of releases that was read: a late write
        must not release a job that has been assigned to this worker again."""
        while (found := self.collection.find_one({"_id": worker}, {"settled": 1})) is not None:
            released = self.release(worker, ids, None, {}, found["settled"])
            if released is not None:
                return released.holding
        return None

    def prove_on_roster(self, worker: str, session: ClientSession) -> frozenset[JobId] | None:
        """Inside a transaction: the jobs of the worker; None if it was retired. It is a write, so that retiring the
        worker conflicts."""
        found = self.collection.find_one_and_update(
            {"_id": worker}, {"$inc": {"beats": 1}}, projection={"assigned": 1}, session=session
        )
        return frozenset(found["assigned"]) if found else None

    def prove(self, worker: str, job: JobId, session: ClientSession) -> bool:
        """Inside a transaction: whether the worker holds this job. It is a write, so that the end of the hold
        conflicts. It is no heartbeat: it may come from a child of a dead or frozen supervisor."""
        held = {"_id": worker, "assigned": job}
        return self.collection.update_one(held, {"$inc": {"runs": 1}}, session=session).matched_count == 1

    @store_call
    def note_sessions(self, worker: str, pid: int, sessions: Sequence[SessionId]) -> bool:
        """Stores the sessions in which a process of this worker is about to write (see `store/runs.py`). False when the
        worker is off the roster."""
        noted = [{"pid": pid, "session": session} for session in sessions]
        update = {"$push": {"sessions": {"$each": noted, "$slice": -_SESSIONS_KEPT}}}
        return self.collection.update_one({"_id": worker}, update).matched_count == 1

    @store_call
    def sessions_of(self, worker: str, pids: Collection_[int]) -> list[SessionId]:
        """The sessions in which these processes of the worker may have written."""
        found = self.collection.find_one({"_id": worker, "sessions.pid": {"$in": list(pids)}}, {"sessions": 1}) or {}
        return [session for pid, session in sessions_from(found) if pid in pids]

    @store_call
    def forget_sessions(self, worker: str, pids: Collection_[int]) -> None:
        """Call this when these processes are dead and their sessions were ended."""
        self.collection.update_one({"_id": worker}, {"$pull": {"sessions": {"pid": {"$in": list(pids)}}}})

    @store_call
    def leave(self, worker: str) -> None:
        self.collection.delete_one({"_id": worker})

    # -- the leader's side -------------------------------------------------------------------------------------

    @store_call
    def raise_term(self, term: int) -> None:
        """From here on no older leader can assign to any worker on the roster. Safe to repeat."""
        with self._leader_write() as session:
            self.collection.update_many({"term": {"$lt": term}}, {"$set": {"term": term}}, session=session)

    def touch(self, worker: str, session: ClientSession) -> None:
        """Inside a transaction that will be aborted: fails immediately if another transaction has the document."""
        self.collection.update_one({"_id": worker}, {"$inc": {"beats": 1}}, session=session)

    @store_call
    def highest_term(self) -> int:
        """The highest accepted term on the roster."""
        found = self._raw.find_one({"term": {"$lte": BELIEVED_TERM}}, {"_id": 0, "term": 1}, sort=[("term", -1)])
        return int(found["term"]) if found else 0

    @store_call
    def read(self) -> Parsed[RosterWorker]:
        """The workers and the numbers of their jobs; for the jobs see `held`."""
        return self._parsed(registration_from, {}, _PLANNING_FIELDS)

    @store_call
    def held(self, session: ClientSession | None = None) -> set[JobId]:
        """Every held job, including jobs of entries that are otherwise unreadable."""
        found = self._readable({}, {"assigned": 1}, session=session)
        return {job for document in found for job in job_ids_in(document.get("assigned"))}

    @store_call
    def holders(self) -> dict[str, list[JobId]]:
        """The same by worker."""
        found = self._readable({}, {"assigned": 1})
        return {str(document["_id"]): job_ids_in(document.get("assigned")) for document in found}

    @store_call
    def assign(
        self,
        assignments: Mapping[str, Sequence[JobId]],
        term: int,
        limited: Mapping[str, Sequence[tuple[JobId, str]]] = MappingProxyType({}),
    ) -> bool:
        """Assigns jobs to workers, and stores the lanes of jobs that count against limits or resources. False when a
        worker has left or has seen a newer term: check the lease again."""
        writes = [
            UpdateOne(
                {"_id": worker, "ready": True, "term": {"$lte": term}},
                _assignment(term, jobs, limited.get(worker, ())),
            )
            for worker, jobs in assignments.items()
        ]
        with self._leader_write() as session:
            return self.collection.bulk_write(writes, ordered=False, session=session).matched_count == len(writes)

    @store_call
    def offer(self, offers: Mapping[str, Offer], term: int) -> bool:
        """Like `assign`, to remembered workers: the write checks that the worker takes jobs, has free slots for all of
        them, and has sent a recent heartbeat. False when a worker did not take its jobs."""
        writes = [
            UpdateOne(
                {"_id": worker, "ready": True, "term": {"$lte": term}, **_takes(offer)},
                _assignment(term, offer.jobs),
            )
            for worker, offer in offers.items()
        ]
        with self._leader_write() as session:
            return self.collection.bulk_write(writes, ordered=False, session=session).matched_count == len(writes)

    @contextlib.contextmanager
    def _leader_write(self) -> Iterator[ClientSession]:
        """Around a write of the leader: bounds it by `patience`, and stores the cluster time of its answer."""
        client = self.collection.database.client
        with client.start_session(causal_consistency=False) as session, pymongo.timeout(self.patience):
            yield session
            self.answered_at = max(self.answered_at, cluster_time(session.operation_time))

    @store_call
    def meter(self, worker: str, entries: Sequence[tuple[JobId, str]], term: int) -> None:
        """Stores that these jobs of the worker count against a new limit. Jobs that it has settled are left out."""
        writes = [
            UpdateOne({"_id": worker, "term": {"$lte": term}, "assigned": id}, {"$push": {"metered": entry}})
            for (id, _), entry in zip(entries, _entries(entries), strict=True)
        ]
        with pymongo.timeout(self.patience):
            self.collection.bulk_write(writes, ordered=False)

    def remove(self, seen: tuple[str, int] | Unreadable, session: ClientSession) -> LastEntry | None:
        """Inside a transaction: removes a worker, by id and beats, unless it has sent a heartbeat since; or an entry
        that is still unreadable."""
        if not isinstance(seen, Unreadable):
            found = self._raw.find_one_and_delete({"_id": seen[0], "beats": seen[1]}, session=session)
            return last_entry_from(decode_leniently(bytes(found.raw))) if found is not None else None
        entry = self._parsed_one(whole_registration_from, this_document(seen.raw), session=session)
        if not isinstance(entry, Unreadable):
            return None
        self.collection.delete_one(this_document(seen.raw), session=session)
        return last_entry_from(decode_leniently(entry.raw))

    @store_call
    def tell_of_pauses(self) -> None:
        """Makes every worker read the pauses again with its next heartbeat."""
        self.collection.update_many({"pauses": {"$gte": 0, "$lte": MOST}}, {"$inc": {"pauses": 1}})

    @store_call
    def set_drained(self, worker: str, why: Mapping[str, Any] | None) -> bool:
        """Stops the assignment of jobs to this worker, or with None resumes it. The worker finishes its jobs."""
        update = {"$set": {"drained": dict(why)}} if why is not None else {"$unset": {"drained": ""}}
        return self.collection.update_one({"_id": worker}, update).matched_count == 1

    @store_call
    def ask_stack(self, job: JobId) -> bool:
        """Asks the worker that holds the job for its stack; the next question replaces this one. False if no worker
        holds it."""
        asked = {"id": str(new_id()), "job": job}
        return self.collection.update_one({"assigned": job}, {"$set": {"stack_asked": asked}}).matched_count == 1

    @store_call
    def stack(self, job: JobId) -> Document | None:
        """The last stack of this job: `text` and `at`."""
        found = self.collection.find_one({"assigned": job, "stack.job": job}, {"stack": 1})
        stack = None if found is None else found["stack"]
        if not isinstance(stack, dict) or not isinstance(stack.get("at"), datetime):
            return None
        return {"text": str(stack.get("text")), "at": stack["at"]}

    @store_call
    def holder(self, id: JobId) -> Hold | None:
        found = next(self._readable({"assigned": id}, {"running": 1, "given_at": 1}), None)
        return None if found is None else last_entry_from(found).hold(id)

    @store_call
    def holds(self) -> dict[JobId, Hold]:
        entries = map(last_entry_from, self._readable({}, {"assigned": 1, "running": 1, "given_at": 1}))
        return {id: entry.hold(id) for entry in entries for id in entry.assigned}

    # -- views -------------------------------------------------------------------------------------------------

    @store_call
    def entries(self) -> Parsed[RosterEntry]:
        return self._parsed(entry_from, {}, _VIEW_FIELDS, sort=[("_id", 1)])

    @store_call
    def unreadable(self) -> Sequence[Unreadable]:
        return self._parsed(whole_entry_from, {}).unreadable


def _assignment(term: int, jobs: Sequence[JobId], limited: Sequence[tuple[JobId, str]] = ()) -> Document:
    push: Document = {"assigned": {"$each": list(jobs)}}
    if limited:
        push["metered"] = {"$each": _entries(limited)}
    return {"$set": {"term": term}, "$push": push, "$inc": {"given": 1}, "$currentDate": {"given_at": True}}


def _takes(offer: Offer) -> Document:
    """The condition that the worker is alive, is not drained, and has free slots for these jobs."""
    oldest_heartbeat = {"$subtract": ["$$NOW", int(offer.quiet_after * 1000)]}
    return {
        "slots": {"$gte": len(offer.jobs)},
        f"assigned.{max(0, offer.slots - len(offer.jobs))}": {"$exists": False},
        "draining": False,
        "drained": None,
        "$expr": {"$gt": ["$seen_at", oldest_heartbeat]},
    }


def _entries(limited: Sequence[tuple[JobId, str]]) -> list[Document]:
    return [{"job": job, "lane": lane} for job, lane in limited]
