"""Flush: runs every waiting job in the calling process, one after another; for the tests of applications.

It follows the same rules as every process: it takes the lead, joins the roster, assigns each job to itself with its
term, and settles under its own registration. But it plans in the order of time, and does not wait until jobs are due.
For that it has to be alone: it refuses if another process shows life, and jobs of dead workers are rescued first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bson import ObjectId

from recruiter.domain.job import JobId, JobReport
from recruiter.domain.state import Why
from recruiter.errors import DocumentLocked, NotAlone, RecruiterError, StoreError, Superseded, UnknownTask
from recruiter.events import Events
from recruiter.processes.inline.runner import InlineApplication, ended_report
from recruiter.processes.inline.worker import FLUSH, Inline, InlineWorker
from recruiter.processes.loop import Loop, Stop
from recruiter.processes.worker.registration import LAST_WRITES
from recruiter.settings import Settings
from recruiter.steps.adopt import adopt
from recruiter.steps.cancel import archive_cancelled
from recruiter.steps.lead import Leadership
from recruiter.steps.release import release
from recruiter.steps.rescue import Rescue
from recruiter.store.collections.leases import Lease
from recruiter.store.database import Store
from recruiter.store.errors import text_of

_CHECK_EVERY_SECONDS = 0.1


class Flush:
    """One call of `flush_jobs_synchronously`: leader and worker in one, in the calling process."""

    def __init__(self, store: Store, events: Events, application: InlineApplication, settings: Settings) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._application = application
        self._settings = settings
        self._inline = Inline(store, events, application, settings)
        self._leadership = Leadership(store, store.clock, settings.lease_time.total_seconds())

    def run(self, most: int, due_only: bool = False) -> list[JobReport]:
        """Gives every waiting job one turn, in the order of their time; with `due_only`, every due job. Jobs that are
        enqueued meanwhile get theirs too. A job that failed and waits for its next attempt has had its turn.

        Raises NotAlone before anything is run, and RecruiterError after `most` jobs.
        """
        reports: list[JobReport] = []
        had_their_turn: set[JobId] = set()
        self._store.prepare()
        with self._leading(), self._inline.caller((), FLUSH) as caller:
            while not caller.signals.asked:
                reports.extend(self._adopt())
                self._release()
                found = self._store.scheduled.first(had_their_turn, self._clock.now() if due_only else None)
                if found is None:
                    self._require_lead()
                    if archive_cancelled(self._store, self._clock, self._leadership.term, self._leadership.holder):
                        continue  # steps of flows may have waited for these
                    break
                if len(reports) >= most:
                    raise RecruiterError(
                        f"{most} jobs have run and more are waiting: they may enqueue each other without end. "
                        "Give a larger `most` if there are so many"
                    )
                id, task = found
                report = self._turn(caller, id, task)
                if report is None or report.why is None:
                    had_their_turn.add(id)  # it has not ended, so the next search would find it again
                if report is not None:
                    reports.append(report)
        return reports

    # -- being alone ---------------------------------------------------------------------------------------------

    @contextmanager
    def _leading(self) -> Iterator[None]:
        """Leads during the block, and makes sure that no worker is on the roster when it begins. Raises NotAlone."""

        def keep_the_lead() -> float:
            self._leadership.attend()
            return self._leadership.interval

        stop = Stop()
        try:
            self._take_the_lead()
            keeping = Loop("lead", keep_the_lead, stop, self._events).start()
            try:
                self._wait_for_the_dead()
                yield
            finally:
                stop.ask()
                keeping.join(timeout=LAST_WRITES)
        finally:
            try:
                self._leadership.resign()
            except StoreError as error:
                problem = f"the lease will run out by itself: {error}"
                self._events.emit("store.unreachable", loop="flush", error=problem)

    def _take_the_lead(self) -> None:
        """Waits until it has the lead. Raises NotAlone if the lease of another process grows: that one is alive."""
        before: Lease | None = None
        while not self._leadership.attend():
            lease = self._store.leases.read()
            if lease is not None and lease.holder is not None:
                if before is not None and (lease.term, lease.beats) != (before.term, before.beats):
                    raise self._not_alone(f"a recruiter is running on {lease.host}, process {lease.pid}")
                before = lease
            time.sleep(_CHECK_EVERY_SECONDS)  # it may have been killed; then its lease runs out

    def _wait_for_the_dead(self) -> None:
        """Waits until the roster is empty: workers that were killed are retired when they have been silent for long."""
        rescue = Rescue(self._store, self._clock, self._settings.undeclared_dead_after, self._application.policies)
        beats: dict[str, int] | None = None
        while (roster := self._store.roster.read()) or roster.unreadable:
            for worker in roster:
                if beats is not None and beats.get(worker.id) != worker.beats:
                    raise self._not_alone(f"worker {worker.id} is running")
            beats = {worker.id: worker.beats for worker in roster}
            rescue.retire_silent(roster, roster.unreadable)
            time.sleep(_CHECK_EVERY_SECONDS)

    def _not_alone(self, who: str) -> NotAlone:
        return NotAlone(
            f"{who}, and a flush needs to be alone on {self._store.target}: stop it, or use a separate database"
        )

    def _require_lead(self) -> None:
        if not self._leadership.leading:
            raise Superseded(
                "another recruiter took the lead in the middle of the flush; the jobs that have run are stored"
            )

    # -- one job after another -----------------------------------------------------------------------------------

    def _adopt(self) -> list[JobReport]:
        """Adopts documents that other programs have inserted; reports documents that cannot be jobs."""
        set_aside: list[JobReport] = []
        while True:
            self._require_lead()
            adoption = adopt(self._store, self._leadership.term, self._leadership.holder, self._clock.now())
            for id, reason in adoption.set_aside:
                self._events.emit("job.set_aside", job=id, reason=reason)
                set_aside.append(JobReport(id, "", False, Why.MALFORMED, error=reason))
            if not adoption.adopted and not adoption.set_aside:
                return set_aside

    def _release(self) -> None:
        """Decides about the steps of flows that wait for others."""
        broken: set[ObjectId] = set()
        while self._store.flows.count_markers():
            self._require_lead()
            now, term, holder = self._clock.now(), self._leadership.term, self._leadership.holder
            report = release(self._store, now, term, holder, skip=broken)
            for flow, error in report.broken:
                if isinstance(error, DocumentLocked):
                    continue  # by another transaction, which will end
                self._events.emit("flow.broken", flow=flow, error=text_of(error))
                broken.add(flow)
            if not report.markers:
                return

    def _turn(self, caller: InlineWorker, id: JobId, task: str) -> JobReport | None:
        """Runs one job; None if it no longer exists, or was interrupted."""
        if self._application.registry.find(task) is None:
            return JobReport(id, task, False, error=f"{UnknownTask.__name__}: no task {task!r} is registered here")
        self._require_lead()
        if not self._store.roster.assign({caller.id: [id]}, self._leadership.term):
            self._leadership.verify()
            self._require_lead()
            raise Superseded(f"worker {caller.id} was taken off the roster in the middle of the flush")
        report = caller.run_assigned(id)
        if report is None and (lost := self._store.archived.document(id)) is not None:
            return ended_report(self._application.registry, task, lost)  # an at-most-once job that was started before
        return report
