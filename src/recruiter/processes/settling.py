"""Settling: writes what became of jobs, together with whatever else has ended while the last batch was written."""

from __future__ import annotations

import threading
from collections.abc import Callable

from recruiter.domain.throughput import Throughput
from recruiter.errors import StoreError, StoreUnreachable, Superseded
from recruiter.events import Events
from recruiter.processes.holdings import Holdings, Outcome
from recruiter.processes.loop import Loop, Stop
from recruiter.processes.membership import Membership
from recruiter.steps.settle import settle
from recruiter.store import moves
from recruiter.store.database import Store
from recruiter.store.roster import Holding


class Settling:
    def __init__(
        self,
        store: Store,
        events: Events,
        stop: Stop,
        membership: Membership,
        throughput: Throughput,
        settled: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._membership = membership
        self._throughput = throughput
        self._settled = settled
        """Called after each batch: there may be new jobs to fetch."""
        self._loop = Loop("settle", self._step, stop, events)

    def start(self) -> threading.Thread:
        return self._loop.start()

    def ring(self) -> None:
        self._loop.ring()

    def _step(self) -> float:
        holdings = self._membership.holdings
        outcomes = holdings.to_settle()
        if not outcomes:
            return 3600.0
        try:
            self._unmark_released(holdings, outcomes)
            holding = self._settle_all(holdings.worker, outcomes)
        except Superseded:
            holdings.not_settled(outcomes)
            self._membership.lose(holdings)
            return 0.5
        except BaseException:
            holdings.not_settled(outcomes)
            raise
        self._throughput.count(sum(1 for _, move in outcomes if move is not None), self._clock.monotonic())
        holdings.settled(outcomes, holding)
        self._settled()
        return 0.0

    def _settle_all(self, worker: str, outcomes: list[Outcome]) -> Holding:
        """Settles a batch; if MongoDB refuses something in it, finds out what, and keeps a reduced record of it."""
        try:
            return settle(self._store, worker, outcomes, {"prefetch": self._throughput.prefetch})
        except (Superseded, StoreUnreachable):
            raise
        except (StoreError, ValueError, OverflowError) as error:
            if len(outcomes) > 1:
                half = len(outcomes) // 2
                self._settle_all(worker, outcomes[:half])
                return self._settle_all(worker, outcomes[half:])
            ((id, move),) = outcomes
            self._events.emit("job.reduced", job=id, error=str(error))
            reduced = moves.reduced(id, move, self._clock.now(), str(error))
            return settle(self._store, worker, [(id, reduced)], {})

    def _unmark_released(self, holdings: Holdings, outcomes: list[Outcome]) -> None:
        released = [id for id, move in outcomes if move is None]
        if released:
            self._store.scheduled.unmark_started(released, holdings.worker)
