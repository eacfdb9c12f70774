"""Maintenance: what the leader does beside assigning jobs. Each of these steps is short, and an error in one does not
keep the others from being done.

    before a round   repeat        jobs of the occurrences that are due
    after a round    release       steps of flows, where something has ended
                     cancel        archives jobs that were cancelled while nobody held them
                     set aside     documents that cannot be read
    once a second    report        jobs that no worker can run
                     rescue        retires workers that have been silent for too long
                     adopt         jobs that other programs have inserted
                     cancel        archives jobs that have expired
                     statistics    the number of rounds; folds the counts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial

from bson import ObjectId

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.policy_registry import SchedulePolicyRegistry
from recruiter.domain.statistics import Spread
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.errors import DocumentLocked, StoreRefused, StoreUnreachable, Superseded
from recruiter.events import Events, LastingFacts
from recruiter.instruments import trace_id_of
from recruiter.steps.adopt import adopt, set_jobs_aside
from recruiter.steps.assign import Round, never_fitting, unserved
from recruiter.steps.cancel import archive_cancelled, archive_expired
from recruiter.steps.lead import Leadership
from recruiter.steps.release import Released, releasing
from recruiter.steps.repeat import repeat
from recruiter.steps.rescue import Rescue
from recruiter.store.codec import Document, key_of
from recruiter.store.collections.limits import Rules
from recruiter.store.collections.statistics import FOLDED_AT_ONCE
from recruiter.store.database import Store
from recruiter.store.errors import text_of, trace_of
from recruiter.store.outcomes import cancelled_by
from recruiter.views.health import overdue

_LOOK_AROUND_EVERY = 1.0
_HOPELESS_GRACE = 30.0
"""Seconds that jobs may wait which nobody can run before it is said: a worker that knows them may be on its way."""
_FOLD_EVERY = 20.0
_COUNT_EVERY = 15.0
_CANCELLING = 0.5
"""Seconds that a round may spend on jobs that have been cancelled; others wait for theirs."""
_RELEASING = 0.02
"""Seconds that a round may spend on the steps of flows, near enough: workers wait for the first that are released."""
_REST = 4
"""After a look at flows that led to nothing the next one waits this many times as long as it took."""
_BUSY_REST, _LONGEST_BUSY_REST = 0.1, 0.3
"""While jobs flow it waits so many seconds for each look in a row that led to nothing: thousands of steps may end that
one waits for, and workers wait for the leader while it looks."""
_SKIP_BROKEN_SECONDS = 30.0
"""A flow that cannot be processed is tried again after this time: somebody may have repaired it."""
_SKIP_LOCKED_SECONDS = 1.0
"""The same of a flow that another transaction holds."""
_MOST_BROKEN_TOLD = 20
"""Broken flows that are logged in this time."""
_BETWEEN_LOOKS = 1.0
"""Seconds until a scheduler that is new or changed is noticed by a busy leader; an idle one hears of it at once."""
_BETWEEN_PROMISES = 60.0
_UNREADABLE_FOR = 60.0


@dataclass
class _Look:
    """A look at the flows that have markers, which takes several rounds if there is much to release."""

    parts: Iterator[Released]
    term: int
    report: Released = field(default_factory=Released)
    took: float = 0.0


class Maintenance:
    """One thread owns it: the one that assigns. `wake` asks for another round at once."""

    def __init__(
        self,
        store: Store,
        events: Events,
        leadership: Leadership,
        rescue: Rescue,
        schedules: SchedulePolicyRegistry,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._leadership = leadership
        self._rescue = rescue
        self._repeater = Repeater(store, events, schedules)
        self._wake = wake
        self._look_around_at = 0.0
        self._look = _Look(iter(()), -1)
        self._looked_at, self._look_took = 0.0, 0.0
        self._broken: dict[ObjectId, float] = {}
        """Flows that cannot be processed, and when to try each again."""
        self._in_vain = 0
        """Looks in a row that led to nothing."""
        self._fold_at = 0.0
        self._rounds, self._assigned, self._count_at = Spread(), 0, 0.0
        self._unserved = LastingFacts[tuple[str, str]](_HOPELESS_GRACE)
        self._never_fitting = LastingFacts[Lane](_HOPELESS_GRACE)

    @property
    def looks_around(self) -> bool:
        """Whether it is time for what is done once a second, which needs a round that has read all lanes."""
        return self._clock.monotonic() >= self._look_around_at

    def look_soon(self) -> None:
        """Something has changed that no round looks at by itself."""
        self._look_around_at = 0.0
        self._repeater.look_soon()

    def until_next(self, round: Round) -> float | None:
        """Seconds until there is something to do, as far as that is known."""
        release_in = self._release_at(round) - self._clock.monotonic() if round.marked else None
        waits = [self._repeater.seconds_left(), release_in]
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def before_round(self) -> None:
        self._carefully(lambda: self._repeater.step(self._leadership.term, self._leadership.holder))

    def after_round(self, round: Round, seconds: float, rules: Rules) -> None:
        """What the round has found, at once; the rest about once a second while busy, with every round while idle."""
        self._rounds.add(seconds)
        self._assigned += round.assigned
        if round.marked:
            self._carefully(lambda: self._release(self._release_at(round)))
        if CANCELLED_LANE in (round.lanes or ()):
            self._carefully(self._archive_cancelled)
        if round.malformed:
            self._carefully(lambda: self._set_aside(round.malformed))
        if not self.looks_around or round.lanes is None:
            return
        self._look_around_at = self._clock.monotonic() + _LOOK_AROUND_EVERY
        self._carefully(lambda: self._report_hopeless(round, rules))
        self._carefully(lambda: self._retire_silent(round))
        self._carefully(self._adopt)
        if round.lanes:  # without a lane there is no job that could have expired
            self._carefully(self._archive_expired)
        self._carefully(self._count_rounds)
        self._carefully(self._fold_statistics)

    def _carefully(self, step: Callable[[], None]) -> None:
        """An error in one step, because of something that was written by hand, does not stop the others."""
        try:
            step()
        except (StoreUnreachable, StoreRefused, Superseded):
            raise
        except DocumentLocked as error:
            self._events.emit("store.locked", loop="recruiter", error=str(error))
        except Exception as error:
            self._events.emit("loop.failed", loop="recruiter", trace=trace_of(error))

    def _archive_cancelled(self) -> None:
        self._archive(archive_cancelled, "job.cancelled")

    def _archive_expired(self) -> None:
        self._archive(archive_expired, "job.expired")

    def _archive(self, step: Callable[..., Parsed[JobId]], event: str) -> None:
        """Batch by batch; if there are very many, the next round goes on at once."""
        until = self._clock.monotonic() + _CANCELLING
        while True:
            tell = partial(self._tell_ended, event)
            ended = step(self._store, self._clock, self._leadership.term, self._leadership.holder, tell)
            self._set_aside(ended.unreadable)
            if not ended and not ended.unreadable:
                return
            if self._clock.monotonic() > until:
                self._wake()
                return

    def _release_at(self, round: Round) -> float:
        """When to look at flows again, after a look that has led to nothing. At once when all that workers held has
        ended: a step may have waited for the last of it."""
        if not round.assigned and not any(worker.holds for worker in round.roster):
            return self._looked_at + (_LONGEST_BUSY_REST if self._broken else 0.0)
        flows = round.assigned or not any(worker.room > 0 for worker in round.roster)
        busy_rest = min(self._in_vain * _BUSY_REST, _LONGEST_BUSY_REST)
        return self._looked_at + (busy_rest if flows else _REST * self._look_took)

    def _release(self, not_before: float) -> None:
        """Looks at the flows that have markers, until none is left, some steps may start, or it has taken long enough;
        then the next round goes on with this look."""
        until = self._clock.monotonic() + _RELEASING
        while (began := self._clock.monotonic()) < until:
            term, holder = self._leadership.term, self._leadership.holder
            if self._look.term != term:
                if began < not_before:
                    return
                self._broken = {flow: again_at for flow, again_at in self._broken.items() if again_at > began}
                parts = releasing(self._store, self._clock.now, term, holder, self._broken.keys())
                self._look = _Look(parts, term)
            part = next(self._look.parts, None)
            self._look.took += self._clock.monotonic() - began
            if part is not None:
                self._look.report.add(part)
                self._tell_released(part)
                if part.released:
                    break  # these are given before the look goes on
                continue
            look, self._look = self._look, _Look(iter(()), -1)
            in_vain = not look.report.anything and look.report.markers
            self._look_took = look.took if in_vain else 0.0
            self._in_vain = self._in_vain + 1 if in_vain else 0
            self._looked_at = self._clock.monotonic()
            if not look.report.anything:
                return
            self._wake()
            not_before = 0.0
        self._wake()

    def _tell_released(self, report: Released) -> None:
        for id, reason in report.failed:
            self._events.emit("job.dependency_failed", job=id, reason=reason)
        for flow, state in report.ended:
            self._events.emit("flow.ended", flow=flow.id, flow_name=flow.name, state=state.value)
        for id, new_id in report.renamed:
            self._events.emit("flow.end_renamed", job=new_id, wanted=id)
        for broken, error in report.broken:
            is_locked = isinstance(error, DocumentLocked)  # by a transaction of somebody else: that passes
            skipped_for = _SKIP_LOCKED_SECONDS if is_locked else _SKIP_BROKEN_SECONDS
            self._broken[broken] = self._clock.monotonic() + skipped_for
            if not is_locked and len(self._broken) <= _MOST_BROKEN_TOLD:
                self._events.emit("flow.broken", flow=broken, error=text_of(error))

    def _tell_ended(self, event: str, document: Document) -> None:
        trace_id = trace_id_of(document.get("trace_context"))
        traced = {} if trace_id is None else {"trace_id": trace_id}
        attempts = document.get("attempts")
        who = cancelled_by(document) if event == "job.cancelled" else {}
        self._events.emit(event, job=document["_id"], task=document.get("task"), attempts=attempts, **who, **traced)

    def _set_aside(self, malformed: Sequence[Unreadable]) -> None:
        term, holder = self._leadership.term, self._leadership.holder
        for id, reason in set_jobs_aside(self._store, term, holder, self._clock.now(), malformed):
            self._events.emit("job.set_aside", job=id, reason=reason)
            self._wake()  # others may stand behind them

    def _retire_silent(self, round: Round) -> None:
        for retired in self._rescue.retire_silent(round.roster, round.unreadable):
            self._events.emit(
                "worker.retired" if retired.unreadable is None else "worker.unreadable", **asdict(retired)
            )

    def _adopt(self) -> None:
        adoption = adopt(self._store, self._leadership.term, self._leadership.holder, self._clock.now())
        for id, reason in adoption.set_aside:
            self._events.emit("job.set_aside", job=id, reason=reason)
        for id, holder in adoption.taken_over:
            self._events.emit("job.taken_over", job=id, holder=holder)
        if adoption.adopted:
            self._wake()

    def _count_rounds(self) -> None:
        """For metrics. Those of a leader that dies, or cannot write, are missing there and nowhere else."""
        now = self._clock.monotonic()
        if now >= self._count_at and self._rounds.count:
            self._count_at = now + _COUNT_EVERY
            rounds, assigned, self._rounds, self._assigned = self._rounds, self._assigned, Spread(), 0
            self._store.statistics.count_rounds(rounds, assigned)

    def _fold_statistics(self) -> None:
        now = self._clock.monotonic()
        if now >= self._fold_at:
            more = self._store.transactions.fold_statistics(self._clock.now()) >= FOLDED_AT_ONCE
            self._fold_at = now + (1.0 if more else _FOLD_EVERY)

    def _report_hopeless(self, round: Round, rules: Rules) -> None:
        """Says once, after a grace, which jobs nobody can run: an unknown task, a group that nobody works on, or more
        than any host has."""
        now = self._clock.monotonic()
        for group, task in self._unserved.due(dict.fromkeys(unserved(round), ""), now):
            self._events.emit("lane.unserved", group=group, task=task)
        never = {lane: str(reason) for lane, reason in never_fitting(round, rules).items()}
        for lane, reason in self._never_fitting.due(never, now).items():
            self._events.emit("lane.never_fits", group=lane.group, task=lane.task, reason=reason)


class Repeater:
    """Looks at the schedulers: at the moment of the next occurrence, and now and then for new ones."""

    def __init__(self, store: Store, events: Events, policies: SchedulePolicyRegistry) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._policies = policies
        self._next_at: datetime | None = None
        self._look_at = 0.0
        self._promises_at = 0.0
        self._broken: dict[str, str] = {}
        self._overdue: set[str] = set()
        self._unreadable: dict[bytes, float] = {}
        """The ids of schedulers that cannot be read, as bytes, and when to look at each again."""

    def seconds_left(self) -> float | None:
        """Until the next occurrence; None when there is none to come."""
        return None if self._next_at is None else (self._next_at - self._clock.now()).total_seconds()

    def look_soon(self) -> None:
        """Something may have changed."""
        self._look_at = 0.0

    def step(self, term: int, holder: str) -> None:
        """Makes what is due, if anything is; cheap when nothing is."""
        left = self.seconds_left()
        if self._clock.monotonic() < self._look_at and (left is None or left > 0):
            return
        self._look_at = self._clock.monotonic() + _BETWEEN_LOOKS
        now = self._clock.now()
        self._unreadable = {key: at for key, at in self._unreadable.items() if at > self._clock.monotonic()}
        self._next_at = self._store.schedulers.next_at(self._unreadable)
        if self._next_at is not None and self._next_at <= now:
            self._make(term, holder, now)
        if self._clock.monotonic() >= self._promises_at:
            self._promises_at = self._clock.monotonic() + _BETWEEN_PROMISES
            self._keep_promises(now)

    def _make(self, term: int, holder: str, now: datetime) -> None:
        repetition = repeat(self._store, self._policies, term, holder, now, self._unreadable)
        for document in repetition.unreadable:
            self._unreadable[key_of(document.raw)] = self._clock.monotonic() + _UNREADABLE_FOR
        if repetition.made or repetition.skipped:
            self._events.emit("scheduler.repeated", made=repetition.made, skipped=repetition.skipped)
        unreadable = ((document.id, document.reason) for document in repetition.unreadable)
        for urn, reason in (*repetition.broken, *unreadable):
            if self._broken.get(urn) != reason:
                self._events.emit("scheduler.broken", urn=urn, reason=reason)
            self._broken[urn] = reason
        self._next_at = now if repetition.more else self._store.schedulers.next_at(self._unreadable)

    def _keep_promises(self, now: datetime) -> None:
        late = {each.urn: each.text for each in overdue(self._store, now)}
        for urn in late.keys() - self._overdue:
            self._events.emit("scheduler.overdue", urn=urn, told=late[urn])
        self._overdue = set(late)
