"""Release: a step of a flow that waits for other steps starts when they have succeeded, and is archived when one fails
or when the step is not needed.

Workers that settle the last of ten thousand steps at the same time must not wait for each other, so they count nothing.
Every transaction that ends, adds or recovers a step leaves a *marker*. A marker only means "check the dependents of
this step". The leader

    1. reads some markers,
    2. reads the dependents: steps that wait for the steps that a marker names, or that it names themselves,
    3. in a transaction that is fenced by its lease: reads the states of the steps that the dependents wait for,
       decides, and writes the decisions,
    4. removes these markers, by id.

Most steps are released right after the transaction that decides it: MongoDB 6 takes four times as long to change an
indexed field inside a transaction. The steps before them have succeeded, which stays true whatever happens. Only a
pause can come in between, and it marks every step as held: the release matches none that is. A decision that could
change is written in the transaction: of a step that does not need a success (`after_any`, `after_failure`), because
the step before it can be recovered; and of a step that was held, because a worker may still run and reschedule it.

Each decision is made from facts that were true after the marker was left, and every later change leaves another
marker. So a pass may be repeated, done by two leaders, or cut off in the middle: nothing is missed and nothing happens
twice. A decision matches only a step that is still blocked. Every decision writes the document of the flow, and so does
a process that pauses, cancels or recovers: the later of the two sees the write of the other.

A released step keeps its time, which is the start of its flow: its place in the queue is as old as the flow. Otherwise
every step of a chain would wait for all jobs that were enqueued before its release.

Each flow is processed by itself. If MongoDB refuses a transaction, its steps are decided one by one. A flow that cannot
be processed keeps its markers and is reported; the other flows are processed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from recruiter.domain.flow import FlowState, FlowStep, Verdict, culprits, due_at_the_end, joined, outcome, verdict
from recruiter.domain.job import JobId, expiry
from recruiter.domain.names import id_told
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
from recruiter.store.codec import LARGEST_JOB, Document, anew, archived_from, encode, encode_job, lane_of, new_id
from recruiter.store.collections.flows import Marker, StoredFlow, merged
from recruiter.store.database import Store
from recruiter.store.flow_steps import Dependent, ReleasedSteps
from recruiter.store.in_session import InSession
from recruiter.store.outcomes import OutcomeBatch, ToArchive
from recruiter.store.transactions import InTransaction

T = TypeVar("T")

MAX_MARKERS_PER_PASS = 500
_NOT_NEEDED = "no step has failed that it is to run after"
_NEITHER_NEEDED = "a step that it waited for was not needed"
_MAX_RESULT_BYTES_PER_TRANSACTION = 2 * LARGEST_JOB


@dataclass
class Released:
    """The effects of a pass, or of a part of it."""

    markers: int = 0
    released: int = 0
    failed: list[tuple[JobId, str]] = field(default_factory=list)
    """Jobs that were archived, and the reasons."""
    brought_back: int = 0
    ended: list[tuple[StoredFlow, FlowState]] = field(default_factory=list)
    renamed: list[tuple[JobId, JobId]] = field(default_factory=list)
    """Jobs at the end of a flow whose id is in use, and their new ids."""
    gone: int = 0
    """Flows that no longer exist and have no waiting step. Their markers were removed."""
    broken: list[tuple[ObjectId, Exception]] = field(default_factory=list)
    """Flows that could not be processed, and the errors. Their markers stay."""

    @property
    def anything(self) -> bool:
        return bool(self.released or self.failed or self.brought_back or self.ended or self.gone)

    def add(self, other: Released) -> None:
        for effect in fields(self):
            setattr(self, effect.name, getattr(self, effect.name) + getattr(other, effect.name))


def release(store: Store, now: datetime, term: int, holder: str, skip: Collection[ObjectId] = ()) -> Released:
    """One whole pass: see `releasing`."""
    report = Released()
    for part in releasing(store, lambda: now, term, holder, skip):
        report.add(part)
    return report


def releasing(
    store: Store, now: Callable[[], datetime], term: int, holder: str, skip: Collection[ObjectId] = ()
) -> Iterator[Released]:
    """Processes the current markers in batches, so that workers receive the first released steps early. The caller may
    stop at any time: the markers of unprocessed flows stay. Flows in `skip` are left out. Only for the leader.

    Raises Superseded, and StoreError when the outcome of a write is unknown; then nothing else may be written with
    this term.
    """
    markers = store.flows.next_markers(MAX_MARKERS_PER_PASS, skip)
    if markers.unreadable:
        store.flows.remove_markers([], markers.unreadable)
    yield Released(len(markers) + len(markers.unreadable))
    by_flow = merged(markers)
    gone = by_flow.keys() - store.flows.which_exist(by_flow)
    gone -= store.flow_steps.with_waiting_steps(gone) if gone else set()
    if gone:
        store.flows.remove_markers([marker.id for marker in markers if marker.flow in gone])
        yield Released(gone=len(gone))
    for flow, marker in by_flow.items():
        if flow in gone:
            continue
        flow_pass = _FlowPass(store, now, term, holder, flow)
        try:
            yield from flow_pass.run(marker)
        except (StoreUnreachable, StoreRefused, Superseded):
            raise
        except Exception as error:  # whatever is wrong with this flow: the others continue
            yield Released(broken=[(flow, error)])
        else:
            if not flow_pass.must_repeat:
                store.flows.remove_markers([marker.id for marker in markers if marker.flow == flow])


class _FlowPass:
    """One pass over the dependents that the markers of one flow name."""

    def __init__(self, store: Store, now: Callable[[], datetime], term: int, holder: str, flow: ObjectId) -> None:
        self._store = store
        self._steps = store.flow_steps
        self._clock = now
        self._term = term
        self._holder = holder
        self._id = flow
        self._failure: Exception | None = None
        """The error of the first step for which nothing could be written."""
        self._locked: list[JobId] = []
        """Steps that could not be written, because another transaction has written them."""
        self.must_repeat = False
        """Whether a step could not be decided yet, so that the markers must stay."""

    def run(self, marker: Marker) -> Iterator[Released]:
        """Completes a pause or a cancel that was cut off, decides about the dependents that the marker names, and then
        whether the flow has ended. Yields the effects of each transaction.

        A step for which nothing could be written does not stop the others. Its error is raised at the end: the caller
        keeps the markers, so another pass tries again. Raises UnreadableDocument if the flow cannot be read.
        """
        flow = self._store.flows.get(self._id)
        if flow is not None:
            self._complete_pause_or_cancel(flow, marker)
        for dependents in self._steps.dependents(marker):
            yield from self._process(self._undecided(dependents, flow))
        if flow is not None:
            has_ended = not self._steps.goes_on(self._id)
            if has_ended != flow.state.ended:  # its last step has ended, or an ended flow has got another step
                yield self._in_fenced_transaction(self._conclude)
        if self._locked and self._failure is None:
            self._failure = DocumentLocked(f"another open transaction has written steps {self._locked}")
        if self._failure is not None:
            raise self._failure

    def _complete_pause_or_cancel(self, flow: StoredFlow, marker: Marker) -> None:
        """A step may have been added to a flow that was cancelled; and the process that paused it may have died before
        every step was held."""
        if flow.cancel is not None:
            self._locked += self._steps.flag(self._id, flow.cancel._asdict(), flow.cancels)
        elif flow.paused is not None and marker.all:
            self._locked += self._steps.hold(self._id, flow.holds, flow.paused)
            self._store.flows.look_again_unless(self._id, flow.holds)
            self._store.roster.tell_of_pauses()

    def _undecided(self, dependents: Sequence[Dependent], flow: StoredFlow | None) -> Sequence[Dependent]:
        """Leaves out steps that certainly stay unchanged. When one step waits for thousands of others, every pass
        over their ends comes here. So only the last few are read: they were added last, and mostly run last."""
        if flow is None or self._steps.has_failed(self._id):
            return dependents
        if flow.paused is not None:
            return []
        pending = self._steps.pending(self._id, {step for dependent in dependents for step in dependent.last_after})
        return [dependent for dependent in dependents if pending.isdisjoint(dependent.last_after)]

    def _process(self, dependents: Sequence[Dependent]) -> Iterator[Released]:
        """Decides about these steps in one transaction after the other, and releases the free ones after each. If a
        transaction fails because of a document, each step is tried alone. Then the broken step is archived if MongoDB
        refuses its new document; otherwise the error is kept for the end of the pass."""
        while dependents:
            try:
                report, free, dependents = self._in_fenced_transaction(partial(self._decide, dependents))
                yield report
                if free:
                    released, locked = self._steps.release(free)
                    self._locked += locked
                    yield Released(released=released)
            except (StoreUnreachable, StoreRefused, Superseded, DocumentLocked):
                raise
            except Exception as error:
                if len(dependents) > 1:
                    for dependent in dependents:
                        yield from self._process([dependent])
                elif isinstance(error, DocumentRefused) and not dependents[0].is_archived:
                    yield self._archive_reduced(dependents[0], error)
                else:
                    self._failure = self._failure or error
                return

    def _archive_reduced(self, dependent: Dependent, refused: DocumentRefused) -> Released:
        """Ends a step whose new document MongoDB refuses."""
        reason, now = str(refused), self._clock()
        for id, (_, document) in self._steps.read([dependent]).items():
            ended = outcomes.not_released(document, Why.MALFORMED, now, reason)
            self._store.transactions.archive_reduced(id, ended, refused, now, self._term, self._holder)
        return Released(failed=[(dependent.id, reason)])

    def _in_fenced_transaction(self, write: Callable[[InTransaction], T]) -> T:
        return self._store.transactions.lead(self._term, self._holder, write)

    # -- in the transaction --------------------------------------------------------------------------------------

    def _decide(
        self, dependents: Sequence[Dependent], session: InTransaction
    ) -> tuple[Released, list[ReleasedSteps], Sequence[Dependent]]:
        """Decides about these steps, and writes the decisions; nothing is written about a step that must still wait.
        Returns the effects; the steps that may be released after the transaction; and the steps that are left, because
        the results that the others take would make the transaction too large."""
        now = self._clock()
        flow = self._store.flows.get(self._id, session)
        found = self._steps.read(dependents, session)
        states = self._steps.states(self._id, {step for place, _ in found.values() for step in place.after}, session)
        writes = _Writes()
        failing: dict[JobId, list[JobId]] = {}
        left: Sequence[Dependent] = ()
        for number, dependent in enumerate(dependents):
            if dependent.id not in found:
                continue  # it ended, or was cancelled
            place, document = found[dependent.id]
            decision = Verdict.FAIL if flow is None else verdict(place, states)
            if dependent.is_archived:
                # A dependency had failed. It was recovered meanwhile, so this step waits again.
                if decision is not Verdict.FAIL:
                    with suppress(UnreadableDocument, InvalidJob):  # it was changed by hand and stays in the archive
                        writes.bring_back[dependent.id] = encode_job(anew(archived_from(document), now, now))
            elif decision is Verdict.FAIL:
                failing[dependent.id] = culprits(place, states)
            elif decision is Verdict.SKIP:
                writes.archive_as(
                    Why.NOT_NEEDED, dependent.id, document, now, _NOT_NEEDED if place.failed else _NEITHER_NEEDED
                )
            elif decision is Verdict.RELEASE and flow is not None and flow.paused is None:
                if writes.result_bytes > _MAX_RESULT_BYTES_PER_TRANSACTION:
                    left = dependents[number:]
                    break
                try:
                    self._release(writes, dependent, place, document, now, session)
                except InvalidJob as error:
                    writes.archive_as(Why.MALFORMED, dependent.id, document, now, str(error))
        for id, reason in self._reasons(failing, found, session, gone=flow is None).items():
            writes.archive_as(Why.DEPENDENCY_FAILED, id, found[id][1], now, reason)
        return self._write(writes, session), list(writes.free.values()), left

    def _release(
        self,
        writes: _Writes,
        dependent: Dependent,
        place: FlowStep,
        document: Document,
        now: datetime,
        session: InTransaction,
    ) -> None:
        """Raises InvalidJob."""
        try:
            fields = released_fields(document, now)
        except (TypeError, ValueError, OverflowError, KeyError, InvalidJob) as error:
            raise InvalidJob(
                f"its document cannot be a job ({type(error).__name__}); somebody wrote it by hand"
            ) from error
        if place.takes:
            if place.takes not in writes.results:
                writes.results[place.takes] = self._steps.results(self._id, place.takes, session)
            waits = self._with_others(place, writes.results[place.takes], session)
            if waits is not place:
                writes.wait[dependent.id] = waits
                return
            size = dependent.size + len(encode({"results": writes.results[place.takes]}))
            if size > LARGEST_JOB:
                raise InvalidJob(
                    f"the results of other steps that are its arguments make {size:,} bytes; at most {LARGEST_JOB:,} "
                    "can be stored. Keep the data elsewhere and return its key"
                )
            writes.result_bytes += size
        alike = (*fields.items(), place.takes)
        if place.takes:
            fields["flow.results"] = writes.results[place.takes]
        can_change = bool(place.any or place.failed) or document["flow"].get("held") is not None
        steps = writes.release if can_change else writes.free
        steps.setdefault(alike, ReleasedSteps([], fields)).ids.append(dependent.id)

    def _with_others(self, place: FlowStep, results: Sequence[Document], session: InTransaction) -> FlowStep:
        """The place of a step that takes the result of a step which returned the result of another one: it waits for
        that one too. Raises InvalidJob if that one waits for it."""
        for result in results:
            others = [step for step in result.get("missing", ()) if step not in place.after]
            before = InSession(self._store, session, own=True).all_before(self._id, others)
            if place.step in before:
                raise InvalidJob(
                    f"step {id_told(result['step'])} returned the result of step {id_told(others[0])}, which waits for "
                    "this step"
                )
            place = joined(place, result["step"], others) if others else place
        return place

    def _reasons(
        self,
        failing: Mapping[JobId, Sequence[JobId]],
        found: Mapping[JobId, tuple[FlowStep, Document]],
        session: InTransaction,
        *,
        gone: bool,
    ) -> dict[JobId, str]:
        """The reasons why these steps are archived. A step that runs is left out: its flow was paused while it ran, and
        a dependency was removed since."""
        if not failing:
            return {}
        held = self._store.roster.held(session)
        self.must_repeat |= not held.isdisjoint(failing)
        archived = {id: failed for id, failed in failing.items() if id not in held}
        if gone:
            return dict.fromkeys(archived, "its flow is gone")
        # People recover the last job of a step, so that is the one to name.
        last = self._steps.last_jobs(self._id, [failed[0] for failed in archived.values()], session)
        reasons: dict[JobId, str] = {}
        for id, failed in archived.items():
            job = last.get(failed[0], {"_id": failed[0]})
            name = job.get("flow", {}).get("name")
            step = id_told(job["_id"]) if name is None else f"{name!r} ({id_told(job['_id'])})"
            if len(failed) > 1:
                total = len(found[id][0].after)
                reason = f"{len(failed)} of the {total} steps that it waited for have not succeeded, {step} among them"
            elif job.get("why") == Why.DEPENDENCY_FAILED and job.get("reason"):
                reason = job["reason"]  # it names the step that failed first
            else:
                reason = f"step {step} has not succeeded, and this one waited for it"
            reasons[id] = reason
        return reasons

    def _write(self, writes: _Writes, session: InTransaction) -> Released:
        if not (writes.archive or writes.bring_back or writes.release or writes.free or writes.wait):
            return Released()
        self._store.flows.touch(self._id, session)
        if writes.wait:
            self._steps.let_wait(writes.wait, session)
            # The next pass decides: the other steps may have ended.
            marker = Marker(self._id, added=frozenset(place.step for place in writes.wait.values()))
            self._store.flows.leave([marker], session)
        self._store.transactions.archive(OutcomeBatch(archive=writes.archive), session)
        back = InSession(self._store, session, own=True).recover(writes.bring_back)
        released = self._steps.release_now(list(writes.release.values()), session)
        failed = [(id, reason) for id, reason in writes.reasons.items() if reason not in (_NOT_NEEDED, _NEITHER_NEEDED)]
        return Released(released=released, failed=failed, brought_back=back)

    def _conclude(self, session: InTransaction) -> Released:
        """Notes that the flow has ended and adds the jobs for its end; or notes that an ended flow goes on."""
        now = self._clock()
        flow = self._store.flows.get(self._id, session)
        goes_on = self._steps.goes_on(self._id, session)
        if flow is None or (not goes_on) == flow.state.ended:
            return Released()  # another pass has noted it
        if goes_on:
            self._store.flows.conclude(self._id, None, now, (), session)
            return Released()
        state = outcome(self._steps.count_failed(self._id, session), flow.cancel is not None)
        due = due_at_the_end(state, flow.run)
        jobs = [_made_at_the_end(job, now) for on, job in flow.ends if on in due]
        # The flow promised that these jobs run, and the id of one may have been used meanwhile.
        used = self._store.transactions.ids_in_use([job["_id"] for job in jobs], session)
        renamed = {id: new_id() for id in used}
        for job in jobs:
            if job["_id"] in renamed:
                job["_id"] = renamed[job["_id"]]
                job["flow"] = {**job["flow"], "step": job["_id"]}
        self._steps.insert(jobs, session)
        self._store.flows.conclude(self._id, state, now, due, session)
        return Released(released=len(jobs), ended=[(flow, state)], renamed=list(renamed.items()))


@dataclass
class _Writes:
    """The writes of one transaction."""

    archive: dict[JobId, ToArchive] = field(default_factory=dict)
    reasons: dict[JobId, str] = field(default_factory=dict)
    bring_back: dict[JobId, RawBSONDocument] = field(default_factory=dict)
    release: dict[tuple[object, ...], ReleasedSteps] = field(default_factory=dict)
    """By their new fields: most steps that are released together get the same."""
    free: dict[tuple[object, ...], ReleasedSteps] = field(default_factory=dict)
    """Steps that are released after the transaction."""
    wait: dict[JobId, FlowStep] = field(default_factory=dict)
    """The new places of steps that wait for more steps."""
    results: dict[tuple[JobId, ...], list[Document]] = field(default_factory=dict)
    """The results of steps, by the steps: most steps that are released together take the same."""
    result_bytes: int = 0

    def archive_as(self, why: Why, id: JobId, document: Document, now: datetime, reason: str) -> None:
        self.archive[id] = outcomes.not_released(document, why, now, reason)
        self.reasons[id] = reason


def released_fields(document: Document, now: datetime) -> Document:
    """The new fields of a released step: from now on it is an ordinary job. A step that had been released before its
    flow was paused may run, or have run, and keeps its time."""
    if document["flow"].get("released") is True:
        return {"lane": lane_of(document)}
    due = max(after(now, timedelta(seconds=document["flow"].get("delay") or 0)), document["scheduled_at"])
    fields: Document = {"lane": lane_of(document)}
    if due > now:
        fields["scheduled_at"] = due
    else:
        fields["flow.due"] = due
    if due > now or document.get("postponed"):
        fields["postponed"] = due > now
    if document.get("expires_in") is not None:
        fields["expires_at"] = expiry(due, document["expires_in"])
    return fields


def _made_at_the_end(job: Document, now: datetime) -> Document:
    """The job for the end of a flow. Its delay and its expiry count from the end of the flow."""
    fields = released_fields(job, now)
    fields.pop("flow.due", None)
    return {**job, "created_at": now, "scheduled_at": now, **fields}
