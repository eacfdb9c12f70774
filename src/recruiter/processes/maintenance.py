"""Maintenance: the duties of the leader in addition to assigning jobs. Each of these steps is short, and an error in
one does not prevent the others.

    before a round   repeat        jobs of the occurrences that are due
                     release       steps of flows, while steps end: the round can assign them
    after a round    release       the same, where the round found the first markers
                     cancel        archives cancelled jobs that no worker holds
                     set aside     documents that cannot be read
    each second      report        jobs that no worker can run
                     rescue        retires workers that have been silent for too long
                     adopt         jobs that other programs have inserted
                     cancel        archives jobs that have expired
                     statistics    the number of rounds; folds the counts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial

from bson import ObjectId

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.planning.rules import Rules
from recruiter.domain.planning.situation import Situation
from recruiter.domain.policy_registry import SchedulePolicyRegistry
from recruiter.domain.statistics import Spread
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.errors import DocumentLocked, StoreRefused, StoreUnreachable, Superseded
from recruiter.events import Events, LastingFacts
from recruiter.instruments import trace_id_of
from recruiter.steps.adopt import adopt, set_jobs_aside
from recruiter.steps.assign import Round, unserved
from recruiter.steps.cancel import archive_cancelled, archive_expired
from recruiter.steps.lead import Leadership
from recruiter.steps.release import Released, releasing
from recruiter.steps.repeat import repeat
from recruiter.steps.rescue import Rescue
from recruiter.store.codec import Document
from recruiter.store.collections.statistics import FOLDED_AT_ONCE
from recruiter.store.database import Store
from recruiter.store.errors import text_of, trace_of
from recruiter.store.outcomes import cancelled_by
from recruiter.views.health import overdue

_CHECK_EVERY_SECONDS = 0.8
"""Shorter than the pause of a leader that watches workers (1 s), so that each of its rounds checks for silent ones:
a leader that sees a worker only every other second takes half as long again to retire it."""
_HOPELESS_AFTER_SECONDS = 30.0
"""Jobs that no worker can run are reported after this time: a worker that knows them may be about to start."""
_FOLD_EVERY_SECONDS = 20.0
_COUNT_EVERY_SECONDS = 15.0
_MAX_ARCHIVING_SECONDS = 0.5
"""Time that a round may spend on cancelled jobs; others wait for workers."""
_MAX_RELEASING_SECONDS, _MAX_RELEASING_FIRST_SECONDS = 0.02, 0.1
"""Time to spend on flows after a round, while workers wait for the first released steps; and before a round, which
would fill their buffers with other jobs."""
_RELEASE_REST_SECONDS, _MAX_RELEASE_REST_SECONDS = 0.05, 0.3
"""Rest before the next pass over flows, for each pass in a row without effect: thousands of steps may end that one step
waits for, and workers wait for the leader during a pass."""
_FLOWS_ACTIVE_SECONDS = 5.0
"""After a marker of a flow, more are expected for this time."""
_SKIP_BROKEN_SECONDS = 30.0
"""A flow that cannot be processed is tried again after this time: a person may have repaired it."""
_SKIP_LOCKED_SECONDS = 1.0
"""The same of a flow that another transaction holds."""
_MAX_BROKEN_LOGGED = 20
_SCHEDULERS_EVERY_SECONDS = 1.0
"""A busy leader notices a new or changed scheduler after this time; an idle one receives an event."""
_LOCKED_SCHEDULERS_REST = timedelta(seconds=1)
"""The next pass over due schedulers, if another transaction holds one."""
_OVERDUE_EVERY_SECONDS = 60.0


class Maintenance:
    """The other duties of a leader, in the thread that assigns. `wake` requests another round immediately."""

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
        self._check_at = 0.0
        self._pass: Iterator[Released] | None = None
        """The pass over flows that continues in the next round; it takes several if there is much to release."""
        self._pass_term, self._pass_report = -1, Released()
        self._passes_without_effect = 0
        self._release_at = 0.0
        """When the next pass over flows is due, if there are markers."""
        self._flows_active_until = 0.0
        self._broken: dict[ObjectId, float] = {}
        """Flows that cannot be processed, and when to try each again."""
        self._fold_at = 0.0
        self._rounds, self._assigned, self._count_at = Spread(), 0, 0.0
        self._unserved = LastingFacts[tuple[str, str]](_HOPELESS_AFTER_SECONDS)
        self._never_fitting = LastingFacts[Lane](_HOPELESS_AFTER_SECONDS)

    @property
    def looks_around(self) -> bool:
        """Whether it is time for the steps of once a second, which need a round that has read all lanes."""
        return self._clock.monotonic() >= self._check_at

    @property
    def expects_markers(self) -> bool:
        """Whether steps of flows have ended lately, so that others may wait for the next pass."""
        return self._clock.monotonic() < self._flows_active_until

    def look_soon(self) -> None:
        """Something has changed that no round notices."""
        self._check_at = 0.0
        self._repeater.look_soon()

    def until_next(self, round: Round) -> float | None:
        """Seconds until there is something to do, as far as that is known."""
        waits = [self._repeater.seconds_left()]
        if round.marked:  # a round that did not read the lanes does not know
            waits.append(self._release_at - self._clock.monotonic())
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def before_round(self) -> None:
        self._carefully(lambda: self._repeater.step(self._leadership.term, self._leadership.holder))
        if self.expects_markers and self._pass is None:  # an unfinished pass has released steps: these come first
            self._carefully(lambda: self._release(_MAX_RELEASING_FIRST_SECONDS))

    def after_round(self, round: Round, seconds: float, rules: Rules) -> None:
        """Handles immediately the findings of a round: markers of flows, cancelled jobs, malformed jobs. The other
        duties come about once a second while busy, and with every round while idle."""
        self._rounds.add(seconds)
        self._assigned += round.assigned
        if round.marked or self._pass is not None:
            # While no job runs, a step may wait for the job that has just ended: the pass does not rest first. A flow
            # that cannot be read would make it pass for ever.
            is_idle = not round.assigned and not any(worker.holds for worker in round.roster)
            self._carefully(lambda: self._release(_MAX_RELEASING_SECONDS, at_once=is_idle and not self._broken))
        if CANCELLED_LANE in (round.lanes or ()):
            self._carefully(lambda: self._archive(archive_cancelled, "job.cancelled"))
        if round.malformed:
            self._carefully(lambda: self._set_aside(round.malformed))
        if not self.looks_around or round.lanes is None:
            return  # a round without lanes has not queried the waiting jobs
        self._check_at = self._clock.monotonic() + _CHECK_EVERY_SECONDS
        self._carefully(lambda: self._report_hopeless(round, rules))
        self._carefully(lambda: self._retire_silent(round))
        self._carefully(self._adopt)
        if round.lanes:  # without a lane there is no job that could have expired
            self._carefully(lambda: self._archive(archive_expired, "job.expired"))
        self._carefully(self._count_rounds)
        self._carefully(self._fold_statistics)

    def _carefully(self, step: Callable[[], None]) -> None:
        """Calls `step`. An error, because of something that was written by hand, does not stop the other steps."""
        try:
            step()
        except (StoreUnreachable, StoreRefused, Superseded):
            raise
        except DocumentLocked as error:
            self._events.emit("store.locked", loop="recruiter", error=str(error))
        except Exception as error:
            self._events.emit("loop.failed", loop="recruiter", trace=trace_of(error))

    def _archive(self, step: Callable[..., Parsed[JobId]], event: str) -> None:
        """Archives cancelled or expired jobs, in batches. If there are very many, the next round continues soon."""
        until = self._clock.monotonic() + _MAX_ARCHIVING_SECONDS
        while True:
            tell = partial(self._tell_ended, event)
            ended = step(self._store, self._clock, self._leadership.term, self._leadership.holder, tell)
            self._set_aside(ended.unreadable)
            if not ended and not ended.unreadable:
                return
            if self._clock.monotonic() > until:
                self._wake()
                return

    def _release(self, seconds: float, *, at_once: bool = False) -> None:
        """Continues the pass over flows, or begins the next one: until steps were released, nothing is left, or these
        seconds have passed. With `at_once` it does not rest after a pass without effect: all jobs that workers held
        have ended, and a step may have waited for the last of them."""
        term, holder = self._leadership.term, self._leadership.holder
        until = self._clock.monotonic() + seconds
        while (now := self._clock.monotonic()) < until:
            if self._pass is None or self._pass_term != term:
                if now < self._release_at and not at_once:
                    return
                self._broken = {flow: again_at for flow, again_at in self._broken.items() if again_at > now}
                self._pass = releasing(self._store, self._clock.now, term, holder, self._broken.keys())
                self._pass_term, self._pass_report = term, Released()
            part = next(self._pass, None)
            if part is None:
                self._pass = None
                had_effect = self._pass_report.anything
                was_in_vain = not had_effect and (self._pass_report.markers or self._broken)
                self._passes_without_effect = self._passes_without_effect + 1 if was_in_vain else 0
                rest = min(self._passes_without_effect * _RELEASE_REST_SECONDS, _MAX_RELEASE_REST_SECONDS)
                self._release_at = self._clock.monotonic() + rest
                if not had_effect:
                    return
            else:
                self._pass_report.add(part)
                self._tell_released(part)
                if part.markers:
                    self._flows_active_until = now + _FLOWS_ACTIVE_SECONDS
                if part.released:
                    break  # workers get these before the pass continues
        self._wake()

    def _tell_released(self, report: Released) -> None:
        """Emits the events of a part of a pass, and notes the flows that the next passes skip."""
        for id, reason in report.failed:
            self._events.emit("job.dependency_failed", job=id, reason=reason)
        for flow, state in report.ended:
            self._events.emit("flow.ended", flow=flow.id, flow_name=flow.name, state=state.value)
        for id, new_id in report.renamed:
            self._events.emit("flow.end_renamed", job=new_id, wanted=id)
        for broken, error in report.broken:
            is_locked = isinstance(error, DocumentLocked)  # by another transaction: that passes
            skipped_for = _SKIP_LOCKED_SECONDS if is_locked else _SKIP_BROKEN_SECONDS
            self._broken[broken] = self._clock.monotonic() + skipped_for
            if not is_locked and len(self._broken) <= _MAX_BROKEN_LOGGED:
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
        """Adopts documents that other programs have inserted, and reports documents that cannot be jobs."""
        adoption = adopt(self._store, self._leadership.term, self._leadership.holder, self._clock.now())
        for id, reason in adoption.set_aside:
            self._events.emit("job.set_aside", job=id, reason=reason)
        for id, holder in adoption.taken_over:
            self._events.emit("job.taken_over", job=id, holder=holder)
        if adoption.adopted:
            self._wake()

    def _count_rounds(self) -> None:
        """For metrics only: the last rounds of a leader that dies are not counted."""
        now = self._clock.monotonic()
        if now >= self._count_at and self._rounds.count:
            self._count_at = now + _COUNT_EVERY_SECONDS
            rounds, assigned, self._rounds, self._assigned = self._rounds, self._assigned, Spread(), 0
            self._store.statistics.count_rounds(rounds, assigned)

    def _fold_statistics(self) -> None:
        now = self._clock.monotonic()
        if now >= self._fold_at:
            more = self._store.transactions.fold_statistics(self._clock.now()) >= FOLDED_AT_ONCE
            self._fold_at = now + (1.0 if more else _FOLD_EVERY_SECONDS)

    def _report_hopeless(self, round: Round, rules: Rules) -> None:
        """Reports once, after a delay, the jobs that no worker can run: an unknown task, a group without workers, or
        needs that no host has."""
        now = self._clock.monotonic()
        for group, task in self._unserved.due(dict.fromkeys(unserved(round), ""), now):
            self._events.emit("lane.unserved", group=group, task=task)
        situation = Situation(round.roster, (), rules, round.at)
        never = {lane: str(reason) for lane, reason in situation.never_fitting(round.lanes or ()).items()}
        for lane, reason in self._never_fitting.due(never, now).items():
            self._events.emit("lane.never_fits", group=lane.group, task=lane.task, reason=reason)


class Repeater:
    """Checks the schedulers: at the time of the next occurrence, and regularly for new ones."""

    def __init__(self, store: Store, events: Events, policies: SchedulePolicyRegistry) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._policies = policies
        self._next_at: datetime | None = None
        self._look_at = 0.0
        self._overdue_at = 0.0
        self._broken: dict[str, str] = {}
        self._overdue: set[str] = set()

    def seconds_left(self) -> float | None:
        """Until the next occurrence; None when there is none to come."""
        return None if self._next_at is None else (self._next_at - self._clock.now()).total_seconds()

    def look_soon(self) -> None:
        """Something may have changed."""
        self._look_at = 0.0

    def step(self, term: int, holder: str) -> None:
        """Stores the jobs of due occurrences, and reports overdue schedulers; cheap when there is nothing to do."""
        left = self.seconds_left()
        if self._clock.monotonic() < self._look_at and (left is None or left > 0):
            return
        self._look_at = self._clock.monotonic() + _SCHEDULERS_EVERY_SECONDS
        now = self._clock.now()
        self._next_at = self._store.schedulers.next_at()
        if self._next_at is not None and self._next_at <= now:
            self._store_due(term, holder, now)
        if self._clock.monotonic() >= self._overdue_at:
            self._overdue_at = self._clock.monotonic() + _OVERDUE_EVERY_SECONDS
            late = overdue(self._store, now)
            for urn in late.keys() - self._overdue:
                self._events.emit("scheduler.overdue", urn=urn, told=late[urn])
            self._overdue = set(late)

    def _store_due(self, term: int, holder: str, now: datetime) -> None:
        """Stores the jobs of due occurrences, and reports schedulers that cannot be processed, once for each reason."""
        repetition = repeat(self._store, self._policies, term, holder, now)
        if repetition.made or repetition.skipped:
            self._events.emit("scheduler.repeated", made=repetition.made, skipped=repetition.skipped)
        for urn, reason in repetition.broken:
            if self._broken.get(urn) != reason:
                self._events.emit("scheduler.broken", urn=urn, reason=reason)
            self._broken[urn] = reason
        if repetition.locked:
            self._next_at = now + _LOCKED_SCHEDULERS_REST
        else:
            self._next_at = now if repetition.more else self._store.schedulers.next_at()
