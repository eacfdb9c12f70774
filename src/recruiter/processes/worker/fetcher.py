"""The fetcher reads the jobs that the leader has assigned, and waits for more when there are none.

While few jobs come, it listens: the event of an assignment names the jobs, and they are fetched at once. While work
flows, it asks: an open change stream would make the server read every write. Answers to settlements bring most of what
is new; it asks for itself only when a slot is free.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from recruiter.domain.job import JobId
from recruiter.errors import DocumentLocked, Superseded
from recruiter.events import Events
from recruiter.processes.loop import Loop, Stop
from recruiter.processes.worker.held_jobs import HeldJob, HeldJobs
from recruiter.processes.worker.registration import JobRunner, Registration
from recruiter.store.change_stream import FLOW, LULL, Change, ChangeWaiter
from recruiter.store.collections.roster import ASSIGNED_TO_ME, ASSIGNMENT_FIELDS
from recruiter.store.collections.scheduled import Marked
from recruiter.store.database import Store
from recruiter.store.outcomes import Outcome
from recruiter.store.roster_fields import assignment_of

_BETWEEN_LOOKS = 0.005
_CLOCKS_DISAGREE = timedelta(milliseconds=50)
"""How much sooner than by our own clock a job may be due by the leader's."""


class Fetcher:
    def __init__(
        self,
        store: Store,
        events: Events,
        stop: Stop,
        registration: Registration,
        runner: JobRunner,
        *,
        on_busy: Callable[[], None] = lambda: None,
        listen: bool = True,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._registration = registration
        self._runner = runner
        self._on_busy = on_busy
        """Called now and then while no slot is free."""
        self._listening = listen
        """Whether to open a change waiter when nothing comes; not worth it for somebody who will not wait for long."""
        self._loop = Loop("fetch", self._step, stop, events)
        store.wakers.add(self._loop.wake)
        self._waiter: ChangeWaiter | None = None
        self._must_ask = True
        """Whether something may have been assigned that no event told of."""
        self._flowing_until = 0.0

    def start(self) -> threading.Thread:
        return self._loop.start()

    def wake(self) -> None:
        self._loop.wake()

    def close(self) -> None:
        if self._waiter is not None:
            self._waiter.close()

    def fetch_now(self, id: JobId) -> None:
        """Fetches a job that this process has assigned to itself, in the calling thread. Raises Superseded when the
        registration is lost."""
        held_jobs = self._registration.held_jobs
        while held_jobs.state(id) is None:
            holding = self._store.roster.holding(held_jobs.worker)
            if holding is None:
                raise Superseded(f"worker {held_jobs.worker} was taken off the roster")
            if not held_jobs.hear(holding):
                time.sleep(_BETWEEN_LOOKS)  # a majority of the nodes does not know of the assignment yet
        while ids := held_jobs.to_fetch():
            self._fetch(held_jobs, ids, at_any_time=True)
        self._mark_at_most_once(held_jobs)

    def _step(self) -> float:
        held_jobs = self._registration.held_jobs
        if not self._registration.joined:
            return 0.05
        if self._mark_at_most_once(held_jobs):
            return 0.0
        ids = held_jobs.to_fetch()
        if ids:
            if len(ids) >= FLOW:
                self._flowing_until = self._clock.monotonic() + LULL
                self._must_ask = True
                if self._waiter is not None:
                    self._waiter.hang_up()
            self._fetch(held_jobs, ids)
            return 0.0
        return self._look_for_jobs(held_jobs)

    def _fetch(self, held_jobs: HeldJobs, ids: list[JobId], *, at_any_time: bool = False) -> None:
        """Of jobs that a person has put off after the leader had found them (store/changes.py), none starts."""
        try:
            jobs = fetch(self._store, ids)
        except BaseException:
            held_jobs.not_fetched(ids)
            raise
        soon = self._clock.now() + _CLOCKS_DISAGREE
        held_jobs.fetched(ids, [job for job in jobs if at_any_time or not job.is_postponed(soon)])

    def _mark_at_most_once(self, held_jobs: HeldJobs) -> bool:
        """At-most-once and debounced jobs are marked as started, durably, before they can start, and no more of them
        than fit. A debounced one starts as it is then."""
        jobs = held_jobs.to_mark(self._registration.settings.slots)
        if not jobs:
            return False
        try:
            now = self._clock.now()
            marked = mark_started(self._store, held_jobs.worker, jobs, now)
        except Superseded:
            self._registration.lose(held_jobs)
            return False
        except BaseException:
            held_jobs.not_marked(jobs)
            raise
        held_jobs.marked(
            job._replace(raw=marked.fresh.get(job.id, job.raw)) for job in jobs if job.id in marked.may_start
        )
        refused = (job for job in jobs if job.id not in marked.may_start)
        held_jobs.ended((job.id, self._refused(job, marked, now)) for job in refused)
        return True

    def _refused(self, job: HeldJob, marked: Marked, now: datetime) -> Outcome | None:
        """What becomes of an at-most-once job that must not start here."""
        if job.id in marked.started_before:
            return self._runner.crash(job, now, "started before, never ended")
        return None  # it has been cancelled, or is not ours

    def _look_for_jobs(self, held_jobs: HeldJobs) -> float:
        """Nothing is known to fetch: if a slot is free, asks the roster, and then waits for an assignment."""
        if not self._runner.has_free_slot and not held_jobs.missed_some:
            self._on_busy()
            return 1.0
        if (self._must_ask or held_jobs.missed_some or not self._is_listening) and self._ask(held_jobs):
            return 0.0
        if not self._listening or self._clock.monotonic() < self._flowing_until:
            return _BETWEEN_LOOKS
        waiter = self._listen(held_jobs.worker)
        waiter.arm()
        return 3600.0 if waiter.listening else 0.1

    def _ask(self, held_jobs: HeldJobs) -> bool:
        """Asks the roster what is new; true when there is something to fetch."""
        self._must_ask = False  # first: the stream may be opened again while it asks
        seen, worker, roster = held_jobs.seen, held_jobs.worker, self._store.roster
        try:
            holding = roster.holding(worker) if seen is None else roster.news(worker, seen)
        except BaseException:
            self._must_ask = True
            raise
        return holding is not None and held_jobs.hear(holding)

    @property
    def _is_listening(self) -> bool:
        """Whether a change stream is open: then each assignment is heard of, and there is no need to ask."""
        return self._waiter is not None and self._waiter.is_open

    def _listen(self, worker: str) -> ChangeWaiter:
        match = {"documentKey._id": worker, ASSIGNED_TO_ME: {"$exists": True}}
        if self._waiter is None or self._waiter.match != match:
            self.close()
            self._waiter = ChangeWaiter(
                self._store.roster.collection, match, self._hear, self._deaf, fields=ASSIGNMENT_FIELDS
            )
        return self._waiter

    def _hear(self, changes: Sequence[Change]) -> None:
        """In the thread of the change waiter. An event names the jobs: they need not be asked for."""
        held_jobs = self._registration.held_jobs
        assignments = [assignment_of(change.event) for change in changes]
        for assignment in assignments:
            if assignment is not None:
                held_jobs.hear_event(assignment)
        if not assignments or None in assignments:  # the stream is new, or says what we do not understand
            self._must_ask = True
        self._loop.wake()

    def _deaf(self, error: str | None) -> None:
        if error is None:
            self._events.emit("change_stream.back")
        else:
            self._events.emit("change_stream.failed", error=error)


def fetch(store: Store, ids: Sequence[JobId]) -> list[HeldJob]:
    """The documents of jobs that were assigned."""
    return [HeldJob(id, raw) for id, raw in store.scheduled.fetch(ids)]


def mark_started(store: Store, worker: str, jobs: Sequence[HeldJob], at: datetime) -> Marked:
    """Writes that these jobs are about to start here. Raises Superseded."""
    once = [job.id for job in jobs if job.at_most_once]
    debounced = {job.id: due for job in jobs if (due := job.debounced_until) is not None and not job.at_most_once}
    try:
        return store.transactions.mark_started(worker, once, at, debounced)
    except DocumentLocked:
        if len(jobs) == 1:
            return Marked()  # it goes back, and comes again when the other transaction has ended
    half = len(jobs) // 2
    first, second = mark_started(store, worker, jobs[:half], at), mark_started(store, worker, jobs[half:], at)
    return Marked(
        first.may_start | second.may_start,
        first.started_before | second.started_before,
        {**first.fresh, **second.fresh},
    )
