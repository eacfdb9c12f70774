"""The steps of flows: jobs that wait in `scheduled`, and jobs that have ended in `archived`, by their flow.

A step is named by its first job. It is pending while a job of it is in `scheduled`; else it has succeeded if any of its
jobs has, and failed otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection as Ids
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from bson import ObjectId
from pymongo import DESCENDING, UpdateMany, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.cursor import Cursor

from recruiter.domain.arguments.results import delegated
from recruiter.domain.flow import FlowStep, StepState
from recruiter.domain.job import Cancellation, Happened, JobId
from recruiter.domain.names import BLOCKED_LANE, CANCELLED_LANE
from recruiter.domain.state import Why
from recruiter.store.batches import delete_unlocked, in_batches, write_unlocked
from recruiter.store.codec import LENIENT, RAW, Document, decode_leniently, flow_of
from recruiter.store.collections import archived, scheduled
from recruiter.store.collections.archived import Archived
from recruiter.store.collections.flows import Marker
from recruiter.store.collections.roster import Roster
from recruiter.store.collections.scheduled import Scheduled
from recruiter.store.errors import store_call
from recruiter.store.fields import is_job_id
from recruiter.store.job_fields import appended, dependencies, history_entry

_MAX_STEPS_PER_QUERY = 1000
MAX_STEPS_PER_TRANSACTION = 500
_SMALL_ARGUMENTS_BYTES = 4_000
LAST_AFTER = 20
"""Number of dependencies that are read of a step that may wait for very many."""
_FAILED_FOR_OTHERS: Document = {"done": False, "why": Why.DEPENDENCY_FAILED.value, "recovered_as": None}
_NOT_SUCCEEDED: Document = {"done": False, "recovered_as": None, "why": {"$ne": Why.NOT_NEEDED.value}}


class ReleasedSteps(NamedTuple):
    """Steps that may start, by the ids of their jobs, and the fields that all of them get."""

    ids: list[JobId]
    fields: Document


class Dependent(NamedTuple):
    """A step that waits for others, or that was archived because a dependency failed."""

    id: JobId
    """Of its job."""
    is_archived: bool
    last_after: tuple[JobId, ...]
    """The last of the steps that it waits for."""
    size: int
    """Bytes of its job."""


class StepCounts(NamedTuple):
    """The numbers of steps of a flow by their state, from one snapshot."""

    waiting: Counter[str]
    """By lane; without running steps."""
    running: int
    """Steps that workers hold."""
    ended: Counter[str]
    """By the reason why."""


class FlowSteps:
    """The steps of flows, in both collections of jobs."""

    def __init__(self, scheduled: Scheduled, archived: Archived, roster: Roster) -> None:
        self._scheduled = scheduled.collection.with_options(codec_options=LENIENT)
        self._archived = archived.collection.with_options(codec_options=LENIENT)
        self._roster = roster

    # -- for the leader ------------------------------------------------------------------------------------------

    def dependents(self, marker: Marker) -> Iterator[list[Dependent]]:
        """The steps that a marker is about, in batches for one transaction each: blocked steps, and steps that were
        archived because a dependency failed."""
        fields: Document = {
            "flow.step": 1,
            "flow.after": {"$slice": -LAST_AFTER},
            "flow.many": {"$slice": -LAST_AFTER},
            "size": {"$bsonSize": "$$ROOT"},
        }
        for query, waiting_index, archived_index in _queries(marker):
            for is_archived, collection, where in self._places:
                raw: Collection[Any] = collection.with_options(codec_options=RAW)
                index = archived_index if is_archived else waiting_index
                cursor = raw.find({**query, **where}, fields, hint=index)
                while found := self._next_dependents(cursor, is_archived):
                    yield from in_batches(found, lambda dependent: dependent.size, MAX_STEPS_PER_TRANSACTION)

    @store_call
    def _next_dependents(self, cursor: Cursor[Any], is_archived: bool) -> list[Dependent]:
        found: list[Dependent] = []
        for document in islice(cursor, MAX_STEPS_PER_TRANSACTION):
            row = decode_leniently(bytes(document.raw))
            flow = row["flow"]
            after = flow.get("many", flow.get("after"))
            last = tuple(filter(is_job_id, after)) if isinstance(after, list) else ()
            found.append(Dependent(row["_id"], is_archived, last, row["size"]))
        return found

    @property
    def _places(self) -> tuple[tuple[bool, Collection[Document], Document], ...]:
        return (False, self._scheduled, {"lane": BLOCKED_LANE}), (True, self._archived, _FAILED_FOR_OTHERS)

    @store_call
    def read(
        self, dependents: Iterable[Dependent], session: ClientSession | None = None
    ) -> dict[JobId, tuple[FlowStep, Document]]:
        """Their places and documents, by the ids of the jobs; steps that are no longer dependents are left out."""
        found: dict[JobId, tuple[FlowStep, Document]] = {}
        wanted = list(dependents)
        for is_archived, collection, where in self._places:
            ids = [dependent.id for dependent in wanted if dependent.is_archived == is_archived]
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
        """The states of these steps; steps that no longer exist are left out."""
        wanted = list(dict.fromkeys(steps))
        # Waiting steps first: a step that ends between the two reads is found by the second.
        states = dict.fromkeys(self.pending(flow, wanted, session), StepState.PENDING)
        fields = {"_id": 0, "flow.step": 1, "done": 1}
        for some in _in_parts(step for step in wanted if step not in states):
            query = {"flow.id": flow, "done": {"$in": [True, False]}, "flow.step": {"$in": some}}
            batch: Document = {"hint": archived.BY_FLOW, "batch_size": _MAX_STEPS_PER_QUERY + 1, "session": session}
            for ended in self._archived.find(query, fields, **batch):
                step = ended["flow"]["step"]
                if ended["done"] or states.get(step) is not StepState.SUCCEEDED:
                    states[step] = StepState.SUCCEEDED if ended["done"] else StepState.FAILED
        failed = [step for step, state in states.items() if state is StepState.FAILED]
        return states | dict.fromkeys(self._skipped(flow, failed, session), StepState.SKIPPED)

    def _skipped(self, flow: ObjectId, failed: Iterable[JobId], session: ClientSession | None) -> Iterator[JobId]:
        """The steps among these that were not needed."""
        for some in _in_parts(failed):
            query = {"flow.id": flow, "done": False, "flow.step": {"$in": some}, "why": Why.NOT_NEEDED.value}
            for ended in self._archived.find(query, {"flow.step": 1}, hint=archived.BY_FLOW, session=session):
                yield ended["flow"]["step"]

    @store_call
    def pending(self, flow: ObjectId, steps: Iterable[JobId], session: ClientSession | None = None) -> set[JobId]:
        """The steps among these that wait or run."""
        found: set[JobId] = set()
        fields: Document = {"_id": 0, "flow.step": 1}
        for some in _in_parts(steps):
            query = {"flow.id": flow, "flow.step": {"$in": some}}
            batch: Document = {"hint": scheduled.BY_FLOW, "batch_size": _MAX_STEPS_PER_QUERY + 1, "session": session}
            found.update(document["flow"]["step"] for document in self._scheduled.find(query, fields, **batch))
        return found

    @store_call
    def has_failed(self, flow: ObjectId) -> bool:
        """Whether a step of the flow has ended without success, and was not recovered."""
        query = {"flow.id": flow, **_NOT_SUCCEEDED}
        return self._archived.find_one(query, {"_id": 1}, hint=archived.BY_FLOW) is not None

    @store_call
    def with_waiting_steps(self, flows: Iterable[ObjectId]) -> set[ObjectId]:
        """The flows among these that have a waiting or running step."""
        return set(self._scheduled.distinct("flow.id", {"flow.id": {"$in": list(flows)}}))

    @store_call
    def goes_on(self, flow: ObjectId, session: ClientSession | None = None, *, all: bool = False) -> bool:
        """Whether a step of it waits or runs; with `all`, including steps that waited for the end of the flow."""
        query: Document = {"flow.id": flow, **({} if all else {"flow.on": None})}
        newest = [("flow.id", DESCENDING), ("flow.step", DESCENDING)]
        return (
            self._scheduled.find_one(query, {"_id": 1}, sort=newest, hint=scheduled.BY_FLOW, session=session)
            is not None
        )

    def count_failed(self, flow: ObjectId, session: ClientSession) -> int:
        """The number of its steps that have ended without success. Inside a transaction, when all have ended."""
        query = {"flow.id": flow, "flow.on": None, **_NOT_SUCCEEDED}
        return self._archived.count_documents(query, hint=archived.BY_FLOW, session=session)

    @store_call
    def results(self, flow: ObjectId, steps: Sequence[JobId], session: ClientSession | None = None) -> list[Document]:
        """The stored results of these steps. A step that returned the results of other steps has their results; it
        names in `missing` the steps among them that have none yet."""
        values: dict[JobId, Any] = {}
        left = list(steps)
        while left:
            for some in _in_parts(left):
                query = {"flow.id": flow, "flow.step": {"$in": some}, "done": True}
                fields = {"_id": 0, "flow.step": 1, "result": 1}
                for ended in self._archived.find(query, fields, hint=archived.BY_FLOW, session=session):
                    values[ended["flow"]["step"]] = ended.get("result")
            others = {step for value in values.values() for step in _all(delegated(value))}
            left = [step for step in others if step not in values and step not in left]
        return [resolved(step, values) for step in steps if step in values]

    @store_call
    def last_jobs(
        self, flow: ObjectId, steps: Sequence[JobId], session: ClientSession | None = None
    ) -> dict[JobId, Document]:
        """The waiting or running job of each of these steps, or else the last job that ended: its id and task, and
        `done` if it has ended. Steps that no longer exist are left out."""
        last: dict[JobId, Document] = {}
        fields = dict.fromkeys(("flow.id", "flow.step", "flow.name", "flow.part", "task", "done", "why", "reason"), 1)
        for some in _in_parts(steps):
            query = {"flow.id": flow, "flow.step": {"$in": some}}
            ended = {**query, "$or": [{"done": True}, {"recovered_as": None}]}
            # Waiting jobs first: a job that ends between the two reads is found by the second.
            waiting = list(self._scheduled.find(query, fields, hint=scheduled.BY_FLOW, session=session))
            found = [*self._archived.find(ended, fields, hint=archived.BY_FLOW, session=session), *waiting]
            last |= {document["flow"]["step"]: document for document in found}
        return last

    def release(self, released: Sequence[ReleasedSteps]) -> tuple[int, list[JobId]]:
        """Gives these blocked steps their new fields, outside of the transaction that decided it: steps that were held
        since are left unchanged. Returns how many there were, and the steps that another transaction has locked."""
        ids = [id for steps in released for id in steps.ids]
        return write_unlocked(self._scheduled, partial(self._release, released, {"flow.held": None}), lambda: ids)

    def release_now(self, released: Sequence[ReleasedSteps], session: ClientSession) -> int:
        """The same inside the transaction that decides it."""
        return self._release(released, {}, None, session) if released else 0

    @store_call
    def _release(
        self,
        released: Sequence[ReleasedSteps],
        conditions: Document,
        some: Ids[JobId] | None,
        session: ClientSession | None,
    ) -> int:
        # With the hint the server need not choose an index again for each of them.
        writes = [
            UpdateMany(
                {
                    "_id": {"$in": [id for id in steps.ids if some is None or id in some]},
                    "lane": BLOCKED_LANE,
                    **conditions,
                },
                {"$set": steps.fields},
                hint="_id_",
            )
            for steps in released
        ]
        return self._scheduled.bulk_write(writes, ordered=False, session=session).matched_count

    def let_wait(self, steps: Mapping[JobId, FlowStep], session: ClientSession) -> None:
        """Inside the leader's transaction: these blocked steps wait for more steps."""
        self._scheduled.bulk_write(
            [
                UpdateOne({"_id": id, "lane": BLOCKED_LANE}, {"$set": dependencies(place)})
                for id, place in steps.items()
            ],
            session=session,
        )

    def insert(self, jobs: Sequence[Document], session: ClientSession) -> None:
        """Inside the leader's transaction: steps that waited for the end of their flow."""
        if jobs:
            self._scheduled.insert_many(jobs, session=session)

    # -- for people ----------------------------------------------------------------------------------------------

    @store_call
    def first_waiting(self, flow: ObjectId, fields: Document) -> Document | None:
        """The job of a step that waits for nothing in its flow."""
        query = {"flow.id": flow, "lane": {"$gt": "", "$ne": BLOCKED_LANE}}
        return self._scheduled.find_one(query, fields, hint=scheduled.BY_FLOW)

    @store_call
    def first_failed(self, flow: ObjectId, fields: Document) -> Document | None:
        """The job of a step that ran and failed; not of a step that was skipped because of it."""
        query = {
            "flow.id": flow,
            **_NOT_SUCCEEDED,
            "why": {"$nin": [Why.NOT_NEEDED.value, Why.DEPENDENCY_FAILED.value]},
        }
        return self._archived.find_one(query, fields, hint=archived.BY_FLOW)

    @store_call
    def arguments(self, jobs: Sequence[JobId]) -> dict[JobId, Any]:
        """The arguments of these jobs of steps; large ones are left out."""
        is_small = {"$lt": [{"$bsonSize": {"args": "$args"}}, _SMALL_ARGUMENTS_BYTES]}
        places, query = (self._scheduled, self._archived), {"_id": {"$in": list(jobs)}}
        fields = {"args": {"$cond": [is_small, "$args", {}]}}
        return {job["_id"]: job.get("args") for place in places for job in place.find(query, fields)}

    def hold(self, flow: ObjectId, holds: int, paused: Cancellation) -> list[JobId]:
        """Takes the waiting steps of a paused flow out of their lanes, and writes on all that have not ended that they
        are held: a leader that decided before it, and was frozen since, cannot release them. On those that were in
        their lanes it also writes that they had been released. Jobs that were stored after this pause have its number,
        and are left out: they are blocked, and a write that comes after the flow was resumed must not hold them.
        Returns the steps that another transaction has locked."""
        not_held = {name: {"$not": {"$gte": holds}} for name in ("flow.held", "flow.holds")}
        query = {"flow.id": flow, "lane": {"$gt": "", "$ne": CANCELLED_LANE}, **not_held}
        released = {"$cond": [{"$ne": ["$lane", BLOCKED_LANE]}, True, "$flow.released"]}
        fields: Document = {"lane": BLOCKED_LANE, "flow.held": holds, "flow.released": released}
        if paused.at is not None:
            entry = history_entry(Happened.FLOW_PAUSED, paused.at, paused.by, paused.reason)
            fields["history"] = appended({"$literal": entry})
        return self._update_unlocked(query, [{"$set": fields}])

    def flag(self, flow: ObjectId, flag: Document, cancels: int) -> list[JobId]:
        """Raises the cancel flag on the steps that had not ended when the flow was cancelled for this time. Jobs that
        were stored later have this number: a process that stood still meanwhile does not cancel them. Nor does it
        cancel steps that wait for the end of the flow. Returns the steps that another transaction has locked."""
        query = {**_to_cancel(flow), "flow.cancels": {"$not": {"$gte": cancels}}}
        return self._update_unlocked(query, [{"$set": {"cancel": {"$literal": flag}, "lane": CANCELLED_LANE}}])

    def _update_unlocked(self, query: Document, update: list[Document]) -> list[JobId]:
        @store_call
        def write(some: Ids[JobId] | None, session: ClientSession | None) -> int:
            these = query if some is None else {**query, "_id": {"$in": list(some)}}
            return self._scheduled.update_many(these, update, hint=scheduled.BY_FLOW, session=session).modified_count

        @store_call
        def ids() -> list[JobId]:
            return [document["_id"] for document in self._scheduled.find(query, {"_id": 1}, hint=scheduled.BY_FLOW)]

        return write_unlocked(self._scheduled, write, ids)[1]

    def count_to_cancel(self, flow: ObjectId, session: ClientSession) -> int:
        """Inside a transaction: how many steps have not ended, and are not cancelled already."""
        return self._scheduled.count_documents(_to_cancel(flow), hint=scheduled.BY_FLOW, session=session)

    @store_call
    def failed(self, flow: ObjectId, limit: int, *, lost: bool) -> list[JobId]:
        """Jobs whose steps have failed by themselves, were cancelled or expired, or with `lost` were lost, and have not
        been recovered."""
        others = [Why.DEPENDENCY_FAILED.value, Why.NOT_NEEDED.value, *(() if lost else (Why.LOST.value,))]
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
    def named(
        self, flow: ObjectId, names: Sequence[str] | None = None, session: ClientSession | None = None
    ) -> dict[str, Document]:
        """The last job of each step with one of these names, or with any name: its id, its step and its task, and
        the step that added it."""
        query = {"flow.id": flow, "flow.name": {"$gt": ""} if names is None else {"$in": list(names)}}
        fields = dict.fromkeys(("flow.name", "flow.step", "flow.adder", "task", "done", "recovered_as"), 1)
        # Waiting jobs first: a job that ends between the two reads is found by the second.
        waiting = list(self._scheduled.find(query, fields, hint=scheduled.BY_FLOW, session=session))
        ended = self._archived.find(query, fields, hint=archived.BY_FLOW, session=session)
        last = sorted(ended, key=lambda job: (bool(job.get("done")), job.get("recovered_as") is None))
        return {job["flow"]["name"]: job for job in (*last, *waiting)}

    @store_call
    def known(self, flow: ObjectId, steps: Sequence[JobId]) -> set[JobId]:
        """The steps of the flow among these."""
        return set(self.states(flow, steps))

    @store_call
    def rows(self, flow: ObjectId, fields: Document) -> list[Document]:
        """All jobs of the flow, waiting and ended, with these fields; a job that has just ended may be there twice."""
        query = {"flow.id": flow}
        waiting = list(self._scheduled.find(query, fields, hint=scheduled.BY_FLOW))
        return [*waiting, *self._archived.find(query, fields, hint=archived.BY_FLOW)]

    @store_call
    def counts(self, flows: Sequence[ObjectId]) -> dict[ObjectId, StepCounts]:
        """The numbers of steps of each of these flows that wait, run and have ended; recovered steps count once.

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
        return delete_unlocked(self._archived, [document["_id"] for document in found])


def _all(delegated: JobId | list[JobId] | None) -> list[JobId]:
    return delegated if isinstance(delegated, list) else [] if delegated is None else [delegated]


def resolved(step: JobId, values: Mapping[JobId, Any], around: frozenset[JobId] = frozenset()) -> Document:
    """The result of a step, after the results that it stands for; steps that stand for each other have none."""
    last, seen = step, set(around)
    while last not in seen and last in values:
        seen.add(last)
        others = delegated(values[last])
        if isinstance(others, list):
            items = [resolved(other, values, frozenset(seen)) for other in others]
            missing = [other for item in items for other in item.pop("missing", ())]
            return {"step": step, "items": items, **({"missing": missing} if missing else {})}
        if others is None:
            return {"step": step, "value": values[last], **({} if last == step else {"of": last})}
        last = others
    return {"step": step, "value": None, **({} if last in seen else {"missing": [last]})}


def _to_cancel(flow: ObjectId) -> Document:
    return {"flow.id": flow, "flow.on": None, "lane": {"$gt": "", "$ne": CANCELLED_LANE}}


def _count_by(
    field: str, collection: Collection[Document], index: str, match: Document, session: ClientSession
) -> Counter[str]:
    pipeline: list[Document] = [{"$match": match}, {"$group": {"_id": f"${field}", "steps": {"$sum": 1}}}]
    found = collection.aggregate(pipeline, hint=index, session=session)
    return Counter({str(row["_id"]): row["steps"] for row in found})


def _queries(marker: Marker) -> Iterator[tuple[Document, str, str]]:
    """Each with the indexes for waiting jobs and for ended jobs."""
    of_flow = {"flow.id": marker.flow}
    if marker.all:
        yield of_flow, scheduled.BY_FLOW, archived.BY_FLOW
        return
    for some in _in_parts(marker.ended):
        # Steps with very many dependencies are found by their flow, and then by these dependencies.
        among: Document = {"$or": [{"flow.many": None}, {"flow.many": {"$in": some}}]}
        query = {**of_flow, "flow.after": {"$in": [*some, marker.flow]}, **among}
        yield query, scheduled.BY_DEPENDENCY, archived.BY_DEPENDENCY
    for some in _in_parts(marker.added):
        yield {**of_flow, "flow.step": {"$in": some}}, scheduled.BY_FLOW, archived.BY_FLOW


def _in_parts(steps: Iterable[JobId]) -> Iterator[list[JobId]]:
    """As many as are asked for in one query."""
    some = list(steps)
    for start in range(0, len(some), _MAX_STEPS_PER_QUERY):
        yield some[start : start + _MAX_STEPS_PER_QUERY]
