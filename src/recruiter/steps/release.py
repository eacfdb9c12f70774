"""Release: the steps of flows that wait for others start when these have ended, or are archived if one has failed.

Workers that settle the last of ten thousand steps at the same moment must not wait for each other, so nobody counts
down. Every transaction that ends, adds or recovers a step leaves a *marker*. A marker says nothing but
"look here again". The leader

    1. reads some markers,
    2. reads the steps that wait for the steps they name, or that they name themselves,
    3. reads the states of what those wait for, and decides,
    4. writes the decisions in transactions that are fenced by its lease, and then removes these markers, by id.

A few steps are released in the transaction that decides it; many at once, right after it: MongoDB 6 takes four times as
long to change an indexed field inside a transaction. That they may start stays true whatever happens, unless their flow
is paused; so the leader looks at the flow once more, and takes them back if it was. Only a leader that froze between
the two could let steps of a paused flow start.

Each decision is made from what was true after the marker was left, and whatever changes after that leaves another
marker. So it may be done twice, by two leaders, or be cut off in the middle: nothing is missed and nothing happens
twice. A decision matches only a step that is still blocked. In the transaction everything is read again: what was read
before it may have been rolled back with a primary that failed. Most looks find that others have to end first: they
read little, write nothing, and only remove their markers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TypeAlias, TypeVar

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from recruiter.domain.flow import (
    FlowState,
    FlowStep,
    StepState,
    Verdict,
    culprits,
    due_at_the_end,
    outcome,
    verdict,
)
from recruiter.domain.job import JobId, expiry
from recruiter.domain.retry.decision import after
from recruiter.domain.state import Why
from recruiter.store import outcomes
from recruiter.store.codec import LARGEST_JOB, Document, anew, archived_from, encode, encode_job, lane_of
from recruiter.store.collections.flows import Flow, Marker, merged
from recruiter.store.database import Store
from recruiter.store.flow_steps import Candidate, Found
from recruiter.store.outcomes import OutcomeBatch
from recruiter.store.transactions import InTransaction

T = TypeVar("T")
Free: TypeAlias = tuple[JobId, Document]
"""A step that may start, and its new fields."""

MARKERS_AT_ONCE = 500
STEPS_AT_ONCE = 500
"""Steps that are decided in one transaction."""
FEW = 20
"""So many steps are released in the transaction that decides it."""
_LARGEST = 2 * LARGEST_JOB
"""Bytes of results that one transaction copies at most, near enough."""


@dataclass
class Released:
    """What a look has led to."""

    markers: int = 0
    released: int = 0
    failed: list[tuple[JobId, str]] = field(default_factory=list)
    """Jobs that were archived because a dependency failed, and why."""
    brought_back: int = 0
    ended: list[tuple[Flow, FlowState]] = field(default_factory=list)
    """Flows that have ended, and how."""

    @property
    def anything(self) -> bool:
        return bool(self.released or self.failed or self.brought_back or self.ended)

    def add(self, other: Released) -> None:
        self.released += other.released
        self.failed += other.failed
        self.brought_back += other.brought_back
        self.ended += other.ended


def release(
    store: Store, now: datetime, term: int, holder: str, enough: Callable[[], bool] = lambda: False
) -> Released:
    """Looks once where markers say. Only for the leader. Raises Superseded, and StoreError when the outcome of a write
    is unknown; then no more may be written with this term.

    If there is very much to do, and it has taken `enough` time, the rest is left to the next look: workers wait for
    what was released. The markers stay for that.
    """
    found = store.flows.next_markers(MARKERS_AT_ONCE)
    report = Released(len(found) + len(found.unreadable))
    looked: set[ObjectId] = set()
    for flow, marker in merged(found).items():
        look = _Look(store, now, term, holder, flow)
        if look.at(marker, enough):
            looked.add(flow)
        report.add(look.report)
        if enough():
            break
    if report.markers:
        store.flows.remove_markers([marker.id for marker in found if marker.flow in looked], found.unreadable)
    return report


class _Look:
    """One look at one flow."""

    def __init__(self, store: Store, now: datetime, term: int, holder: str, flow: ObjectId) -> None:
        self._store = store
        self._steps = store.flow_steps
        self._now = now
        self._term = term
        self._holder = holder
        self._id = flow
        self.report = Released()

    def at(self, marker: Marker, enough: Callable[[], bool]) -> bool:
        """Returns whether nothing is left to be looked at."""
        flow = self._store.flows.get_many([self._id]).get(self._id)
        if flow is not None:
            self._repeat_what_was_asked(flow, marker)
        found = self._steps.candidates(marker)
        for start in range(0, len(found), STEPS_AT_ONCE):
            if start and enough():
                return False
            some = found[start : start + STEPS_AT_ONCE]
            promising = self._promising(some, paused=flow is not None and flow.paused is not None)
            while promising:
                handled, report, free = self._lead(partial(self._decide, promising[:STEPS_AT_ONCE]))
                if free:
                    self._steps.release(free)
                    self._hold_if_paused()
                self.report.add(report)
                promising = promising[handled:]
        if flow is not None and self._steps.goes_on(self._id) == flow.state.ended:
            self.report.add(self._lead(self._conclude))
        return True

    def _lead(self, write: Callable[[InTransaction], T]) -> T:
        return self._store.transactions.lead(self._term, self._holder, write)

    def _repeat_what_was_asked(self, flow: Flow, marker: Marker) -> None:
        """A step may have been added to a flow that was cancelled; and the process that paused it may have died before
        every step was held."""
        if flow.cancel is not None:
            self._steps.flag(self._id, flow.cancel._asdict())
        elif flow.paused is not None and marker.all:
            self._steps.hold(self._id)

    def _hold_if_paused(self) -> None:
        """Somebody may have paused it since the transaction."""
        flow = self._store.flows.get_many([self._id]).get(self._id)
        if flow is not None and flow.paused is not None:
            self._steps.hold(self._id)

    # -- before the transaction ----------------------------------------------------------------------------------

    def _promising(self, some: Sequence[Found], *, paused: bool) -> list[Candidate]:
        """The steps for which there may be something to do, each after those that fail before it."""
        found: dict[JobId, Candidate] = {}
        states: dict[JobId, StepState] = {}
        while some:
            candidates = self._steps.look_at([each for each in some if each.id not in found])
            wanted = {step for each in candidates for step in each.place.after}.difference(states)
            states |= self._steps.states(self._id, wanted)
            failing: set[JobId] = set()
            for each in candidates:
                what = verdict(each.place, states)
                if what is Verdict.FAIL and not each.ended:
                    failing.add(each.place.step)
                    states[each.place.step] = StepState.FAILED
                if not self._rests(each, what, paused):
                    found[each.id] = each
            few = failing and len(found) < STEPS_AT_ONCE
            some = self._steps.candidates(Marker(self._id, ended=frozenset(failing))) if few else ()
        return list(found.values())

    def _rests(self, each: Candidate, what: Verdict, paused: bool) -> bool:
        """Whether it stays as it is."""
        if each.ended:
            return what is Verdict.FAIL
        if what is Verdict.WAIT or (what is Verdict.RELEASE and paused):
            return True
        if each.whole or what is Verdict.FAIL:
            return False
        # It waits for very many, and the last of them have ended: is another one pending?
        whole = self._steps.whole([each])
        return any(self._steps.pending_among(self._id, place.after) for _, place, _ in whole)

    # -- in the transaction --------------------------------------------------------------------------------------

    def _decide(self, some: Sequence[Candidate], session: InTransaction) -> tuple[int, Released, list[Free]]:
        """Writes what follows for as many as fit; returns how many, what became of them, and those that are still to
        be released."""
        flow = self._store.flows.get_many([self._id], session).get(self._id)
        whole = {id: (place, document) for id, place, document in self._steps.whole(some, session)}
        wanted = {step for place, _ in whole.values() for step in place.after}
        states = self._steps.states(self._id, wanted, session)
        ended = {each.id for each in some if each.ended}
        failed = [step for step, state in states.items() if state is StepState.FAILED]
        last = self._steps.last_jobs(self._id, failed, session) if failed else {}
        writes, handled = _Writes(last={step: job["_id"] for step, job in last.items()}), 0
        while handled < len(some) and writes.size <= _LARGEST:
            each = some[handled]
            handled += 1
            if each.id in whole:
                place, document = whole[each.id]
                what = Verdict.FAIL if flow is None and each.id not in ended else verdict(place, states)
                self._write(writes, document, place, what, states, flow, session, ended=each.id in ended)
        self._store.flows.touch([self._id], self._now, session)
        self._store.transactions.archive(OutcomeBatch(archive=writes.archive), session)
        self._store.transactions.bring_back(writes.bring_back, session)
        few = len(writes.release) <= FEW
        if few:
            self._steps.release(writes.release, session)
        report = Released(0, len(writes.release), list(writes.reasons.items()), len(writes.bring_back))
        return handled, report, [] if few else writes.release

    def _write(
        self,
        writes: _Writes,
        document: Document,
        place: FlowStep,
        what: Verdict,
        states: dict[JobId, StepState],
        flow: Flow | None,
        session: InTransaction,
        *,
        ended: bool,
    ) -> None:
        id = document["_id"]
        if ended:
            if what is not Verdict.FAIL:
                writes.bring_back[id] = encode_job(anew(archived_from(document), self._now, self._now))
        elif what is Verdict.FAIL:
            reason = "its flow is gone" if flow is None else _reason(culprits(place, states), place, writes.last)
            writes.last[place.step] = id
            writes.fail(id, outcomes.not_released(document, Why.DEPENDENCY_FAILED, self._now, reason), reason)
            states[place.step] = StepState.FAILED
        elif what is Verdict.RELEASE and flow is not None and flow.paused is None:
            self._release(writes, document, place, session)

    def _release(self, writes: _Writes, document: Document, place: FlowStep, session: InTransaction) -> None:
        fields = released_fields(document, place, self._now)
        if place.takes:
            if place.takes not in writes.results:
                writes.results[place.takes] = self._steps.results(self._id, place.takes, session)
            results = writes.results[place.takes]
            size = len(encode({"results": results, "job": document}))
            if size > LARGEST_JOB:
                reason = (
                    f"the results of other steps that are its arguments make {size:,} bytes; at most {LARGEST_JOB:,} "
                    "can be stored. Keep the data elsewhere and return its key"
                )
                writes.fail(document["_id"], outcomes.not_released(document, Why.MALFORMED, self._now, reason), reason)
                return
            fields["flow.results"] = results
            writes.size += size
        writes.release.append((document["_id"], fields))

    def _conclude(self, session: InTransaction) -> Released:
        """The flow has ended, or it goes on again."""
        flow = self._store.flows.get_many([self._id], session).get(self._id)
        goes_on = self._steps.goes_on(self._id, session)
        if flow is None or goes_on != flow.state.ended:
            return Released()
        if goes_on:
            self._store.flows.conclude(self._id, None, self._now, (), session)
            return Released()
        state = outcome(self._steps.count_failed(self._id, session), flow.cancel is not None)
        due = due_at_the_end(state, flow.run)
        jobs = [_made(job, self._now) for on, job in flow.ends if on in due]
        self._steps.insert(jobs, session)
        self._store.flows.conclude(self._id, state, self._now, due, session)
        return Released(released=len(jobs), ended=[(flow, state)])


@dataclass
class _Writes:
    """What one transaction writes."""

    archive: dict[JobId, bytes | Document] = field(default_factory=dict)
    reasons: dict[JobId, str] = field(default_factory=dict)
    release: list[Free] = field(default_factory=list)
    bring_back: dict[JobId, RawBSONDocument] = field(default_factory=dict)
    results: dict[tuple[JobId, ...], list[Document]] = field(default_factory=dict)
    """What was read of other steps, by the steps that it is of: most of those that are released together take the
    same."""
    size: int = 0
    last: dict[JobId, JobId] = field(default_factory=dict)
    """The last job of each step that has failed: people recover that one."""

    def fail(self, id: JobId, document: bytes, reason: str) -> None:
        self.archive[id] = document
        self.reasons[id] = reason


def released_fields(document: Document, place: FlowStep, now: datetime) -> Document:
    """What changes on a step that nothing holds back any more: it is an ordinary job from now on."""
    delay = timedelta(seconds=place.delay or 0)
    due = max(after(now, delay), document["scheduled_at"])
    fields: Document = {"lane": lane_of(document), "scheduled_at": due, "postponed": due > now}
    if document.get("expires_in") is not None:
        fields["expires_at"] = expiry(due, document["expires_in"])
    return fields


def _made(job: Document, now: datetime) -> Document:
    """A step that waited for the end of the flow, as a job."""
    return {**job, "created_at": now, "scheduled_at": now}


def _reason(failed: Sequence[JobId], place: FlowStep, last: Mapping[JobId, JobId]) -> str:
    first = last.get(failed[0], failed[0])
    if len(failed) == 1:
        return f"step {first} has not succeeded, and this one waited for it"
    return f"{len(failed)} of the {len(place.after)} steps that it waited for have not succeeded, {first} among them"
