"""Release: the steps of flows that wait for others start when these have ended, or are archived if one has failed.

Workers that settle the last of ten thousand steps at the same moment must not wait for each other, so nobody counts
down. Every transaction that ends, adds or recovers a step leaves a *marker*. A marker says nothing but
"look here again". The leader

    1. reads some markers,
    2. reads the steps that wait for the steps they name, or that they name themselves,
    3. reads the states of what those wait for, and decides,
    4. writes the decisions in transactions that are fenced by its lease, and then removes these markers, by id.

Steps that may start are released right after the transaction that decides it: MongoDB 6 takes four times as long to
change an indexed field inside a transaction. What they wait for has succeeded, which stays true whatever happens; only
their flow can be paused meanwhile. Pausing numbers the pauses of a flow and writes the number on all its steps, and
the release matches none that was held since the decision: also if the leader was frozen in between. Of a step that any
end will do for (`after_any`) the decision can change, when the step before it is recovered; so that one is released in
the transaction.

Each decision is made from what was true after the marker was left, and whatever changes after that leaves another
marker. So it may be done twice, by two leaders, or be cut off in the middle: nothing is missed and nothing happens
twice. A decision matches only a step that is still blocked. In the transaction everything is read again: what was read
before it may have been rolled back with a primary that failed. If a step that was to be released has changed meanwhile,
the markers stay for another look.

Each flow is processed by itself. If a step makes its transaction fail, halves are decided until that step is alone. A
flow that cannot be processed keeps its markers and is reported; the other flows are processed.

Thousands of steps may end that one step waits for, so a pass that finds it pending must be cheap: of a step that waits
for very many, the last few are read first, and the server counts whether all of them have succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
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
from recruiter.errors import (
    DocumentLocked,
    DocumentRefused,
    InvalidJob,
    StoreRefused,
    StoreUnreachable,
    Superseded,
    UnreadableDocument,
)
from recruiter.store import outcomes
from recruiter.store.batches import MAX_BATCH_BYTES
from recruiter.store.codec import LARGEST_JOB, Document, anew, archived_from, encode, encode_job, lane_of, new_id
from recruiter.store.collections.flows import Flow, Marker, merged
from recruiter.store.database import Store
from recruiter.store.flow_steps import Candidates, Free
from recruiter.store.outcomes import OutcomeBatch
from recruiter.store.transactions import InTransaction

T = TypeVar("T")

MARKERS_AT_ONCE = 500
STEPS_AT_ONCE = 500
"""Steps that are moved in one transaction, or released in one write."""
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
    renamed: list[tuple[JobId, JobId]] = field(default_factory=list)
    """Jobs at the end of a flow whose id is in use, and the ids that they got instead."""
    gone: int = 0
    """Flows that do not exist any more, and of which no step waits. Their markers were removed."""
    broken: list[tuple[ObjectId, Exception]] = field(default_factory=list)
    """Flows that could not be processed, and why. Their markers stay."""

    @property
    def anything(self) -> bool:
        return bool(self.released or self.failed or self.brought_back or self.ended or self.gone)

    def add(self, other: Released) -> None:
        self.markers += other.markers
        self.released += other.released
        self.failed += other.failed
        self.brought_back += other.brought_back
        self.ended += other.ended
        self.renamed += other.renamed
        self.gone += other.gone
        self.broken += other.broken


def release(
    store: Store,
    now: datetime,
    term: int,
    holder: str,
    enough: Callable[[], bool] = lambda: False,
    skip: Collection[ObjectId] = (),
) -> Released:
    """Looks once where markers say, until it was `enough`. Only for the leader; raises what `releasing` does."""
    report = Released()
    for part in releasing(store, lambda: now, term, holder, skip):
        report.add(part)
        if not part.markers and enough():
            break
    return report


def releasing(
    store: Store, now: Callable[[], datetime], term: int, holder: str, skip: Collection[ObjectId] = ()
) -> Iterator[Released]:
    """Looks once where markers say, part by part: when thousands of steps may start, workers wait for the first of
    them. It may be left at any time: the markers stay for what was not looked at. Only for the leader.

    Each flow is processed by itself: a flow that cannot be is reported, and the others go on. The caller may `skip` it
    for a time.

    Raises Superseded, and StoreError when the outcome of a write is unknown; then no more may be written with this
    term.
    """
    found = store.flows.next_markers(MARKERS_AT_ONCE, skip)
    if found.unreadable:
        store.flows.remove_markers([], found.unreadable)
    yield Released(len(found) + len(found.unreadable))
    by_flow = merged(found)
    gone = by_flow.keys() - store.flows.which_exist(by_flow)
    gone -= store.flow_steps.with_waiting_steps(gone) if gone else set()
    if gone:
        store.flows.remove_markers([each.id for each in found if each.flow in gone])
        yield Released(gone=len(gone))
    for flow, marker in by_flow.items():
        if flow in gone:
            continue
        look = _Look(store, now, term, holder, flow)
        try:
            yield from look.at(marker)
        except (StoreUnreachable, StoreRefused, Superseded):
            raise
        except Exception as error:  # whatever is wrong with this flow: the others go on
            yield Released(broken=[(flow, error)])
        else:
            if not look.must_repeat:
                store.flows.remove_markers([each.id for each in found if each.flow == flow])


class _Look:
    """One look at one flow."""

    def __init__(self, store: Store, now: Callable[[], datetime], term: int, holder: str, flow: ObjectId) -> None:
        self._store = store
        self._steps = store.flow_steps
        self._clock = now
        self._now = now()
        self._term = term
        self._holder = holder
        self._id = flow
        self._failure: Exception | None = None
        """What was wrong with the first step for which nothing could be written."""
        self.must_repeat = False
        """Whether a step that was to be released has changed meanwhile."""

    def at(self, marker: Marker) -> Iterator[Released]:
        """Returns when nothing is left to be looked at. Raises UnreadableDocument; and what was wrong with a step for
        which nothing could be written, after all others."""
        flow = self._store.flows.get(self._id)
        if flow is not None:
            self._repeat_what_was_asked(flow, marker)
        for candidates in self._steps.candidates(marker):
            promising = self._promising(candidates, flow)
            while promising:
                self._now = self._clock()
                some, promising = _first(promising, STEPS_AT_ONCE)
                for decided in self._decided(some):
                    yield from self._carry_out(decided)
                    promising = [*decided.left, *promising]
        if flow is not None and self._steps.goes_on(self._id) == flow.state.ended:
            yield self._lead(self._conclude)
        if self._failure is not None:
            raise self._failure

    def _decided(self, some: Sequence[_Promising]) -> Iterator[_Decided]:
        """Decides in one transaction. If something is wrong with one of the steps, the halves are decided, until that
        one is alone."""
        try:
            yield self._lead(partial(self._decide, some))
        except (StoreUnreachable, StoreRefused, Superseded, DocumentLocked):
            raise
        except Exception as error:
            halves = _halves(some)
            for half in halves:
                yield from self._decided(half)
            if not halves and isinstance(error, DocumentRefused) and not some[0][0].ended:
                yield self._archive_reduced(some[0][0], error)
            elif not halves:
                self._failure = self._failure or error

    def _archive_reduced(self, each: Candidates, refused: DocumentRefused) -> _Decided:
        """A step of which MongoDB refuses what would be written ends here."""
        reason = str(refused)
        for id, (_, document) in self._steps.whole([each]).items():
            ended = outcomes.not_released(document, Why.MALFORMED, self._now, reason)
            self._store.transactions.archive_reduced(id, ended, refused, self._now, self._term, self._holder)
        return _Decided(Released(failed=[(id, reason) for id in each.ids]), [], 0, [])

    def _carry_out(self, decided: _Decided) -> Iterator[Released]:
        """What is left to be done after the transaction."""
        if decided.report.anything:
            yield decided.report
        for some in _in_parts(decided.free, STEPS_AT_ONCE):
            count = sum(len(each.ids) for each in some)
            self.must_repeat |= self._steps.release(some, decided.holds) < count
            yield Released(released=count)

    def _lead(self, write: Callable[[InTransaction], T]) -> T:
        return self._store.transactions.lead(self._term, self._holder, write)

    def _repeat_what_was_asked(self, flow: Flow, marker: Marker) -> None:
        """A step may have been added to a flow that was cancelled; and the process that paused it may have died before
        every step was held."""
        if flow.cancel is not None:
            self._steps.flag(self._id, flow.cancel._asdict(), flow.cancels)
        elif flow.paused is not None and marker.all:
            self._steps.hold(self._id, flow.holds, flow.paused)
            self._store.flows.look_again_unless(self._id, flow.holds)
            self._store.roster.tell_of_pauses()

    # -- before the transaction ----------------------------------------------------------------------------------

    def _promising(self, candidates: Sequence[Candidates], flow: Flow | None) -> list[_Promising]:
        """The steps for which there may be something to do, each after those that fail before it."""
        found: list[_Promising] = []
        seen: set[JobId] = set()
        states: dict[JobId, StepState] = {}
        while candidates:
            wanted = {step for each in candidates for step in each.place.after}.difference(states)
            states |= self._steps.states(self._id, wanted)
            failing: set[JobId] = set()
            for each in candidates:
                what = Verdict.FAIL if flow is None else verdict(each.place, states)
                if what is Verdict.WAIT and not each.whole and self._steps.failed_before(each):
                    what = Verdict.FAIL  # not one of the last, which are all that was looked at so far
                if what is Verdict.FAIL and not each.ended:
                    if self._runs(each):
                        continue
                    failing.update(each.steps)
                    states |= dict.fromkeys(each.steps, StepState.FAILED)
                if not self._rests(each, what, paused=flow is not None and flow.paused is not None):
                    found.append((each, what))
                    seen.update(each.ids)
            few = failing and len(seen) < STEPS_AT_ONCE
            after_these = self._steps.candidates(Marker(self._id, ended=frozenset(failing))) if few else ()
            candidates = [each for some in after_these for each in _without(some, seen)]
        return found

    def _runs(self, each: Candidates) -> bool:
        """Whether a worker holds one of them: its flow was paused while it ran, and what it waited for is gone since.
        It must not be archived while it runs."""
        held = self._store.roster.held()
        if held.isdisjoint(each.ids):
            return False
        self.must_repeat = True
        return True

    def _rests(self, each: Candidates, what: Verdict, *, paused: bool) -> bool:
        """Whether they stay as they are."""
        if each.ended:
            return what is Verdict.FAIL
        if what is Verdict.WAIT or (what is Verdict.RELEASE and paused):
            return True
        if each.whole or what is Verdict.FAIL:
            return False
        return self._steps.is_pending_before(each)  # the last of very many have ended

    # -- in the transaction --------------------------------------------------------------------------------------

    def _decide(self, some: Sequence[_Promising], session: InTransaction) -> _Decided:
        """Writes what follows for these."""
        flow = self._store.flows.get(self._id, session)
        ready, places, writes = self._read(some, session)
        for each, _ in some:
            first = each.ids[0]
            if (place := ready.get(first) or places.get(first)) is None:
                continue  # it is not there any more
            what = Verdict.RELEASE if first in ready else verdict(place, writes.states)
            if flow is None:
                what = Verdict.FAIL
            if each.ended or what is Verdict.FAIL:
                self._move(writes, each, place, what, gone=flow is None, session=session)
            elif what is Verdict.RELEASE and flow is not None and flow.paused is None:
                self._release(writes, each, place, session)
        self._store.flows.touch(self._id, session)
        self._store.transactions.archive(OutcomeBatch(archive=writes.archive), session)
        back = self._store.transactions.recover_in(session, writes.bring_back, again=False, cancelled=False)
        holds = flow.holds if flow is not None else 0
        released = sum(len(each.ids) for each in writes.release)
        self.must_repeat |= self._steps.release(writes.release, holds, session) < released
        report = Released(0, released, list(writes.reasons.items()), back)
        return _Decided(report, writes.free, holds, writes.left)

    def _read(
        self, some: Sequence[_Promising], session: InTransaction
    ) -> tuple[dict[JobId, FlowStep], dict[JobId, FlowStep], _Writes]:
        """By the first id of each, the places of those that wait for very many, all of which have succeeded; the places
        of the others, if they are still there; and what is stored of them and of what they wait for. What a step waits
        for never changes, but only in full can it be decided by."""
        many = (each for each, what in some if not each.whole and what is Verdict.RELEASE)
        after_success = ((each.ids[0], self._steps.place_after_success(each, session)) for each in many)
        ready = {first: place for first, place in after_success if place is not None}
        read = (each for each, what in some if each.ended or what is Verdict.FAIL or not each.whole)
        documents = self._steps.whole((each for each in read if each.ids[0] not in ready), session)
        places = {id: place for id, (place, _) in documents.items()}
        places |= {each.ids[0]: each.place for each, _ in some if each.whole}
        firsts = (each.ids[0] for each, _ in some)
        wanted = {step for first in firsts if first in places for step in places[first].after}
        states = self._steps.states(self._id, wanted, session)
        failed = [step for step, state in states.items() if state is StepState.FAILED]
        last = self._steps.last_jobs(self._id, failed, session) if failed else {}
        return ready, places, _Writes(states, documents, {step: job["_id"] for step, job in last.items()})

    def _move(
        self, writes: _Writes, each: Candidates, place: FlowStep, what: Verdict, *, gone: bool, session: InTransaction
    ) -> None:
        """They go into the archive, or come back from it; those that are no longer there do not."""
        if not writes.documents.keys() >= set(each.ids):
            writes.documents |= self._steps.whole([each], session)
        for id in each.ids:
            if id not in writes.documents:
                continue
            own, document = writes.documents[id]
            if each.ended:
                if what is not Verdict.FAIL:
                    with suppress(UnreadableDocument, InvalidJob):  # somebody has spoiled it: it stays in the archive
                        writes.bring_back[id] = encode_job(anew(archived_from(document), self._now, self._now))
                continue
            reason = "its flow is gone" if gone else _reason(culprits(place, writes.states), place, writes.last)
            writes.last[own.step] = id
            writes.fail(id, outcomes.not_released(document, Why.DEPENDENCY_FAILED, self._now, reason), reason)
            writes.states[own.step] = StepState.FAILED

    def _release(self, writes: _Writes, some: Candidates, place: FlowStep, session: InTransaction) -> None:
        try:
            fields = released_fields(some, place, self._now)
        except (TypeError, ValueError, OverflowError, KeyError, InvalidJob) as error:
            reason = f"its document cannot be a job ({type(error).__name__}); somebody wrote it by hand"
            self._malformed(writes, some, reason, session)
            return
        where = {name: some.job.get(name) for name in _UNCHANGED}
        if writes.size > _LARGEST:
            writes.left.append((some, Verdict.RELEASE))
            return
        if place.takes:
            if place.takes not in writes.results:
                writes.results[place.takes] = self._steps.results(self._id, place.takes, session)
            results = writes.results[place.takes]
            size = some.size + len(encode({"results": results}))
            if size > LARGEST_JOB:
                reason = (
                    f"the results of other steps that are its arguments make {size:,} bytes; at most {LARGEST_JOB:,} "
                    "can be stored. Keep the data elsewhere and return its key"
                )
                self._malformed(writes, some, reason, session)
                return
            fields["flow.results"] = results
            fitting = max(1, (_LARGEST - writes.size) // size)
            if fitting < len(some.ids):
                some, rest = some.split(fitting)
                writes.left.append((rest, Verdict.RELEASE))
            writes.size += size * len(some.ids)
        (writes.release if place.any else writes.free).append(Free(some.ids, fields, where))

    def _malformed(self, writes: _Writes, some: Candidates, reason: str, session: InTransaction) -> None:
        for id, (_, document) in self._steps.whole([some], session).items():
            writes.fail(id, outcomes.not_released(document, Why.MALFORMED, self._now, reason), reason)

    def _conclude(self, session: InTransaction) -> Released:
        """The flow has ended, or it goes on again."""
        flow = self._store.flows.get(self._id, session)
        goes_on = self._steps.goes_on(self._id, session)
        if flow is None or goes_on != flow.state.ended:
            return Released()
        if goes_on:
            self._store.flows.conclude(self._id, None, self._now, (), session)
            return Released()
        state = outcome(self._steps.count_failed(self._id, session), flow.cancel is not None)
        due = due_at_the_end(state, flow.run)
        jobs = [_made(job, self._now) for on, job in flow.ends if on in due]
        used = self._store.transactions.ids_in_use([job["_id"] for job in jobs], session)
        renamed = {id: new_id() for id in used}
        self._steps.insert([_renamed(job, renamed.get(job["_id"])) for job in jobs], session)
        self._store.flows.conclude(self._id, state, self._now, due, session)
        return Released(released=len(jobs), ended=[(flow, state)], renamed=list(renamed.items()))


_Promising: TypeAlias = tuple[Candidates, Verdict]


def _without(candidates: Iterable[Candidates], ids: Set[JobId]) -> list[Candidates]:
    return [left for each in candidates if (left := each.without(ids)) is not None]


def _first(promising: Sequence[_Promising], most: int) -> tuple[list[_Promising], list[_Promising]]:
    """Those that are decided in one transaction, and the rest: at most so many, and so many bytes, are moved in it."""
    some: list[_Promising] = []
    room = MAX_BATCH_BYTES
    for number, (each, what) in enumerate(promising):
        if each.ended or what is Verdict.FAIL:
            fitting = min(most, max(room // max(each.size, 1), 0 if some else 1))
            if fitting < len(each.ids):
                first, rest = each.split(fitting)
                taken = [(first, what)] if fitting else []
                return [*some, *taken], [(rest if fitting else each, what), *promising[number + 1 :]]
            most -= len(each.ids)
            room -= len(each.ids) * each.size
        some.append((each, what))
    return some, []


def _halves(some: Sequence[_Promising]) -> tuple[list[_Promising], ...]:
    """Both halves of these steps; none of a single one."""
    if len(some) > 1:
        half = len(some) // 2
        return list(some[:half]), list(some[half:])
    ((each, what),) = some
    return tuple([(part, what)] for part in each.split(len(each.ids) // 2)) if len(each.ids) > 1 else ()


def _in_parts(free: Sequence[Free], most: int) -> Iterator[list[Free]]:
    """So many steps at a time."""
    part: list[Free] = []
    room = most
    for each in free:
        for first in (0, *range(room, len(each.ids), most)):
            some = each.ids[first : first + room]
            part.append(each._replace(ids=some))
            room -= len(some)
            if not room:
                yield part
                part, room = [], most
    if part:
        yield part


@dataclass
class _Decided:
    """What one transaction has decided."""

    report: Released
    free: list[Free]
    """Steps that are to be released now."""
    holds: int
    """How often their flow had been paused."""
    left: list[_Promising]
    """Steps that did not fit."""


@dataclass
class _Writes:
    """What one transaction writes."""

    states: dict[JobId, StepState]
    documents: dict[JobId, tuple[FlowStep, Document]]
    last: dict[JobId, JobId]
    """The last job of each step that has failed: people recover that one."""
    archive: dict[JobId, bytes | Document] = field(default_factory=dict)
    reasons: dict[JobId, str] = field(default_factory=dict)
    release: list[Free] = field(default_factory=list)
    free: list[Free] = field(default_factory=list)
    """Released after it."""
    bring_back: dict[JobId, RawBSONDocument] = field(default_factory=dict)
    results: dict[tuple[JobId, ...], list[Document]] = field(default_factory=dict)
    """What was read of other steps, by the steps that it is of: most of those that are released together take the
    same."""
    size: int = 0
    left: list[_Promising] = field(default_factory=list)

    def fail(self, id: JobId, document: bytes, reason: str) -> None:
        self.archive[id] = document
        self.reasons[id] = reason


def released_fields(some: Candidates, place: FlowStep, now: datetime) -> Document:
    """What changes on steps that nothing holds back any more: they are ordinary jobs from now on. Those that had been
    released before their flow was paused may run, or have run, and keep their time."""
    document = some.job
    if some.released:
        return {"lane": lane_of(document)}
    delay = timedelta(seconds=place.delay or 0)
    due = max(after(now, delay), document["scheduled_at"])
    fields: Document = {"lane": lane_of(document), "scheduled_at": due}
    if due > now or document.get("postponed"):
        fields["postponed"] = due > now
    if document.get("expires_in") is not None:
        fields["expires_at"] = expiry(due, document["expires_in"])
    return fields


_UNCHANGED = ("group", "worker_deaths", "priority")


def _made(job: Document, now: datetime) -> Document:
    """A step that waited for the end of the flow, as a job."""
    return {**job, "created_at": now, "scheduled_at": now}


def _renamed(job: Document, id: JobId | None) -> Document:
    """The same job under another id: the flow promised that it runs, and its own id has been used meanwhile."""
    return job if id is None else {**job, "_id": id, "flow": {**job["flow"], "step": id}}


def _reason(failed: Sequence[JobId], place: FlowStep, last: Mapping[JobId, JobId]) -> str:
    first = last.get(failed[0], failed[0])
    if len(failed) == 1:
        return f"step {first} has not succeeded, and this one waited for it"
    return f"{len(failed)} of the {len(place.after)} steps that it waited for have not succeeded, {first} among them"
