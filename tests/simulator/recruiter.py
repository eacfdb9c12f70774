"""A simulated recruiter: the real leadership, rounds and rescues, in the order of `processes/recruiter.py`."""

from __future__ import annotations

from contextlib import suppress

from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.planning.lookahead import Lookahead
from recruiter.domain.planning.rules import Rules
from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.errors import StoreError, StoreUnreachable, Superseded
from recruiter.processes.loop import Presence
from recruiter.steps.adopt import adopt
from recruiter.steps.assign import Round, assign, recount
from recruiter.steps.cancel import archive_cancelled, archive_expired
from recruiter.steps.lead import Leadership
from recruiter.steps.repeat import repeat
from recruiter.steps.rescue import Rescue
from tests.simulator.process import Process

DEAD_AFTER = 3.0


class Recruiter:
    def __init__(self, process: Process, lease: float, lookahead: Lookahead) -> None:
        self._process = process
        self._store, self._clock, self._hub = process.store, process.clock, process.hub
        self._leadership = Leadership(self._store, self._clock, lease)
        self._rescue = Rescue(self._store, self._clock, DEAD_AFTER, PolicyRegistry())
        self._presence = Presence(self._store, "recruiter", every=2.0)
        self._schedules = SchedulePolicyRegistry()
        self._rules = Rules()
        self._lookahead = lookahead
        self._led = False
        self._look_around_at = 0.0
        self._failures = 0
        self._pause = 0.05

    def start(self) -> None:
        self._process.threads.start(self._main)
        self._process.threads.start(self._keep)

    def _keep(self) -> None:
        while True:
            self._hub.sleep(self._leadership.interval)
            with suppress(StoreError):
                self._leadership.keep()

    def _main(self) -> None:
        while True:
            try:
                leading = self._leadership.attend()
                if leading != self._led:
                    self._rules, self._led = Rules(), leading
                pause = self._lead() if leading else self._leadership.look_every
                self._presence.show()
                self._failures = 0
            except StoreError as error:
                if isinstance(error, StoreUnreachable):
                    with suppress(StoreError):
                        self._leadership.unblock()
                self._failures += 1
                pause = min(2.0, 0.2 * 2.0**self._failures)
            self._hub.sleep(pause * self._hub.random.uniform(0.5, 1.0))

    def _lead(self) -> float:
        try:
            now = self._clock.now()
            term, holder = self._leadership.term, self._leadership.holder
            repeat(self._store, self._schedules, term, holder, now)
            self._learn_rules()
            round = assign(
                self._store,
                term,
                now,
                self._rules,
                must_query=self._hub.now >= self._look_around_at,
                is_quiet=self._rescue.is_quiet,
                lookahead=self._lookahead,
            )
            self._leadership.saw(round.roster)
            self._look_around(round, term, holder)
        except Superseded:
            self._leadership.verify()
            return 0.2
        except StoreError:
            self._leadership.doubt()
            raise
        if round.refused:
            self._leadership.verify()
        shortest = 0.4 if self._process.calm else 0.05
        self._pause = shortest if round.assigned else min(1.2, 2 * self._pause)
        return self._pause

    def _learn_rules(self) -> None:
        rules = self._store.limits.read()
        if rules.limits and rules.limits != self._rules.limits:
            recount(self._store, self._leadership.term, rules, self._clock.now())
        self._rules = rules

    def _look_around(self, round: Round, term: int, holder: str) -> None:
        if CANCELLED_LANE in (round.lanes or ()):
            archive_cancelled(self._store, self._clock, term, holder)
        if self._hub.now < self._look_around_at or round.lanes is None:
            return
        self._look_around_at = self._hub.now + 0.9
        self._rescue.retire_silent(round.roster, round.unreadable)
        adopt(self._store, term, holder, self._clock.now())
        archive_expired(self._store, self._clock, term, holder)
