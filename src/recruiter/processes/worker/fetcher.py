"""The fetcher reads the jobs that the leader has assigned, and waits for more when there are none.

While few jobs come, it listens: the event of an assignment names the jobs, and they are fetched immediately. While work
flows, it asks: an open change stream would make the server read every write. Answers to settlements name most new jobs;
the fetcher asks only when a slot is free.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from recruiter.domain.job import JobId
from recruiter.errors import DocumentLocked, Superseded
from recruiter.events import Events
from recruiter.processes.loop import UNTIL_WOKEN_SECONDS, Loop, Stop
from recruiter.processes.worker.held_job import HeldJob, crashed
from recruiter.processes.worker.held_jobs import HeldJobs, JobOutcome
from recruiter.processes.worker.registration import JobRunner, Registration
from recruiter.store.change_stream import FLOW_JOBS, LULL_SECONDS, Change, ChangeWaiter
from recruiter.store.collections.roster import ASSIGNED_TO_ME, ASSIGNMENT_FIELDS
from recruiter.store.collections.scheduled import Marked
from recruiter.store.database import Store
from recruiter.store.roster_fields import assignment_of

_ASK_EVERY_SECONDS = 0.005
_ASK_WHILE_BUSY_EVERY_SECONDS = 0.1
"""Time after the last list. Most new jobs are learnt from settlements, but the leader comes after a settlement, and an
urgent job should not have to wait for the next one."""
_BUSY_SECONDS, _NOT_YET_LISTENING_SECONDS = 1.0, 0.1
_CLOCKS_DISAGREE = timedelta(milliseconds=50)
"""Maximum time by which the leader's clock may be ahead of ours."""


class Fetcher:
    """The thread that learns which jobs were assigned to this worker, and reads their documents."""

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
        at_any_time: bool = False,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._registration = registration
        self._runner = runner
        self._on_busy = on_busy
        """Called now and then while no slot is free."""
        self._may_listen = listen
        """Whether to open a change waiter when no jobs come."""
        self._at_any_time = at_any_time
        """Whether to start jobs that were put off."""
        self._loop = Loop("fetch", self._step, stop, events)
        store.wakers.add(self._loop.wake)
        self._waiter: ChangeWaiter | None = None
        self._must_ask = True
        """Whether jobs may have been assigned without an event."""
        self._flowing_until = 0.0

    def start(self) -> threading.Thread:
        return self._loop.start()

    def wake(self) -> None:
        self._loop.wake()

    def close(self) -> None:
        if self._waiter is not None:
            self._waiter.close()

    def _step(self) -> float:
        """Marks jobs, else fetches assigned ones, else asks for jobs; returns the seconds to wait."""
        held_jobs = self._registration.held_jobs
        if not self._registration.joined:
            return 0.05
        if self._mark_starts(held_jobs):
            return 0.0
        ids = held_jobs.to_fetch()
        if ids:
            if len(ids) >= FLOW_JOBS:
                self._flowing_until = self._clock.monotonic() + LULL_SECONDS
                self._must_ask = True
                if self._waiter is not None:
                    self._waiter.hang_up()  # polling is cheap under load
            self._fetch(held_jobs, ids)
            return 0.0
        return self._look_for_jobs(held_jobs) if self._runner.has_free_slot else self._wait_while_busy(held_jobs)

    def _fetch(self, held_jobs: HeldJobs, ids: list[JobId]) -> None:
        """Reads the documents of these jobs. A job that was put off after the leader had found it (store/changes.py) is
        left out, and so goes back."""
        try:
            jobs = [HeldJob.read(id, raw) for id, raw in self._store.scheduled.fetch(ids)]
        except BaseException:
            held_jobs.not_fetched(ids)
            raise
        due_by = self._clock.now() + _CLOCKS_DISAGREE
        held_jobs.fetched(ids, [job for job in jobs if self._at_any_time or not job.is_postponed(due_by)])

    def _mark_starts(self, held_jobs: HeldJobs) -> bool:
        """Marks at-most-once and debounced jobs as started, durably, before they can start, and at most as many
        as there are slots. A debounced job starts with its document at that time."""
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
        may_start, refused = list[HeldJob](), list[JobOutcome]()
        for job in jobs:
            if job.id in marked.may_start:
                may_start.append(HeldJob.read(job.id, marked.fresh.get(job.id, job.raw)))
            elif job.id in marked.started_before:
                how = "started before, never ended"
                refused.append((job.id, crashed(job, self._runner.policies, held_jobs.worker, now, how, {})))
            else:
                refused.append((job.id, None))  # it has been cancelled, or is not ours
        held_jobs.marked(may_start)
        held_jobs.ended(refused)
        return True

    def _wait_while_busy(self, held_jobs: HeldJobs) -> float:
        """While no slot is free, asks the roster now and then for jobs to hold in the buffer; returns the seconds to
        wait. A worker without a buffer does not ask: a settlement wakes this loop."""
        self._on_busy()
        if not self._runner.prefetch:
            return _BUSY_SECONDS
        wait = held_jobs.heard_at + _ASK_WHILE_BUSY_EVERY_SECONDS - time.monotonic()
        if wait > 0:
            return wait
        return 0.0 if self._ask(held_jobs) else _ASK_WHILE_BUSY_EVERY_SECONDS

    def _look_for_jobs(self, held_jobs: HeldJobs) -> float:
        """A slot is free, and no job is known: asks the roster unless it listens for events; then waits."""
        has_open_stream = self._waiter is not None and self._waiter.is_open
        if (self._must_ask or not has_open_stream) and self._ask(held_jobs):
            return 0.0
        if not self._may_listen or self._clock.monotonic() < self._flowing_until:
            return _ASK_EVERY_SECONDS
        waiter = self._listen(held_jobs.worker)
        waiter.arm()
        return UNTIL_WOKEN_SECONDS if waiter.listening else _NOT_YET_LISTENING_SECONDS

    def _ask(self, held_jobs: HeldJobs) -> bool:
        """Asks the roster for the list; true when there is something to fetch."""
        self._must_ask = False  # first: the stream may be opened again while it asks
        try:
            holding = self._store.roster.holding(held_jobs.worker)
        except BaseException:
            self._must_ask = True
            raise
        return holding is not None and held_jobs.hear(holding)

    def _listen(self, worker: str) -> ChangeWaiter:
        """The change waiter for assignments to this registration; a new registration gets another."""
        match = {"documentKey._id": worker, ASSIGNED_TO_ME: {"$exists": True}}
        if self._waiter is None or self._waiter.match != match:
            self.close()
            self._waiter = ChangeWaiter(
                self._store.roster.collection, match, self._hear, self._deaf, fields=ASSIGNMENT_FIELDS
            )
        return self._waiter

    def _hear(self, changes: Sequence[Change]) -> None:
        """Learns the jobs that assignments name, so the roster is not asked. In the thread of the change waiter."""
        held_jobs = self._registration.held_jobs
        assignments = [assignment_of(change.event) for change in changes]
        for assignment in assignments:
            if assignment is not None:
                held_jobs.hear_event(assignment)
        if not assignments or None in assignments:  # the stream is new, or an event could not be read
            self._must_ask = True
        self._loop.wake()

    def _deaf(self, error: str | None) -> None:
        if error is None:
            self._events.emit("change_stream.back")
        else:
            self._events.emit("change_stream.failed", error=error)


def mark_started(store: Store, worker: str, jobs: Sequence[HeldJob], at: datetime) -> Marked:
    """Writes that these jobs are about to start here. Raises Superseded."""
    once = [job.id for job in jobs if job.at_most_once]
    debounced = {job.id: due for job in jobs if (due := job.debounced_until) is not None and not job.at_most_once}
    try:
        return store.transactions.mark_started(worker, once, at, debounced)
    except DocumentLocked:
        if len(jobs) == 1:
            return Marked()  # it goes back, and is assigned again when the other transaction has ended
    half = len(jobs) // 2
    first, second = mark_started(store, worker, jobs[:half], at), mark_started(store, worker, jobs[half:], at)
    return Marked(
        first.may_start | second.may_start,
        first.started_before | second.started_before,
        {**first.fresh, **second.fresh},
    )
