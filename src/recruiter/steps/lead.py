"""Lead: who assigns jobs, and how it is made sure that two leaders are harmless.

Any number of recruiters run; one leads. The lease document holds a *term* that grows at every takeover.

    follower ──the lease's counter stood still──▶ acquire: term+1 ──▶ raise the term on every roster document ──▶ leader
        ▲                                                                                                          │
        └──────────────── renewal refused: somebody else has taken over ◀──────────────────────────────────────────┘

Time only decides when to try. What protects the jobs is the term: every assignment is a write on a worker's roster
document that matches only while no newer term has been written there, and a new leader writes its term on all of them
*before* it reads who holds what. An old leader that wakes up from a long freeze finds no document that takes its
writes. A worker that joins meanwhile is not ready until it has read the newest term itself.

If the outcome of an assignment is unknown (the network broke), the leader cannot know what the roster will say, now or
after a write that is still on its way: it takes a new term before it goes on, and the late write no longer matches.
"""

from __future__ import annotations

import os
import secrets
import socket

from recruiter.clock import Clock
from recruiter.domain.observation import Observation
from recruiter.store.database import Store
from recruiter.store.leases import Lease

LOOKS_PER_LEASE = 4
"""The leader renews, and followers look, this often in a lease time."""

_LEASE = "lease"


class Leadership:
    def __init__(self, store: Store, clock: Clock, lease_time: float) -> None:
        self._store = store
        self._clock = clock
        self.interval = lease_time / LOOKS_PER_LEASE
        # Seen late by one look and acted on late by another: together still within one lease time.
        self._silence = lease_time - 2 * self.interval
        self._observation = Observation(longest_gap=1.5 * self.interval)
        self._renewed_at = 0.0
        self._mine: Lease | None = None
        self._certain = False

    @property
    def leading(self) -> bool:
        return self._mine is not None and self._certain

    @property
    def term(self) -> int:
        return self._mine.term if self._mine else 0

    @property
    def holder(self) -> str:
        return (self._mine.holder if self._mine else None) or ""

    def attend(self) -> bool:
        """Keeps the lease, or watches it and takes it when it is free. To be called every `interval`."""
        if self._mine is None:
            self._follow()
        elif not self._certain:
            self._take_a_new_term(self._mine)
        elif self._clock.monotonic() - self._renewed_at >= self.interval * 0.9:
            self._renew(self._mine)
        return self.leading

    def doubt(self) -> None:
        """An assignment may or may not have been written: no more of this term."""
        self._certain = False

    def verify(self) -> bool:
        """Asks now whether the term still stands; for when a write was refused."""
        if self._mine is not None:
            self._renew(self._mine)
        return self.leading

    def resign(self) -> None:
        if self._mine is not None:
            self._store.leases.resign(self.term, self.holder)
            self._step_back()

    def _follow(self) -> None:
        seen = self._store.leases.read()
        if seen is None or seen.holder is None:
            self._acquire(seen)
            return
        still = self._observation.still_for(_LEASE, (seen.term, seen.beats), self._clock.monotonic())
        if still >= self._silence:
            self._acquire(seen)

    def _acquire(self, seen: Lease | None) -> None:
        attempt = secrets.token_hex(8)  # new each time: see store/leases.py
        who = {"host": socket.gethostname(), "pid": os.getpid(), "session": self._store.settlement.session_id}
        self._mine, self._certain = None, False
        # Terms never go back, even if somebody removed the lease: the roster remembers the highest.
        first = self._store.roster.highest_term() + 1 if seen is None else 0
        if seen is not None:
            self._store.settlement.end_session_of(seen.session)  # it may have died in the middle of a transaction
        self._mine = self._store.leases.acquire(seen, attempt, who, first, self._store.clock.now())
        if self._mine is not None:
            self._store.roster.raise_term(self._mine.term)
            self._certain = True
            self._renewed_at = self._clock.monotonic()
            self._observation.forget()

    def _take_a_new_term(self, mine: Lease) -> None:
        seen = self._store.leases.read()
        if seen is None or seen.holder != mine.holder:
            self._step_back()
        else:
            self._acquire(seen)

    def _renew(self, mine: Lease) -> None:
        asked_at = self._clock.monotonic()
        if self._store.leases.renew(mine.term, mine.holder or ""):
            self._renewed_at = asked_at
        else:
            self._step_back()

    def _step_back(self) -> None:
        self._mine, self._certain = None, False
        self._observation.forget()
