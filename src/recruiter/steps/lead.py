"""Lead: one recruiter is the leader and assigns jobs; two leaders at once do no harm.

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

A new term is above every term that stands anywhere: in the lease, on the roster, beside the counts of starts. So a
lease that somebody removed or restored from a backup costs one more term, and nothing else.

A worker that is killed in the middle of a settlement leaves its roster document locked on the server for a minute, and
the leader could give nobody anything meanwhile. A write of the leader on the roster therefore waits for half a second
at most; then `unblock` ends the sessions of the workers that hold a lock and have shown no life since. One that lives
after all settles once more.

A transaction of the leader proves its term by a write on the lease, and so locks it against renewals until it ends. A
follower therefore asks the server whether that transaction is at work before it takes the lease over.

A lease that no recruiter watches is renewed less often: a follower leaves a mark on it now and then, and every renewal
says when to expect the next one. A recruiter that starts beside a leader without followers waits for one and a half of
its intervals, a follower for three of the quick ones. Only the time of a takeover depends on it.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress

from recruiter.clock import Clock
from recruiter.domain.observation import Observation
from recruiter.domain.planning.workers import RosterWorker
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import StoreError
from recruiter.store.collections.leases import WATCHED_SECONDS, Lease
from recruiter.store.collections.roster import PATIENCE
from recruiter.store.database import Store

_LEASE, _WORK = "lease", "work"
_SPARED_SECONDS, _MAX_SPARED_SECONDS = 1.0, 16.0
"""Time in which the session of one worker is not ended again: the first time, and at most. It doubles each time: one
that lives and settles slowly must come to an end, and one that was slow and then dies must not stop the others."""
_FORGIVEN_SECONDS = 60.0
"""After this time it is forgotten that the session of a worker was ended."""
_MAX_PATIENCE_FACTOR = 8.0
_UNWATCHED_INTERVAL_SHARE = 0.4
"""Of the lease time: between two renewals while nobody watches. One and a half of these are well within it."""
_SILENT_AFTER_INTERVALS = 1.5
"""How many of the intervals that the holder has promised must pass before it counts as silent."""
_MARK_EVERY_SECONDS = WATCHED_SECONDS / 3
"""Seconds after which a follower shows again that it watches the lease."""


class Leadership:
    def __init__(self, store: Store, clock: Clock, lease_time: float) -> None:
        self._store = store
        self._clock = clock
        # Three renewals may be late before anybody takes over; half a lease where it is short, not below a second.
        self._silence = max(lease_time / 4, min(lease_time / 2, 1.0))
        self._seldom = max(self._silence, _UNWATCHED_INTERVAL_SHARE * lease_time)
        self.interval = self._quick = self._silence / 3
        """Seconds between two renewals of a leader; more while nobody watches the lease."""
        self._promise = self._quick
        """The interval that the next renewal announces to followers. It is kept from then on, not before: a follower
        that trusts a shorter one takes over from a leader that lives."""
        self.look_every = self._silence / 5
        """Seconds between two looks of a follower."""
        self._observation = Observation()
        self._lock = threading.Lock()
        self._renewed_at = 0.0
        self._marked_at = -_MARK_EVERY_SECONDS
        self._mine: Lease | None = None
        self._raised = False
        self._doubted = False
        self._seen: dict[str, int] = {}
        self._spared: dict[str, tuple[float, float]] = {}
        """Workers whose sessions were ended: when, and how long they are spared since then."""

    @property
    def leading(self) -> bool:
        return self._mine is not None and self._raised and not self._doubted

    @property
    def term(self) -> int:
        return self._mine.term if self._mine else 0

    @property
    def holder(self) -> str:
        return (self._mine.holder if self._mine else None) or ""

    def attend(self) -> bool:
        """Keeps the lease, or watches it and takes it when it is free. To be called every `interval` by a leader, and
        every `look_every` by a follower."""
        mine = self._mine
        if mine is None:
            self._follow()
        elif self._doubted:
            self._take_a_new_term(mine)
        elif not self._raised:
            self._renew(mine)
            self._raise_term()
        else:
            self.keep()
        return self.leading

    def keep(self) -> None:
        """Renews the lease when it is time. Any thread may call it, so that a long round costs nobody the lead."""
        mine = self._mine
        if mine is not None and self._clock.monotonic() - self._renewed_at >= self.interval * 0.9:
            self._renew(mine)

    def doubt(self) -> None:
        """An assignment may or may not have been written: no more of this term."""
        self._doubted = True

    def verify(self) -> bool:
        """Asks now whether the term still stands; for when a write was refused. A term below one that stands on the
        roster or beside the counts of starts is given up for a new one."""
        mine = self._mine
        if mine is not None:
            self._renew(mine)
        if self.leading and self._highest_elsewhere() > self.term:
            self.doubt()
        return self.leading

    def resign(self) -> None:
        if self._mine is not None:
            self._store.leases.resign(self.term, self.holder)
            self._step_back(self._mine)

    # -- locks of the dead -----------------------------------------------------------------------------------------

    def saw(self, roster: Iterable[RosterWorker]) -> None:
        """Remembers who has shown how much life, and that the writes of a round went through."""
        self._seen = {worker.id: worker.beats for worker in roster}
        self._store.roster.patience = max(PATIENCE, 0.9 * self._store.roster.patience)

    def unblock(self) -> list[str]:
        """To be called when a write on the roster took too long. Ends the sessions of workers that hold a lock and have
        shown no life since `saw`; returns these workers. If there are none, the server is slow: wait longer."""
        if self._mine is None:
            return []
        before, roster = self._seen, self._store.roster.read()
        self._seen = {worker.id: worker.beats for worker in roster}
        silent = [w for w in roster if before.get(w.id, w.beats) == w.beats]
        locked = [worker for worker in silent if self._store.transactions.is_locked(worker.id)]
        ended = [worker for worker in locked if self._may_end(worker.id)]
        for worker in ended:
            for session in worker.sessions:
                with suppress(StoreError):
                    self._store.transactions.end_session_of(session)
        if not locked:
            self._store.roster.patience = min(_MAX_PATIENCE_FACTOR, 2 * self._store.roster.patience)
        return [worker.id for worker in ended]

    def _may_end(self, worker: str) -> bool:
        """If so, it is spared from now on, for twice as long as the last time."""
        now = self._clock.monotonic()
        self._spared = {id: (at, long) for id, (at, long) in self._spared.items() if now - at < _FORGIVEN_SECONDS}
        ended_at, spared_for = self._spared.get(worker, (now, 0.0))
        if now - ended_at < spared_for:
            return False
        self._spared[worker] = now, min(_MAX_SPARED_SECONDS, max(_SPARED_SECONDS, 2 * spared_for))
        return True

    # -- the lease -------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        seen = self._store.leases.look()
        if seen is None or (isinstance(seen, Lease) and seen.holder is None):
            self._acquire(seen)
            return
        counter = seen.raw if isinstance(seen, Unreadable) else (seen.term, seen.beats)
        now = self._clock.monotonic()
        still = self._observation.still_for(_LEASE, counter, now, longest_gap=1.5 * self.look_every)
        if still >= max(self._silence, _SILENT_AFTER_INTERVALS * seen.every if isinstance(seen, Lease) else 0.0):
            if not (isinstance(seen, Lease) and self._is_at_work(seen)):
                self._acquire(seen)
        elif now - self._marked_at >= _MARK_EVERY_SECONDS:
            self._marked_at = now
            with suppress(StoreError):  # a hint, and no more
                self._store.leases.watch()

    def _is_at_work(self, lease: Lease) -> bool:
        """A transaction of the holder locks the lease, so no renewal gets through. If the holder has used it just now,
        it lives; one that died or stands still uses nothing."""
        work = self._store.transactions.sessions.work_done(lease.session) if lease.session is not None else None
        if work is None:
            return False
        gap = 1.5 * self.look_every
        return self._observation.still_for(_WORK, (lease.term, work), self._clock.monotonic(), longest_gap=gap) < (
            self._silence / 2
        )

    def _acquire(self, seen: Lease | Unreadable | None) -> None:
        attempt = secrets.token_hex(8)  # new each time: see store/collections/leases.py
        who = {"host": socket.gethostname(), "pid": os.getpid(), "session": self._store.transactions.session_id}
        self._mine, self._raised, self._doubted = None, False, False
        if isinstance(seen, Lease) and seen.holder is not None:
            self._store.transactions.end_session_of(seen.session)  # it may have died in the middle of a transaction
        asked_at = self._clock.monotonic()
        above = self._highest_elsewhere()
        mine = self._store.leases.acquire(seen, attempt, who, above, self._store.clock.now())
        if mine is not None:
            self._renewed_at = asked_at
            self.interval = self._promise = self._quick
            self._mine = mine
            self._observation.forget()
            self._raise_term()

    def _highest_elsewhere(self) -> int:
        return max(self._store.roster.highest_term(), self._store.limits.highest_term())

    def _raise_term(self) -> None:
        mine = self._mine
        if mine is None:
            return
        self._seen = {worker.id: worker.beats for worker in self._store.roster.read()}
        self._store.roster.raise_term(mine.term)
        with self._lock:
            self._raised = self._mine is mine  # the thread that renews the lease may have lost it meanwhile

    def _take_a_new_term(self, mine: Lease) -> None:
        seen = self._store.leases.look()
        if not isinstance(seen, Lease) or seen.holder != mine.holder:
            self._step_back(mine)
        else:
            self._acquire(seen)

    def _renew(self, mine: Lease) -> None:
        asked_at = self._clock.monotonic()
        promise = self._promise
        renewed = self._store.leases.renew(mine.term, mine.holder or "", promise)
        if renewed is None:
            self._step_back(mine)
            return
        self._renewed_at = asked_at
        if renewed.watched:
            self.interval = self._promise = self._quick
        else:
            self.interval, self._promise = promise, self._seldom

    def _step_back(self, mine: Lease) -> None:
        """Follows from now on, unless another thread has acquired the lease anew meanwhile."""
        with self._lock:
            if self._mine is mine:
                self._mine, self._raised, self._doubted = None, False, False
                self._observation.forget()
