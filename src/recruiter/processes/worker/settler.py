"""Settler: writes what became of jobs, together with whatever else has ended while the last batch was written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from recruiter.domain.job import JobId
from recruiter.domain.planning.prefetch import Throughput
from recruiter.errors import DocumentRefused, Superseded
from recruiter.events import Events
from recruiter.processes.loop import Loop, Stop
from recruiter.processes.worker.held_jobs import HeldJobs, JobOutcome
from recruiter.processes.worker.registration import Registration
from recruiter.steps.settle import settle
from recruiter.store import outcomes
from recruiter.store.collections.roster import Holding
from recruiter.store.database import Store
from recruiter.store.outcomes import Rescheduled


class Settler:
    def __init__(
        self,
        store: Store,
        events: Events,
        stop: Stop,
        registration: Registration,
        throughput: Throughput,
        settled: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._registration = registration
        self._throughput = throughput
        self._settled = settled
        """Called after each batch: there may be new jobs to fetch."""
        self._loop = Loop("settle", self._step, stop, events)
        store.wakers.add(self._loop.wake)

    def start(self) -> threading.Thread:
        return self._loop.start()

    def wake(self) -> None:
        self._loop.wake()

    def _step(self) -> float:
        held_jobs = self._registration.held_jobs
        outcomes = held_jobs.to_settle()
        if not outcomes:
            return 3600.0
        try:
            let_go(self._store, held_jobs, outcomes)
            facts = {"prefetch": self._throughput.prefetch, "draining": self._registration.draining}
            holding = settle_all(self._store, self._events, held_jobs.worker, outcomes, facts)
        except Superseded:
            held_jobs.not_settled(outcomes)
            self._registration.lose(held_jobs)
            return 0.5
        except BaseException:
            held_jobs.not_settled(outcomes)
            raise
        self._throughput.count(sum(1 for _, outcome in outcomes if outcome is not None), self._clock.monotonic())
        held_jobs.settled(outcomes, holding)
        self._settled()
        return 0.0


def let_go(store: Store, held_jobs: HeldJobs, outcomes: list[JobOutcome]) -> None:
    """Takes our marks off what is about to be settled: no sign of life may come after that, and what is handed back
    looks as if it had never been here, but for what it has said."""
    marked = held_jobs.progress.stop([id for id, _ in outcomes])
    released = {id for id, outcome in outcomes if outcome is None}
    final_progress = held_jobs.progress.final(released.intersection(marked), held_jobs.worker) if marked else []
    if final_progress:
        store.scheduled.clear_progress(final_progress)


def settle_all(
    store: Store, events: Events, worker: str, outcomes: list[JobOutcome], facts: Mapping[str, Any]
) -> Holding:
    """Settles a batch. If MongoDB refuses a document in it, finds out which, and keeps as much of it as can be kept.

    Every other error is the caller's: the batch stays as it is, to be settled again.
    """
    try:
        return settle(store, worker, outcomes, facts)
    except DocumentRefused as error:
        if len(outcomes) > 1:
            half = len(outcomes) // 2
            settle_all(store, events, worker, outcomes[:half], facts)
            return settle_all(store, events, worker, outcomes[half:], facts)
        ((id, outcome),) = outcomes
        if outcome is None:
            raise
        events.emit("job.reduced", job=id, error=str(error))
        return _settle_reduced(store, worker, id, outcome, facts, error)


def _settle_reduced(
    store: Store, worker: str, id: JobId, outcome: outcomes.Outcome, facts: Mapping[str, Any], refused: DocumentRefused
) -> Holding:
    original = dict(store.scheduled.fetch([id])).get(id)
    if original is None and isinstance(outcome, Rescheduled):
        return settle(store, worker, [(id, None)], facts)  # somebody has removed the job: there is nothing to keep
    for form in outcomes.reduced(id, outcome, original, store.clock.now(), str(refused)):
        try:
            return settle(store, worker, [(id, form)], facts)
        except DocumentRefused as error:
            refused = error
    raise refused
