"""Lead: one of the recruiters is the leader and assigns jobs. Two concurrent leaders do no harm.

The lease document holds a *term* that grows at every takeover.

    follower ──the lease's counter stood still──▶ acquire: term+1 ──▶ raise the term on every roster document ──▶ leader
        ▲                                                                                                          │
        └──────────────── renewal refused: another process has taken over ◀────────────────────────────────────────┘

Time only decides when to try. The term protects the jobs: an assignment is a write on a roster document that matches
only while no newer term is written there, and a new leader writes its term on all of them *before* it reads the held
jobs. So the writes of an old leader that wakes up from a long freeze match no document. A worker that joins meanwhile
is not ready until it has read the newest term.

If the outcome of an assignment is unknown, for example after a network failure, the write may still arrive later. The
leader then takes a new term first, and the late write no longer matches.

A new term is higher than every term in the lease, on the roster and in the counts of starts. So a lease that was
removed or restored from a backup costs one extra term, and nothing else.

A worker that is killed during a settlement leaves its roster document locked on the server for a minute. A write of the
leader on the roster therefore waits for half a second at most. Then `unblock` ends the sessions of workers that hold a
lock and have sent no heartbeat since. A worker that is still alive settles again.

A transaction of the leader writes to the lease, and so blocks renewals until it ends. A follower therefore asks the
server whether that transaction makes progress before it takes over the lease.

A lease that no recruiter watches is renewed less often. A follower marks the lease regularly, and every renewal
announces the next one. A recruiter that starts next to a leader without followers waits for one and a half of the
announced intervals, a follower for three of the short ones. Only the time of a takeover depends on this.
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
"""The first and the longest time in which the session of a worker is not ended again. It doubles each time: a worker
that is alive and settles slowly must succeed, and a slow worker that then dies must not block the others."""
_FORGIVEN_SECONDS = 60.0
"""After this time, the next end of a worker's session counts as the first."""
_MAX_PATIENCE_SECONDS = 8.0
_UNWATCHED_INTERVAL_SHARE = 0.4
"""The share of the lease time between two renewals of an unwatched lease. One and a half of these fit into it."""
_SILENT_AFTER_INTERVALS = 1.5
"""The number of announced intervals after which the holder counts as silent."""
_MARK_EVERY_SECONDS = WATCHED_SECONDS / 3
"""The interval in which a follower marks the lease as watched."""


class Leadership:
    """The lease of this process: it leads, or follows until the lease is free."""

    def __init__(self, store: Store, clock: Clock, lease_time: float) -> None:
        self._store = store
        self._clock = clock
        # Three renewals may be late before a takeover; half of a short lease, but at most a second of it.
        self._silence = max(lease_time / 4, min(lease_time / 2, 1.0))
        self._seldom = max(self._silence, _UNWATCHED_INTERVAL_SHARE * lease_time)
        self.interval = self._quick = self._silence / 3
        """Seconds between two renewals of a leader; longer for an unwatched lease."""
        self._promise = self._quick
        """The interval that the next renewal announces to followers. It is used from then on, not before: a follower
        that trusts a shorter one takes over from a leader that is alive."""
        self.look_every = self._silence / 5
        """Seconds between two checks of a follower."""
        self._observation = Observation()
        self._lock = threading.Lock()
        self._renewed_at = 0.0
        self._marked_at = -_MARK_EVERY_SECONDS
        self._mine: Lease | None = None
        self._raised = False
        self._doubted = False
        self._seen: dict[str, int] = {}
        self._spared: dict[str, tuple[float, float]] = {}
        """Workers whose sessions this leader has ended: the time, and the seconds for which they are spared."""

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
        """Keeps the lease, or watches it and takes it when it is free. A leader calls this every `interval` seconds, a
        follower every `look_every` seconds."""
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
        """Renews the lease when it is time. Any thread may call it, so that a long round does not lose the lease."""
        mine = self._mine
        if mine is not None and self._clock.monotonic() - self._renewed_at >= self.interval * 0.9:
            self._renew(mine)

    def doubt(self) -> None:
        """Call this when the outcome of an assignment is unknown: this term assigns nothing from now on."""
        self._doubted = True

    def verify(self) -> bool:
        """Checks the term after a refused write. A term below another term on the roster or in the counts of starts is
        replaced by a new one."""
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
        """Remembers the heartbeat counters after a round without a timeout."""
        self._seen = {worker.id: worker.beats for worker in roster}
        self._store.roster.patience = max(PATIENCE, 0.9 * self._store.roster.patience)

    def unblock(self) -> list[str]:
        """Call this when a write on the roster timed out. Ends the sessions of workers that hold a lock and have sent
        no heartbeat since `saw`; returns these workers. If there are none, the server is slow: the patience grows."""
        if self._mine is None:
            return []
        before, roster = self._seen, self._store.roster.read()
        self._seen = {worker.id: worker.beats for worker in roster}
        silent = [worker for worker in roster if before.get(worker.id, worker.beats) == worker.beats]
        locked = [worker for worker in silent if self._store.transactions.is_locked(worker.id)]
        ended = [worker for worker in locked if self._may_end(worker.id)]
        for worker in ended:
            for session in worker.sessions:
                with suppress(StoreError):
                    self._store.transactions.end_session_of(session)
        if not locked:
            self._store.roster.patience = min(_MAX_PATIENCE_SECONDS, 2 * self._store.roster.patience)
        return [worker.id for worker in ended]

    def _may_end(self, worker: str) -> bool:
        """Whether the session of this worker may be ended now. If so, the next end must wait for twice as long as this
        one had to."""
        now = self._clock.monotonic()
        self._spared = {id: (at, long) for id, (at, long) in self._spared.items() if now - at < _FORGIVEN_SECONDS}
        ended_at, spared_for = self._spared.get(worker, (now, 0.0))
        if now - ended_at < spared_for:
            return False
        self._spared[worker] = now, min(_MAX_SPARED_SECONDS, max(_SPARED_SECONDS, 2 * spared_for))
        return True

    # -- the lease -------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Takes the lease if it is free, or if its holder has not renewed it for too long. Otherwise marks it regularly
        as watched."""
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
            with suppress(StoreError):  # only a hint
                self._store.leases.watch()

    def _is_at_work(self, lease: Lease) -> bool:
        """Whether a transaction of the holder, which blocks renewals, has made progress recently."""
        work = self._store.transactions.sessions.work_done(lease.session) if lease.session is not None else None
        if work is None:
            return False
        now, gap = self._clock.monotonic(), 1.5 * self.look_every
        return self._observation.still_for(_WORK, (lease.term, work), now, longest_gap=gap) < self._silence / 2

    def _acquire(self, seen: Lease | Unreadable | None) -> None:
        """Takes the lease with a new term, unless it has changed since it was seen, and raises the term everywhere."""
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
        """Writes this term on every worker, so that no older leader can assign. Only then this process leads."""
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
        """Renews the lease, and announces the time until the next renewal; steps back if another process has it."""
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
        """Follows from now on, unless another thread has acquired the lease again meanwhile."""
        with self._lock:
            if self._mine is mine:
                self._mine, self._raised, self._doubted = None, False, False
                self._observation.forget()
