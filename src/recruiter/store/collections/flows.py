"""`flows`: one document for each flow; and `flow_markers`: the flows that the leader must look at again.

    flows         {_id, name, username, created_at, ends: [{on, job}], run: [on], holds, cancels, changes,
                   paused: {at, by, reason}, cancel: {at, by, reason}, ended: {at, state}, forgotten}
    flow_markers  {_id, flow, ended: [steps], added: [steps], all: true}

The steps of a flow are written on its jobs, not here: steps that end at the same time must not wait for each other.
Workers never write a flow's document. Every transaction that ends, adds or recovers a step leaves a *marker*, which is
a separate document. The leader reads markers, checks the dependents of their steps, and removes the markers that it has
read (steps/release.py).
"""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel, ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.read_concern import ReadConcern

from recruiter.domain.flow import FlowState, FlowStep, On
from recruiter.domain.job import Cancellation, JobId
from recruiter.domain.statistics import JobEnd
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.errors import InvalidFlow, UnreadableDocument
from recruiter.store import fields
from recruiter.store.codec import RAW, Document, new_id, this_document
from recruiter.store.errors import store_call
from recruiter.store.job_fields import cancellation_from
from recruiter.store.reading import parse_one, parsed, readable

NAME, MARKERS = "flows", "flow_markers"
BY_CREATION, BY_END, BY_OWNER = "by_creation", "by_end", "by_owner"
INDEXES = [
    IndexModel([("created_at", DESCENDING)], name=BY_CREATION),
    IndexModel([("ended.at", ASCENDING)], name=BY_END, partialFilterExpression={"ended.at": {"$exists": True}}),
    IndexModel(
        [("username", ASCENDING), ("created_at", DESCENDING)],
        name=BY_OWNER,
        partialFilterExpression={"username": {"$gt": ""}},
    ),
]
VALIDATOR: Document = {
    "$jsonSchema": {
        "required": ["name", "created_at"],
        "properties": {
            "_id": {"bsonType": "objectId"},
            "name": {"bsonType": "string"},
            "created_at": {"bsonType": "date"},
            "ends": {"bsonType": "array"},
            "ended": {"bsonType": "object"},
        },
    }
}
MARKERS_VALIDATOR: Document = {"$jsonSchema": {"properties": {"flow": {"bsonType": "objectId"}}}}
_THERE: Document = {"forgotten": None}
TOUCH: Document = {"$inc": {"changes": 1}}
"""Every transaction that rests on a flow writes its document, so that two of them conflict. It must change something:
an update that changes nothing conflicts with nothing."""
GO_ON: Document = {**TOUCH, "$unset": {"ended": ""}}
"""The flow has another step: if it had ended, the leader decides again how it ends."""
UNCANCEL: Document = {**TOUCH, "$unset": {"ended": "", "cancel": ""}}
"""The same for a cancelled flow that a user resumes."""


@dataclass(frozen=True, slots=True)
class StoredFlow:
    """A flow, without its steps: these are jobs."""

    id: ObjectId
    name: str
    created_at: datetime
    owner: str | None = None
    ends: tuple[tuple[On, Document], ...] = ()
    """The steps that wait for the end of the flow, as documents of jobs to be."""
    run: frozenset[On] = frozenset()
    """The ends whose steps have been stored: each runs once."""
    paused: Cancellation | None = None
    holds: int = 0
    """The number of pauses. Each job that is stored later has this number, and a late pause skips it."""
    cancel: Cancellation | None = None
    cancels: int = 0
    """The number of cancellations. Each job that is stored later has this number, and a late cancel skips it."""
    ended_at: datetime | None = None
    outcome: FlowState | None = None
    """None until the leader has found that all steps have ended."""

    @property
    def state(self) -> FlowState:
        if self.outcome is not None:
            return self.outcome
        return FlowState.PAUSED if self.paused is not None else FlowState.RUNNING


class FlowPlace(NamedTuple):
    """A place in the list of flows: after this many flows of this time."""

    created_at: datetime
    number: int


@dataclass(frozen=True, slots=True)
class Marker:
    """A request to the leader to check steps of a flow."""

    flow: ObjectId
    ended: frozenset[JobId] = frozenset()
    """Steps that have ended, or wait again: the leader checks their dependents."""
    added: frozenset[JobId] = frozenset()
    """Steps that the leader checks themselves."""
    all: bool = False
    """The leader checks every step of the flow."""
    id: ObjectId = field(default_factory=new_id)


class FlowCollection:
    """The flows, and the markers by which the leader learns which of them it must check."""

    def __init__(self, flows: Collection[Document], markers: Collection[Document]) -> None:
        self.collection = flows
        self.markers = markers
        self._raw: Collection[Any] = flows.with_options(codec_options=RAW)
        # The decision is made in a transaction, whose snapshot may be older than the answer of a local read. A marker
        # that a majority has is in each later snapshot, with all other writes of its transaction.
        self._raw_markers: Collection[Any] = markers.with_options(
            codec_options=RAW, read_concern=ReadConcern("majority")
        )

    # -- markers -----------------------------------------------------------------------------------------------

    def mark_ended(self, ends: Iterable[JobEnd], session: ClientSession) -> None:
        """Inside the transaction that archives these: leaves a marker for the steps of flows among them."""
        self.leave(markers_of(ends), session)

    def leave(self, markers: Sequence[Marker], session: ClientSession) -> None:
        if markers:
            self.markers.insert_many([marker_document(marker) for marker in markers], session=session)

    @store_call
    def next_markers(self, limit: int, skip: Ids[ObjectId] = ()) -> Parsed[Marker]:
        """The oldest markers, except of flows in `skip`."""
        query = {"flow": {"$nin": list(skip)}} if skip else {}
        return parsed(MARKERS, self._raw_markers.find(query, limit=limit).sort("_id", ASCENDING), _marker)

    @store_call
    def remove_markers(self, ids: Sequence[Any], unreadable: Sequence[Unreadable] = ()) -> None:
        """Only these: others may have come since they were read."""
        self.markers.delete_many({"_id": {"$in": list(ids)}})
        for marker in unreadable:
            self.markers.delete_one(this_document(marker.raw))

    @store_call
    def with_markers(self, flows: Sequence[ObjectId]) -> set[ObjectId]:
        return set(self.markers.distinct("flow", {"flow": {"$in": list(flows)}})) if flows else set()

    @store_call
    def marked(self) -> list[ObjectId]:
        return [flow for flow in self.markers.distinct("flow") if isinstance(flow, ObjectId)]

    @store_call
    def count_markers(self) -> int:
        return self.markers.estimated_document_count()

    # -- flows -------------------------------------------------------------------------------------------------

    @store_call
    def get(self, id: ObjectId, session: ClientSession | None = None) -> StoredFlow | None:
        """Raises UnreadableDocument."""
        found = self._raw.find_one({"_id": id, **_THERE}, session=session)
        return None if found is None else readable(parse_one(NAME, bytes(found.raw), _flow))

    @store_call
    def get_many(self, ids: Iterable[ObjectId], session: ClientSession | None = None) -> dict[ObjectId, StoredFlow]:
        """The flows among these that exist and can be read."""
        found = self._raw.find({"_id": {"$in": list(ids)}, **_THERE}, session=session)
        return {flow.id: flow for flow in parsed(NAME, found, _flow)}

    @store_call
    def which_exist(self, ids: Iterable[ObjectId]) -> set[ObjectId]:
        """The flows among these that exist, even if they cannot be read."""
        found = self.collection.find({"_id": {"$in": list(ids)}, **_THERE}, {"_id": 1})
        return {document["_id"] for document in found}

    @store_call
    def latest(
        self, limit: int, owner: str | None = None, running: bool | None = None, after: FlowPlace | None = None
    ) -> Parsed[StoredFlow]:
        """Up to `limit` flows, the newest first: `after` this place, of this owner, and only running or ended ones."""
        query: Document = dict(_THERE) if owner is None else {"username": owner, **_THERE}
        if after is not None:
            query["created_at"] = {"$lte": after.created_at}
        if running is not None:
            query["ended"] = {"$exists": not running}
        index = BY_CREATION if owner is None else BY_OWNER
        found = self._raw.find(query, {"ends": 0}, hint=index).sort("created_at", DESCENDING).limit(limit)
        return parsed(NAME, found if after is None else found.skip(after.number), _flow)

    @store_call
    def ended_before(self, than: datetime, failed_than: datetime, limit: int) -> list[ObjectId]:
        """Flows that may be forgotten, the oldest first; including flows whose jobs have not all been removed yet."""
        succeeded = {"ended.state": FlowState.SUCCEEDED.value, "ended.at": {"$lt": than}}
        others = {"ended.state": {"$ne": FlowState.SUCCEEDED.value}, "ended.at": {"$lt": failed_than}}
        query = {"$or": [succeeded, others], "ended.at": {"$lt": max(than, failed_than)}}
        found = self.collection.find(query, {"_id": 1}, hint=BY_END, limit=limit).sort("ended.at", ASCENDING)
        return [document["_id"] for document in found]

    def touch(self, id: ObjectId, session: ClientSession) -> None:
        """Inside the leader's transaction: conflicts with transactions that pause, cancel or forget this flow."""
        self.collection.update_one({"_id": id}, TOUCH, session=session)

    def conclude(
        self, id: ObjectId, state: FlowState | None, at: datetime, run: Iterable[On], session: ClientSession
    ) -> None:
        """Inside the leader's transaction: the flow has ended, or continues. `run` are the steps that waited for
        the end and have been made."""
        update: Document = {**TOUCH, "$addToSet": {"run": {"$each": [on.value for on in run]}}}
        if state is None:
            update["$unset"] = {"ended": ""}
        else:
            update["$set"] = {"ended": {"at": at, "state": state.value}}
        self.collection.update_one({"_id": id}, update, session=session)

    def pause(self, id: ObjectId, flag: Document, session: ClientSession) -> int:
        """Inside a transaction that has read the flow: pauses; returns how often it has been paused now."""
        return self._count_up(id, "holds", {"$set": {"paused": flag}}, session)

    def cancel(self, id: ObjectId, flag: Document, session: ClientSession) -> int:
        """The same for cancelling."""
        return self._count_up(id, "cancels", {"$set": {"cancel": flag}, "$unset": {"ended": ""}}, session)

    def _count_up(self, id: ObjectId, counter: str, update: Document, session: ClientSession) -> int:
        after = self.collection.find_one_and_update(
            {"_id": id},
            {**update, "$inc": {counter: 1, "changes": 1}},
            {counter: 1},
            return_document=ReturnDocument.AFTER,
            session=session,
        )
        assert after is not None  # the transaction has read it
        return int(after[counter])

    def lift_cancel(self, id: ObjectId, session: ClientSession) -> None:
        """Inside a transaction: the flow is no longer cancelled."""
        self.collection.update_one({"_id": id, **_THERE}, UNCANCEL, session=session)

    def resume(self, id: ObjectId, session: ClientSession) -> None:
        self.collection.update_one({"_id": id}, {**TOUCH, "$unset": {"paused": ""}}, session=session)

    @store_call
    def look_again_unless(self, id: ObjectId, holds: int) -> None:
        """After the steps of a paused flow have been held: if it was resumed before that, they must be looked at."""
        if self.collection.find_one({"_id": id, "holds": holds, "paused": {"$exists": True}}, {"_id": 1}) is None:
            self.markers.insert_one(marker_document(Marker(id, all=True)))

    @store_call
    def paused_among(self, ids: Iterable[ObjectId]) -> set[ObjectId]:
        query = {"_id": {"$in": list(ids)}, "paused": {"$exists": True}}
        return {document["_id"] for document in self.collection.find(query, {"_id": 1})}

    def forget(self, id: ObjectId, session: ClientSession) -> bool:
        """Inside a transaction: from now on it is as if there were no such flow. False if it has not ended."""
        ended, forgotten = {"_id": id, "ended.at": {"$exists": True}}, {**TOUCH, "$set": {"forgotten": True}}
        return self.collection.update_one(ended, forgotten, session=session).matched_count == 1

    @store_call
    def remove(self, id: ObjectId) -> None:
        """When its jobs have been removed."""
        self.collection.delete_one({"_id": id, "forgotten": True})

    @store_call
    def unreadable(self, limit: int) -> Sequence[Any]:
        return parsed(NAME, self._raw.find({}, limit=limit), _flow).unreadable


def flow_record(flow: StoredFlow) -> Document:
    document: Document = {"_id": flow.id, "name": flow.name, "created_at": flow.created_at}
    if flow.owner is not None:
        document["username"] = flow.owner
    if flow.ends:
        document["ends"] = [{"on": on.value, "job": job} for on, job in flow.ends]
    return document


def adding_steps(flow: ObjectId, steps: Iterable[FlowStep], *, cancelled: bool) -> tuple[Document, Document]:
    """The query and the update of a flow that gets these steps, for the transaction that stores them. The query finds
    nothing if the flow was forgotten, or was cancelled; with `cancelled`, the update lets a cancelled flow go on.

    The update conflicts with every transaction that forgets, cancels or concludes the flow. If the flow had ended, it
    goes on; but a job that waits for the end (`on`) changes nothing about the end.
    """
    query: Document = {"_id": flow, **_THERE}
    if all(step.on is not None for step in steps):
        return query, TOUCH
    if not cancelled:
        return {**query, "cancel": None}, GO_ON
    return query, UNCANCEL


def cancels_of(flow: Document) -> int:
    return int(fields.whole(flow, "cancels", 0))


def numbers_of(flow: Document) -> Document:
    """The fields of a step that is stored now: the numbers of cancellations and pauses of its flow so far. A late write
    of one of these requests skips the step."""
    numbers = {"flow.cancels": cancels_of(flow), "flow.holds": int(fields.whole(flow, "holds", 0))}
    return {name: number for name, number in numbers.items() if number}


def cancelled_error(flow: Document) -> InvalidFlow:
    """The error for steps that are added to a cancelled flow."""
    cancel = cancellation_from(flow.get("cancel"))
    by = "somebody" if cancel is None or cancel.by is None else cancel.by
    name, id = flow.get("name"), flow["_id"]
    return InvalidFlow(f"flow {name!r} ({id}) was cancelled by {by}; recover it before you add steps")


def markers_of(ends: Iterable[JobEnd]) -> list[Marker]:
    """The markers that must be left when these are archived: one for each flow that they are steps of."""
    by_flow: dict[ObjectId, set[JobId]] = {}
    for end in ends:
        if end.flow is not None and end.step is not None:
            by_flow.setdefault(end.flow, set()).add(end.step)
    return [Marker(flow, ended=frozenset(steps)) for flow, steps in by_flow.items()]


def marker_document(marker: Marker) -> Document:
    document: Document = {"_id": marker.id, "flow": marker.flow}
    for name in _LISTS:
        if steps := getattr(marker, name):
            document[name] = list(steps)
    return document | ({"all": True} if marker.all else {})


def merged(markers: Iterable[Marker]) -> dict[ObjectId, Marker]:
    """One marker for each flow, with all steps of its markers."""
    by_flow: dict[ObjectId, list[Marker]] = {}
    for marker in markers:
        by_flow.setdefault(marker.flow, []).append(marker)
    return {
        flow: Marker(
            flow,
            ended=frozenset().union(*(marker.ended for marker in of_flow)),
            added=frozenset().union(*(marker.added for marker in of_flow)),
            all=any(marker.all for marker in of_flow),
        )
        for flow, of_flow in by_flow.items()
    }


def _flow(document: Document) -> StoredFlow:
    ended = fields.mapping(document, "ended", None)
    return StoredFlow(
        id=_object_id(document, "_id"),
        name=fields.text(document, "name"),
        created_at=fields.moment(document, "created_at"),
        owner=fields.text(document, "username", None),
        ends=tuple(fields.array(document, "ends", _end, ())),
        run=frozenset(On(on) for on in fields.texts(document, "run", ())),
        paused=cancellation_from(document.get("paused")),
        holds=fields.whole(document, "holds", 0),
        cancel=cancellation_from(document.get("cancel")),
        cancels=cancels_of(document),
        ended_at=None if ended is None else fields.moment(ended, "at"),
        outcome=None if ended is None else FlowState(fields.text(ended, "state")),
    )


def _end(place: str, value: Any) -> tuple[On, Document]:
    each = fields.mapping({place: value}, place)
    return On(fields.text(each, "on")), fields.mapping(each, "job")


def _marker(document: Document) -> Marker:
    steps = {name: frozenset(fields.array(document, name, fields.job_id, ())) for name in _LISTS}
    return Marker(
        _object_id(document, "flow"),
        ended=steps["ended"],
        added=steps["added"],
        # Markers of schema 0 name steps in other fields; to look at every step is always right.
        all=any(document.get(name) for name in ("all", "succeeded", "dependents")),
        id=_object_id(document, "_id"),
    )


_LISTS = ("ended", "added")


def _object_id(document: Document, name: str) -> ObjectId:
    value = document.get(name)
    if not isinstance(value, ObjectId):
        raise UnreadableDocument(f"{name} must be an ObjectId")
    return value
