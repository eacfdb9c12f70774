"""The recruiter process: leads if no other recruiter does, and then assigns jobs, round by round. The other duties of a
leader are in maintenance.py.

The pause after a round is short while jobs flow, and grows while nothing happens. An idle process sleeps until a change
waiter wakes it: one waits for new jobs, the other for workers that join or have room again. Then a new job is given to
a worker immediately, without a round (steps/assign.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from recruiter.application import Hook, Hooks
from recruiter.domain.job import JobId
from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.planning.arrivals import Arrival, Vacancies
from recruiter.domain.planning.fair import TurnsTaken
from recruiter.domain.planning.hosts import Reservation
from recruiter.domain.planning.lookahead import Lookahead
from recruiter.domain.planning.rules import Rules
from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.errors import StoreError, StoreUnreachable, Superseded
from recruiter.events import Events
from recruiter.processes.loop import Loop, Presence, Stop
from recruiter.processes.maintenance import Maintenance
from recruiter.processes.systemd import ServiceManager
from recruiter.settings import Settings
from recruiter.steps.assign import (
    Round,
    assign,
    assign_new,
    lacks_takers,
    recount,
    until_room,
)
from recruiter.steps.lead import Leadership
from recruiter.steps.rescue import Rescue
from recruiter.store.change_stream import FLOW_JOBS, LANE_CHANGES, LULL_SECONDS, Change, ChangeWaiter
from recruiter.store.codec import Document
from recruiter.store.collections import flows, limits, scheduled, schedulers
from recruiter.store.collections.roster import ROOM_MADE
from recruiter.store.database import Store

_RULES_EVERY_SECONDS = 1.0
_LIMITED_PAUSE_SECONDS = 0.2
"""The longest pause while jobs wait that limits or resources hold back."""
_WATCHING_PAUSE_SECONDS = 1.0
"""The longest pause while a worker holds jobs: if it dies, they should not wait for the leader. The same holds while
jobs wait and a quiet worker receives none: no change waiter reports its next heartbeat."""
_FLOWING_PAUSE_SECONDS = 0.1
"""The longest pause under load: an urgent job waits for the room that a settlement has made."""
_FLOWING_PAUSE_WITH_WAITING_SECONDS = 0.03
"""The same while steps of flows end or jobs with limits wait: the next ones wait for the leader, not for room."""
_CLOCK_DIFFERENCE_SECONDS = 0.06
"""A usual difference between the clocks of two hosts."""
_LAST_RENEWAL_SECONDS = 5.0
_DEAF_PAUSE_SECONDS = 0.2
"""The longest pause while no change waiter works."""


class RecruiterProcess:
    """The process that leads, or stands by to lead: it keeps the lease, holds rounds, and rests between them."""

    def __init__(
        self,
        store: Store,
        events: Events,
        stop: Stop,
        settings: Settings,
        *,
        policies: PolicyRegistry,
        schedules: SchedulePolicyRegistry,
        became_master: Sequence[Hook] = (),
        stept_back: Sequence[Hook] = (),
        presence: Presence | None = None,
        manager: ServiceManager | None = None,
        listen: bool = True,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        # Whether to open change waiters while idle; not worth it for a process that leads only briefly.
        self._listen = listen
        self._presence = presence
        self._lease_time = settings.lease_time.total_seconds()
        self._backoff_from = settings.backoff_from.total_seconds()
        self._backoff_to = settings.backoff_to.total_seconds()
        self._leadership = Leadership(store, store.clock, self._lease_time)
        self._rescue = Rescue(store, store.clock, settings.undeclared_dead_after, policies)
        self._maintenance = Maintenance(store, events, self._leadership, self._rescue, schedules, self.wake)
        self._hooks = Hooks(events, became_master, stept_back)
        self._loop = Loop("recruiter", self._step, stop, events, manager=manager)
        self._keeping_stop = Stop()
        self._keeping = Loop("lease", self._keep_the_lease, self._keeping_stop, events, self._leadership.interval)
        store.wakers.add(self.wake)
        store.wakers.add(self._keeping.wake)
        store.transactions.sessions.on_refused = lambda error: events.emit("session.not_ended", error=error)
        self._came_round_at = self._clock.monotonic()
        self._led = False
        self._stands_by = False
        self._rules, self._rules_at = Rules(), 0.0
        self._reserved: Mapping[JobId, Reservation] = {}
        self._turns = TurnsTaken()
        self._lookahead = Lookahead()
        self._idle_pause, self._next_round_at = self._backoff_from, 0.0
        self._flowing_until = 0.0
        self._round_wanted = threading.Event()
        self._arrivals: deque[Arrival] = deque()
        self._vacancies: Vacancies | None = None
        """The workers with room after the last round, if it left no job that could have been assigned."""
        self._waiters: tuple[ChangeWaiter, ChangeWaiter] | None = None

    def run(self) -> None:
        """Works until asked to stop; gives the lease back so that the next leader need not wait."""
        keeping = self._keeping.start()
        try:
            self._loop.run()
        finally:
            self._keeping_stop.ask()
            keeping.join(timeout=_LAST_RENEWAL_SECONDS)
            self._close()

    def _close(self) -> None:
        for waiter in self._waiters or ():
            waiter.close()
        if self._presence is not None:
            self._presence.leave()
        try:
            self._leadership.resign()
        except StoreError:
            self._events.emit("store.unreachable", loop="recruiter", error="the lease will run out by itself")
        self._note_leadership(False)
        self._hooks.close()

    def _keep_the_lease(self) -> float:
        """Renews the lease on a separate thread, so that a long round does not lose it. A round that hangs loses it."""
        if self._clock.monotonic() - self._came_round_at < self._lease_time:
            with suppress(StoreUnreachable):  # the main loop reports it
                self._leadership.keep()
        return self._leadership.interval

    def _step(self) -> float:
        """One turn of the main loop. If MongoDB does not answer, it ends sessions of dead processes with locks."""
        self._came_round_at = self._clock.monotonic()
        try:
            delay = self._attend()
        except StoreUnreachable:
            with suppress(StoreError):
                for worker in self._leadership.unblock():
                    self._events.emit("session.ended", worker=worker)
            raise
        if self._presence is not None:
            self._presence.show()
        return delay

    def _attend(self) -> float:
        """Keeps the lead, gives out new jobs, and holds a round when one is due; returns the seconds to wait."""
        leading = self._leadership.attend()
        self._note_leadership(leading)
        if not leading:
            if not self._stands_by:
                self._events.emit("recruiter.standing_by")
            self._stands_by = True
            return self._leadership.look_every
        self._stands_by = False
        now = self._clock.monotonic()
        if self._arrivals and not self._round_wanted.is_set():
            self._assign_new(now)
        if now >= self._next_round_at or self._round_wanted.is_set():
            self._next_round_at = now + self._hold_round()
        if self._round_wanted.is_set():
            return 0.0
        return max(0.0, min(self._next_round_at - self._clock.monotonic(), self._leadership.interval * 0.9))

    def _assign_new(self, now: float) -> None:
        """Gives new jobs to workers and listens again, or requests a round."""
        arrivals = [self._arrivals.popleft() for _ in range(len(self._arrivals))]
        given = False
        try:
            if self._vacancies is not None and len(arrivals) < FLOW_JOBS:
                given = assign_new(
                    self._store, self._leadership.term, self._clock.now(), arrivals, self._vacancies, self._rules
                )
        except StoreError:
            self._leadership.doubt()
            raise
        finally:
            if not given:
                self._round_wanted.set()
        if given:
            self._next_round_at = min(self._next_round_at, now + _WATCHING_PAUSE_SECONDS)
            if self._waiters is not None:
                self._waiters[0].arm()

    def _hold_round(self) -> float:
        """One round; returns the seconds until the next round. After any failed write, the term is in doubt. The wish
        for a round is cleared before the round reads anything: a wake-up during a round causes another one."""
        if self._round_wanted.is_set():
            self._idle_pause = self._backoff_from
        self._round_wanted.clear()
        self._arrivals.clear()  # the round finds them
        self._vacancies = None
        try:
            self._maintenance.before_round()
            self._learn_rules()
            began = self._clock.monotonic()
            round = assign(
                self._store,
                self._leadership.term,
                self._clock.now(),
                self._rules,
                must_query=self._maintenance.looks_around,
                reserved=self._reserved,
                turns=self._turns,
                lookahead=self._lookahead,
                is_quiet=self._rescue.is_quiet,
            )
            seconds = self._clock.monotonic() - began
            self._reserved = round.reserved
            self._leadership.saw(round.roster)
            self._maintenance.after_round(round, seconds, self._rules)
        except Superseded:
            # If it still leads, no term is higher: the write was refused for another reason. The pause prevents a busy
            # loop.
            return _DEAF_PAUSE_SECONDS if self._leadership.verify() else 0.0
        except StoreError:
            self._leadership.doubt()
            raise
        if round.refused:
            self._leadership.verify()
        elif round.exhausted:
            self._vacancies = Vacancies(round.roster)
        return self._pause_after(round)

    def _learn_rules(self) -> None:
        """Reads the rules about once a second. With a rate, reads them before every round, because they contain the
        counts of starts."""
        now = self._clock.monotonic()
        if now < self._rules_at and not any(limit.rate for limit in self._rules.limits):
            return
        self._rules_at = now + _RULES_EVERY_SECONDS  # first: a change while they are read causes another read
        try:
            rules = self._store.limits.read()
            if rules.limits and rules.limits != self._rules.limits:
                recount(self._store, self._leadership.term, rules, self._clock.now())
        except BaseException:
            self._rules_at = 0.0  # no round may assign jobs by old rules, or by none
            raise
        self._rules = rules

    def _pause_after(self, round: Round) -> float:
        """Seconds until the next round: almost none if more jobs can be given, soon while work flows, else as while
        idle."""
        now = self._clock.monotonic()
        if round.assigned >= FLOW_JOBS:
            self._flowing_until = now + LULL_SECONDS
            for waiter in self._waiters or ():
                waiter.hang_up()  # polling is cheap under load
        if round.assigned:
            self._idle_pause = self._backoff_from
            if round.refused or (round.more and any(worker.room for worker in round.roster_now)):
                return self._idle_pause
        if now < self._flowing_until:
            has_waiting = self._maintenance.expects_markers or round.limited
            longest = _FLOWING_PAUSE_WITH_WAITING_SECONDS if has_waiting else _FLOWING_PAUSE_SECONDS
            # `until_room` is 0 while the pace of a full worker is unknown.
            return max(2 * self._backoff_from, min(until_room(round), longest))
        return self._pause_while_idle(round)

    def _pause_while_idle(self, round: Round) -> float:
        """Seconds until the next round while idle: they grow, but never past the next event that the leader knows
        of."""
        has_room = any(worker.room > 0 for worker in round.roster_now)
        # A silent worker is first quiet, after half of this time (`Rescue.is_quiet`), and then dead.
        longest = min([self._backoff_to, *(self._rescue.dead_after(worker) / 2 for worker in round.roster)])
        is_listening = self._start_listening(round)
        if is_listening:
            # The clock of a producer may be ahead: then its job is not due yet, and no other event will come. If no
            # worker has room, the next event is a settlement.
            self._idle_pause = (
                min(max(4 * self._idle_pause, _CLOCK_DIFFERENCE_SECONDS), longest) if has_room else longest
            )
            pauses = [self._idle_pause]
        else:
            self._idle_pause = min(2 * self._idle_pause, longest)
            pauses = [self._idle_pause, _DEAF_PAUSE_SECONDS]
        # No event tells that a worker has died, or that a quiet one, which `assign` shows as draining, is back.
        if any(worker.holds or (worker.draining and round.lanes) for worker in round.roster_now):
            pauses.append(_WATCHING_PAUSE_SECONDS)
        if round.limited:
            pauses.append(_LIMITED_PAUSE_SECONDS)  # a rate may allow the next job at any time
        if round.lanes and has_room:
            # The search begins at the time of the round, so it finds a job that became due since then.
            upcoming = self._store.due_jobs.next_due(round.at)
            if upcoming is not None:
                pauses.append(max(0.001, (upcoming - self._clock.now()).total_seconds()))
        until_next = self._maintenance.until_next(round)
        if until_next is not None:
            pauses.append(max(0.001, until_next))
        return min(pauses)

    def _start_listening(self, round: Round) -> bool:
        """Arms the change waiters that matter; true if their events would arrive."""
        if not self._listen:
            return False
        jobs, room = self._change_waiters()
        jobs.arm()
        if not lacks_takers(round):
            return jobs.listening
        room.arm()
        return jobs.listening and room.listening

    def _change_waiters(self) -> tuple[ChangeWaiter, ChangeWaiter]:
        if self._waiters is None:
            self._waiters = (
                ChangeWaiter(self._store.database, arrivals_in(self._store), self._arrived, self._deaf, LANE_CHANGES),
                ChangeWaiter(self._store.roster.collection, ROOM_MADE, lambda _: self.wake(), self._deaf),
            )
        return self._waiters

    def _arrived(self, changes: Sequence[Change]) -> None:
        """Handles an event while idle. Usually it is a new job to assign; it may also be a scheduler, another limit, or
        a document that another program has inserted."""
        if not changes or any(_is_unusual(self._store, change) for change in changes):
            self._maintenance.look_soon()
            self._rules_at = 0.0
        arrivals = [change.arrival for change in changes if change.arrival is not None]
        if arrivals and len(arrivals) == len(changes):
            self._arrivals.extend(arrivals)
            self._loop.wake()
        else:
            self.wake()

    def wake(self) -> None:
        """Requests an immediate check of the lease and, while leading, a round."""
        self._round_wanted.set()
        self._loop.wake()

    def _deaf(self, error: str | None) -> None:
        if error is None:
            self._events.emit("change_stream.back")
        else:
            self._events.emit("change_stream.failed", error=error)

    def _note_leadership(self, leading: bool) -> None:
        """Reports a change of the lead, and calls the hooks of the application for it."""
        if leading and not self._led:
            self._rules, self._rules_at = Rules(), 0.0  # the counts of another leader are read again
            self._vacancies = None
            self._events.emit("leader.elected", term=self._leadership.term)
            self._hooks.became_master()
        elif self._led and not leading:
            self._events.emit("leader.stept_back")
            self._hooks.stept_back()
        self._led = leading


def arrivals_in(store: Store) -> Document:
    """The filter for the change stream of the database: the changes after which the leader may have work."""
    jobs = [store.name_of(scheduled.NAME), store.name_of(schedulers.NAME)]
    return {
        "$or": [
            {
                "ns.coll": {"$in": jobs},
                "operationType": {"$in": ["insert", "update", "replace"]},
                **scheduled.NOT_A_PROGRESS_MARK,
            },
            {"ns.coll": store.name_of(limits.NAME)},
            {"ns.coll": store.name_of(flows.MARKERS), "operationType": "insert"},
        ]
    }


def _is_unusual(store: Store, change: Change) -> bool:
    """Whether it is neither a job that waits in a lane nor a marker of a flow."""
    return change.collection != store.name_of(flows.MARKERS) and (
        change.collection != store.name_of(scheduled.NAME) or change.lane in (None, CANCELLED_LANE)
    )
