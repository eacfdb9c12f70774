"""The steps of flows: jobs that wait in `scheduled`, and jobs that have ended in `archived`, by their flow.

A step is named by its first job. It is pending while one of its jobs is in `scheduled`; else it has succeeded if one of
them has, and failed if none has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bson import ObjectId
from pymongo import DESCENDING, UpdateMany
from pymongo.client_session import ClientSession
from pymongo.collection import Collection

from recruiter.domain.flow import FlowStep, StepState
from recruiter.domain.job import Cancellation, Happened, JobId
from recruiter.domain.names import BLOCKED_LANE, CANCELLED_LANE
from recruiter.domain.state import Why
from recruiter.store.codec import LENIENT, RAW, Document, decode_leniently, flow_of
from recruiter.store.collections import archived, scheduled
from recruiter.store.collections.archived import Archived
from recruiter.store.collections.flows import Marker
from recruiter.store.collections.roster import Roster
from recruiter.store.collections.scheduled import Scheduled
from recruiter.store.errors import store_call
from recruiter.store.fields import is_job_id
from recruiter.store.job_fields import appended, history_entry

_AT_ONCE = 1000
"""Steps that are asked for in one query."""
MOST_CANDIDATES = 100_000
"""Steps that are looked at in one pass: many more would not fit into an answer."""
TAIL = 20
"""Of a step that waits for very many, the last of them are looked at first: they were added last, and mostly run last.
As long as one of them is pending, the others need not be read."""
_FAILED_FOR_OTHERS: Document = {"done": False, "why": Why.DEPENDENCY_FAILED.value, "recovered_as": None}
_ENDED: Document = {"done": {"$in": [True, False]}}


_OF_FLOW = ("id", "on", "after", "any", "takes", "delay", "released")
_OF_JOB = (
    *("task", "group", "key", "worker_deaths", "proc", "mem", "resources", "scheduled_at", "postponed", "expires_in"),
    "priority",
)
"""What says where and when a step runs that is released."""
_IN_COMMON = [*(f"$flow.{name}" for name in (*_OF_FLOW, "held")), *(f"${name}" for name in _OF_JOB)]
"""An array takes MongoDB less time than a document."""


def _alike() -> Document:
    """Steps that have all this in common share one decision. Those that wait for very many are looked at one by one."""
    return {
        "_id": {"$cond": [{"$isArray": ["$flow.many"]}, None, _IN_COMMON]},
        "ids": {"$push": "$_id"},
        # Of most steps it is the id of their job, which need not be sent twice.
        "steps": {"$push": {"$cond": [{"$eq": ["$flow.step", "$_id"]}, None, {"$ifNull": ["$flow.step", False]}]}},
        "size": {"$max": {"$bsonSize": "$$ROOT"}},
    }


def _last() -> Document:
    """What is read of a step that waits for very many."""
    return {
        **dict.fromkeys((*_OF_JOB, *(f"flow.{name}" for name in ("step", *_OF_FLOW))), 1),
        "flow.many": {"$slice": -TAIL},
        "flow.takes": {"$slice": 1},
        "size": {"$bsonSize": "$$ROOT"},
    }


class Free(NamedTuple):
    """Steps that may start, their new fields, and what they must still be like."""

    ids: tuple[JobId, ...]
    fields: Document
    where: Document


class StepCounts(NamedTuple):
    """How many steps of a flow are where, at one moment."""

    waiting: Counter[str]
    """By lane; without those that run."""
    running: int
    """How many are held by workers."""
    ended: Counter[str]
    """By the reason why."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Steps that may have to be released, archived, or brought back. They wait for the same, and differ in nothing
    that decides where and when they run: thousands of parts of a fan-out are a few of these."""

    ids: tuple[JobId, ...]
    """Of their jobs."""
    steps: tuple[JobId, ...]
    place: FlowStep
    """Of one of them."""
    job: Document
    """What says where and when they run."""
    size: int
    """Bytes of the largest."""
    ended: bool = False
    """They are in the archive, because a dependency failed."""
    whole: bool = True
    """Whether `place.after` is all that they wait for, or only the last of it."""
    released: bool = False
    """They had been released when their flow was paused: their time is theirs, and no delay begins again."""

    def without(self, ids: Set[JobId]) -> Candidates | None:
        """All but these; None if none is left."""
        if not ids or ids.isdisjoint(self.ids):
            return self
        left = [(id, step) for id, step in zip(self.ids, self.steps, strict=True) if id not in ids]
        return replace(self, ids=tuple(id for id, _ in left), steps=tuple(step for _, step in left)) if left else None

    def split(self, at: int) -> tuple[Candidates, Candidates]:
        """So many of them, and the rest."""
        first = replace(self, ids=self.ids[:at], steps=self.steps[:at])
        return first, replace(self, ids=self.ids[at:], steps=self.steps[at:])


class FlowSteps:
    def __init__(self, scheduled: Scheduled, archived: Archived, roster: Roster) -> None:
        self._scheduled = scheduled.collection.with_options(codec_options=LENIENT)
        self._archived = archived.collection.with_options(codec_options=LENIENT)
        self._roster = roster

    # -- for the leader ------------------------------------------------------------------------------------------

    def candidates(self, marker: Marker) -> Iterator[list[Candidates]]:
        """The steps that a marker is about, part by part: blocked ones, and those that were archived because a
        dependency failed; each with at most the last of what it waits for."""
        for query, waiting, of_ended in _queries(marker):
            for ended, collection, where in self._places:
                these, index = {**query, **where}, of_ended if ended else waiting
                found, count = self._look(collection, these, index, ended=ended)
                yield found
                ids = self._ids(collection, these, index) if count == MOST_CANDIDATES else ()
                at_once = min(_AT_ONCE, MOST_CANDIDATES)
                for start in range(0, len(ids), at_once):
                    some = {"_id": {"$in": ids[start : start + at_once]}, **where}
                    yield self._look(collection, some, "_id_", ended=ended)[0]

    @store_call
    def _ids(self, collection: Collection[Document], query: Document, index: str) -> list[JobId]:
        return [document["_id"] for document in collection.find(query, {"_id": 1}, hint=index)]

    @store_call
    def _look(
        self, collection: Collection[Document], query: Document, index: str, *, ended: bool
    ) -> tuple[list[Candidates], int]:
        """One pass over them, but not too many: those that are alike are put together by the server. Also how many
        there were."""
        raw: Collection[Any] = collection.with_options(codec_options=RAW)
        pipeline: list[Document] = [{"$match": query}, {"$limit": MOST_CANDIDATES}, {"$group": _alike()}]
        looked: list[Candidates | None] = []
        of_many: list[JobId] = []
        count = 0
        for document in raw.aggregate(pipeline, hint=index):
            row = decode_leniently(bytes(document.raw))[0]
            count += len(row["ids"])
            if row["_id"] is None:
                of_many = row["ids"]
                continue
            of_all = dict(zip((*_OF_FLOW, "held", *_OF_JOB), row["_id"], strict=True))
            flow = {name: of_all[name] for name in _OF_FLOW if of_all[name] is not None}
            steps = [id if step is None else step for id, step in zip(row["ids"], row["steps"], strict=True)]
            looked.append(_candidates(row["ids"], steps, flow, of_all, row["size"], ended=ended, whole=True))
        for document in raw.find({**query, "_id": {"$in": of_many}}, _last(), hint="_id_") if of_many else ():
            row = decode_leniently(bytes(document.raw))[0]
            steps = [row["flow"].get("step")]
            looked.append(_candidates([row["_id"]], steps, row["flow"], row, row["size"], ended=ended, whole=False))
        return [each for each in looked if each is not None], count

    @property
    def _places(self) -> tuple[tuple[bool, Collection[Document], Document], ...]:
        return (False, self._scheduled, {"lane": BLOCKED_LANE}), (True, self._archived, _FAILED_FOR_OTHERS)

    @store_call
    def whole(
        self, candidates: Iterable[Candidates], session: ClientSession | None = None
    ) -> dict[JobId, tuple[FlowStep, Document]]:
        """All that is stored of them now, by the ids of the jobs; those that are no longer candidates are left out."""
        found: dict[JobId, tuple[FlowStep, Document]] = {}
        some = list(candidates)
        for ended, collection, where in self._places:
            ids = [id for each in some if each.ended == ended for id in each.ids]
            if ids:
                for document in collection.find({"_id": {"$in": ids}, **where}, session=session):
                    place = flow_of(document)
                    if place is not None:
                        found[document["_id"]] = place, document
        return found

    @store_call
    def states(
        self, flow: ObjectId, steps: Iterable[JobId], session: ClientSession | None = None
    ) -> dict[JobId, StepState]:
        """The states of these steps; those that are gone are left out."""
        wanted = list(dict.fromkeys(steps))
        # First those that wait: a step that ends between the two reads is found in one of them.
        states = dict.fromkeys(self.pending_among(flow, wanted, session), StepState.PENDING)
        rest = [step for step in wanted if step not in states]
        fields = {"_id": 0, "flow.step": 1, "done": 1}
        for some in _in_parts(rest):
            query = {"flow.id": flow, **_ENDED, "flow.step": {"$in": some}}
            batch: Document = {"hint": archived.BY_FLOW, "batch_size": _AT_ONCE + 1, "session": session}
            for ended in self._archived.find(query, fields, **batch):
                step = ended["flow"]["step"]
                if ended["done"] or states.get(step) is not StepState.SUCCEEDED:
                    states[step] = StepState.SUCCEEDED if ended["done"] else StepState.FAILED
        return states

    @store_call
    def place_after_success(self, each: Candidates, session: ClientSession) -> FlowStep | None:
        """The place of a step that waits for very many, if all of these have succeeded. The server counts them, from
        the index alone, so that ten thousand need not be read. A step succeeds once: after that it is not recovered."""
        step = self._scheduled.find_one({"_id": each.ids[0], "lane": BLOCKED_LANE}, {"flow": 1}, session=session)
        flow = {} if step is None else step["flow"]
        after, takes = flow.get("many"), flow.get("takes", [])
        if not isinstance(after, list) or not isinstance(takes, list):
            return None
        query = {"flow.id": each.place.flow, "flow.step": {"$in": after}, "done": True}
        if self._archived.count_documents(query, hint=archived.BY_FLOW, session=session) < len(after):
            return None
        return replace(each.place, after=tuple(after), takes=tuple(takes))

    def _waits_for_one_of(self, each: Candidates, steps: Sequence[JobId]) -> bool:
        """Whether a step waits for one of these. It may be among them itself, and does not wait for itself."""
        others = [step for step in steps if step not in each.steps]
        query = {"_id": each.ids[0], "flow.many": {"$in": others}}
        return bool(others) and self._scheduled.find_one(query, {"_id": 1}, hint="_id_") is not None

    @store_call
    def is_pending_before(self, each: Candidates) -> bool:
        """Whether a step is pending that a step waits for which waits for very many."""
        left = self._pending({"flow.id": each.place.flow}, None, limit=_AT_ONCE)
        if len(left) < _AT_ONCE:
            return self._waits_for_one_of(each, left)
        whole = self.whole([each]).values()
        return any(self.pending_among(each.place.flow, place.after) for place, _ in whole)

    @store_call
    def failed_before(self, each: Candidates) -> bool:
        """Whether a step has failed that must not, of those that a step waits for which waits for very many."""
        query = {"flow.id": each.place.flow, "done": False, "recovered_as": None}
        found = self._archived.find(query, {"_id": 0, "flow.step": 1}, hint=archived.BY_FLOW, limit=_AT_ONCE)
        failed = [step for document in found if (step := document["flow"]["step"]) not in each.place.any]
        return self._waits_for_one_of(each, failed)

    @store_call
    def pending_among(self, flow: ObjectId, steps: Sequence[JobId], session: ClientSession | None = None) -> set[JobId]:
        """Those of these steps that have not ended."""
        if len(steps) > TAIL:  # mostly because the others have ended: all that is left may be less than these
            left = self._pending({"flow.id": flow}, session, limit=len(steps))
            if len(left) < len(steps):
                return set(left).intersection(steps)
        found: set[JobId] = set()
        for some in _in_parts(steps):
            found.update(self._pending({"flow.id": flow, "flow.step": {"$in": some}}, session))
        return found

    def _pending(self, query: Document, session: ClientSession | None, limit: int = 0) -> list[JobId]:
        fields: Document = {"_id": 0, "flow.step": 1}
        found = self._scheduled.find(
            query, fields, limit=limit, hint=scheduled.BY_FLOW, batch_size=_AT_ONCE + 1, session=session
        )
        return [document["flow"]["step"] for document in found]

    @store_call
    def with_waiting_steps(self, flows: Iterable[ObjectId]) -> set[ObjectId]:
        """Those of these flows of which a step waits or runs."""
        return set(self._scheduled.distinct("flow.id", {"flow.id": {"$in": list(flows)}}))

    @store_call
    def goes_on(self, flow: ObjectId, session: ClientSession | None = None, *, all: bool = False) -> bool:
        """Whether one of its steps waits or runs; with `all`, also one that waited for the end of the flow."""
        query: Document = {"flow.id": flow, **({} if all else {"flow.on": None})}
        newest = [("flow.id", DESCENDING), ("flow.step", DESCENDING)]
        return (
            self._scheduled.find_one(query, {"_id": 1}, sort=newest, hint=scheduled.BY_FLOW, session=session)
            is not None
        )

    def count_failed(self, flow: ObjectId, session: ClientSession) -> int:
        """How many of its steps have ended and not succeeded. Inside a transaction, when all have ended."""
        query = {"flow.id": flow, "flow.on": None, "done": False, "recovered_as": None}
        return self._archived.count_documents(query, hint=archived.BY_FLOW, session=session)

    @store_call
    def results(self, flow: ObjectId, steps: Sequence[JobId], session: ClientSession | None = None) -> list[Document]:
        """What these steps have returned, as it is stored."""
        found: list[Document] = []
        for some in _in_parts(steps):
            query = {"flow.id": flow, "flow.step": {"$in": some}, "done": True}
            fields = {"_id": 0, "flow.step": 1, "result": 1}
            for ended in self._archived.find(query, fields, hint=archived.BY_FLOW, session=session):
                found.append({"step": ended["flow"]["step"], "value": ended.get("result")})
        return found

    @store_call
    def last_jobs(
        self, flow: ObjectId, steps: Sequence[JobId], session: ClientSession | None = None
    ) -> dict[JobId, Document]:
        """Of each of these steps the job that waits or runs, or else the last one that ended: its id and task, and when
        it has ended, `done`. Those that are gone are left out."""
        last: dict[JobId, Document] = {}
        fields = {"flow.step": 1, "task": 1, "done": 1}
        for some in _in_parts(steps):
            query = {"flow.id": flow, "flow.step": {"$in": some}}
            ended = {**query, "$or": [{"done": True}, {"recovered_as": None}]}
            # First those that wait: a job that ends between the two reads is found in one of them.
            waiting = list(self._scheduled.find(query, fields, hint=scheduled.BY_FLOW, session=session))
            found = [*self._archived.find(ended, fields, hint=archived.BY_FLOW, session=session), *waiting]
            last |= {document["flow"]["step"]: document for document in found}
        return last

    @store_call
    def release(self, released: Sequence[Free], holds: int, session: ClientSession | None = None) -> int:
        """Gives these blocked steps their new fields: one write for all that get the same; returns how many there were.
        Those that have been held since then, because their flow was paused, are left as they are (`holds` is how often
        it had been paused)."""
        here = {"lane": BLOCKED_LANE, "flow.held": {"$not": {"$gt": holds}}}
        # With the hint the server need not choose an index again for each of them.
        writes = [
            UpdateMany({"_id": {"$in": list(each.ids)}, **here, **each.where}, {"$set": each.fields}, hint="_id_")
            for each in released
        ]
        return self._scheduled.bulk_write(writes, ordered=False, session=session).matched_count if writes else 0

    def insert(self, jobs: Sequence[Document], session: ClientSession) -> None:
        """Inside the leader's transaction: steps that waited for the end of their flow."""
        if jobs:
            self._scheduled.insert_many(jobs, session=session)

    # -- for people ----------------------------------------------------------------------------------------------

    @store_call
    def hold(self, flow: ObjectId, holds: int, paused: Cancellation) -> int:
        """Takes the waiting steps of a paused flow out of their lanes, and writes on all that have not ended that they
        are held: a leader that decided before it, and was frozen since, cannot release them. On those that were in
        their lanes it also writes that they had been released. Returns how many."""
        not_held = {"flow.held": {"$not": {"$gte": holds}}}
        query = {"flow.id": flow, "lane": {"$gt": "", "$ne": CANCELLED_LANE}, **not_held}
        released = {"$cond": [{"$ne": ["$lane", BLOCKED_LANE]}, True, "$flow.released"]}
        fields: Document = {"lane": BLOCKED_LANE, "flow.held": holds, "flow.released": released}
        if paused.at is not None:
            entry = history_entry(Happened.FLOW_PAUSED, paused.at, paused.by, paused.reason)
            fields["history"] = appended({"$literal": entry})
        return self._scheduled.update_many(query, [{"$set": fields}], hint=scheduled.BY_FLOW).modified_count

    @store_call
    def flag(self, flow: ObjectId, flag: Document, cancels: int) -> None:
        """Raises the cancel flag on the steps that had not ended when the flow was cancelled for this time. Jobs that
        were stored later have this number: a process that stood still meanwhile does not cancel them. Nor does it
        cancel steps that wait for the end of the flow."""
        query = {**_to_cancel(flow), "flow.cancels": {"$not": {"$gte": cancels}}}
        update = {"$set": {"cancel": flag, "lane": CANCELLED_LANE}}
        self._scheduled.update_many(query, update, hint=scheduled.BY_FLOW)

    def count_to_cancel(self, flow: ObjectId, session: ClientSession) -> int:
        """Inside a transaction: how many steps have not ended, and are not cancelled already."""
        return self._scheduled.count_documents(_to_cancel(flow), hint=scheduled.BY_FLOW, session=session)

    @store_call
    def failed(self, flow: ObjectId, limit: int, *, lost: bool) -> list[JobId]:
        """Jobs whose steps have failed by themselves, were cancelled or expired, or with `lost` were lost, and have not
        been recovered."""
        others = [Why.DEPENDENCY_FAILED.value, *(() if lost else (Why.LOST.value,))]
        query = {"flow.id": flow, "done": False, "recovered_as": None, "why": {"$nin": others}}
        return [
            document["_id"] for document in self._archived.find(query, {"_id": 1}, hint=archived.BY_FLOW, limit=limit)
        ]

    @store_call
    def any_cancelled(self, held: Iterable[JobId]) -> bool:
        """Whether the leader has still to archive a cancelled step; held steps are left to their workers."""
        query = {"lane": CANCELLED_LANE, "flow": {"$exists": True}, "_id": {"$nin": list(held)}}
        return self._scheduled.find_one(query, {"_id": 1}, hint=scheduled.DUE) is not None

    @store_call
    def any_waits(self, flows: Sequence[ObjectId], tasks: Iterable[str]) -> bool:
        """Whether a step of these flows and tasks waits for others, or was archived because one of them failed."""
        query = {"flow.id": {"$in": list(flows)}, "task": {"$in": list(tasks)}}
        return bool(flows) and any(
            collection.find_one(query | where, {"_id": 1}, hint=archived.BY_FLOW if ended else scheduled.BY_FLOW)
            for ended, collection, where in self._places
        )

    @store_call
    def known(self, flow: ObjectId, steps: Sequence[JobId]) -> set[JobId]:
        """Those of these that are steps of the flow."""
        return set(self.states(flow, steps))

    @store_call
    def rows(self, flow: ObjectId, fields: Document) -> list[Document]:
        """All jobs of the flow, waiting and ended, with these fields; a job that has just ended may be there twice."""
        query = {"flow.id": flow}
        waiting = list(self._scheduled.find(query, fields, hint=scheduled.BY_FLOW))
        return [*waiting, *self._archived.find(query, fields, hint=archived.BY_FLOW)]

    @store_call
    def counts(self, flows: Sequence[ObjectId]) -> dict[ObjectId, StepCounts]:
        """How many steps of each of these flows wait, run and have ended; recovered ones count once.

        All is read from one snapshot: otherwise a step that ends between two reads would be counted twice. The snapshot
        has every write that was acknowledged before this call, because all writes wait for a majority."""
        if not flows:
            return {}
        with self._scheduled.database.client.start_session(snapshot=True) as session:
            held = list(self._roster.held(session))
            return {flow: self._counts(flow, held, session) for flow in flows}

    def _counts(self, flow: ObjectId, held: Sequence[JobId], session: ClientSession) -> StepCounts:
        match: Document = {"flow.id": flow, "flow.on": None}
        last = {"$or": [{"done": True}, {"recovered_as": None}]}
        lanes = _count_by("lane", self._scheduled, scheduled.BY_FLOW, match, session)
        running = Counter[str]()
        if held and lanes:
            found = self._scheduled.find({"_id": {"$in": held}, **match}, {"lane": 1}, session=session)
            running.update(str(document.get("lane")) for document in found)
        whys = _count_by("why", self._archived, archived.BY_FLOW, {**match, **last}, session)
        return StepCounts(lanes - running, running.total(), whys)

    @store_call
    def remove(self, flow: ObjectId, batch: int) -> int:
        """Removes up to a batch of the ended jobs of a flow that is forgotten; returns how many."""
        found = self._archived.find({"flow.id": flow}, {"_id": 1}, hint=archived.BY_FLOW, limit=batch)
        ids = [document["_id"] for document in found]
        return self._archived.delete_many({"_id": {"$in": ids}}).deleted_count if ids else 0


def _candidates(
    ids: Sequence[JobId], steps: Sequence[Any], flow: Document, job: Document, size: int, *, ended: bool, whole: bool
) -> Candidates | None:
    """The parser; None when somebody has spoiled them by hand."""
    named = [(id, step) for id, step in zip(ids, steps, strict=True) if is_job_id(id) and is_job_id(step)]
    place = flow_of({"flow": {**flow, "step": named[0][1]}}) if named else None
    if place is None:
        return None
    known_ids, known_steps = zip(*named, strict=True)
    return Candidates(known_ids, known_steps, place, job, size, ended, whole, flow.get("released") is True)


def _to_cancel(flow: ObjectId) -> Document:
    return {"flow.id": flow, "flow.on": None, "lane": {"$gt": "", "$ne": CANCELLED_LANE}}


def _count_by(
    field: str, collection: Collection[Document], index: str, match: Document, session: ClientSession
) -> Counter[str]:
    pipeline: list[Document] = [{"$match": match}, {"$group": {"_id": f"${field}", "steps": {"$sum": 1}}}]
    found = collection.aggregate(pipeline, hint=index, session=session)
    return Counter({str(row["_id"]): row["steps"] for row in found})


def _queries(marker: Marker) -> Iterator[tuple[Document, str, str]]:
    """Each with the indexes for jobs that wait, and for those that have ended."""
    of_flow = {"flow.id": marker.flow}
    if marker.all:
        yield of_flow, scheduled.BY_FLOW, archived.BY_FLOW
        return
    for some in _in_parts(marker.ended):
        # Those that wait for very many are found by their flow, and then by what they wait for.
        among: Document = {"$or": [{"flow.many": None}, {"flow.many": {"$in": some}}]}
        query = {**of_flow, "flow.after": {"$in": [*some, marker.flow]}, **among}
        yield query, scheduled.BY_DEPENDENCY, archived.BY_DEPENDENCY
    for some in _in_parts(marker.added):
        yield {**of_flow, "flow.step": {"$in": some}}, scheduled.BY_FLOW, archived.BY_FLOW


def _in_parts(steps: Iterable[JobId]) -> Iterator[list[JobId]]:
    """As many as are asked for in one query."""
    some = list(steps)
    for start in range(0, len(some), _AT_ONCE):
        yield some[start : start + _AT_ONCE]
