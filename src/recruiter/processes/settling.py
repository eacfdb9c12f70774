"""Settling: writes what became of jobs, together with whatever else has ended while the last batch was written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

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
            let_go(self._store, holdings, outcomes)
            facts = {"prefetch": self._throughput.prefetch, "draining": self._membership.draining}
            holding = settle_all(self._store, self._events, holdings.worker, outcomes, facts)
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


def let_go(store: Store, holdings: Holdings, outcomes: list[Outcome]) -> None:
    """Takes our marks off what is about to be settled: no sign of life may come after that, and what is handed back
    looks as if it had never been here, but for what it has said."""
    signed = holdings.tracks.stop([id for id, _ in outcomes])
    released = {id for id, move in outcomes if move is None}
    if released:
        store.scheduled.unmark_started(list(released), holdings.worker)
    last_words = holdings.tracks.last_words(released.intersection(signed), holdings.worker) if signed else []
    if last_words:
        store.scheduled.unsign(last_words)


def settle_all(store: Store, events: Events, worker: str, outcomes: list[Outcome], facts: Mapping[str, Any]) -> Holding:
    """Settles a batch; if MongoDB refuses something in it, finds out what, and keeps a reduced record of it."""
    try:
        return settle(store, worker, outcomes, facts)
    except (Superseded, StoreUnreachable):
        raise
    except (StoreError, ValueError, OverflowError) as error:
        if len(outcomes) > 1:
            half = len(outcomes) // 2
            settle_all(store, events, worker, outcomes[:half], facts)
            return settle_all(store, events, worker, outcomes[half:], facts)
        ((id, move),) = outcomes
        events.emit("job.reduced", job=id, error=str(error))
        return settle(store, worker, [(id, moves.reduced(id, move, store.clock.now(), str(error)))], facts)
