"""Repeatable jobs: a job, a schedule, and a urn that names them both.

    (daily_report.job("sales").in_group("reports")
        .repeat_with_policy(Cron("0 6 * * *", tz="Europe/Rome"))
        .with_urn("report:daily").unique().create())

Creating a urn that exists changes the scheduler in place, even if several processes do it concurrently.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, Unpack

from recruiter.async_face import async_face
from recruiter.domain.duration import DurationLike, humanize, to_timedelta
from recruiter.domain.job import ArchivedJob, Job
from recruiter.domain.names import check_remark
from recruiter.domain.options import GivenJobOptions, HasOptions, TaskOptions
from recruiter.domain.schedule.scheduler import WINDOW, Late, Overlap, SchedulePolicy, Scheduler, next_occurrence
from recruiter.errors import InvalidSchedule
from recruiter.producer import Producer
from recruiter.results import JobHandle
from recruiter.steps import repeat
from recruiter.store.in_session import Session

if TYPE_CHECKING:
    from recruiter.builder import JobBuilder


@dataclass(frozen=True)
class RepeatableJob(HasOptions):
    """Builds a scheduler. Each method returns a new builder; `create` stores the scheduler. Its options are for its
    occurrences."""

    _sender: Producer
    _job: JobBuilder[Any]
    _policy: SchedulePolicy
    _urn: str
    _overlap: Overlap = Overlap.ALLOW
    _late: Late = Late.LATEST
    _window: DurationLike = WINDOW
    _must_succeed_within: DurationLike | None = None

    def with_urn(self, urn: str) -> Self:
        """The name of the scheduler (default: the name of the task); it is found, changed and removed by this name."""
        return replace(self, _job=self._job.with_urn(urn), _urn=urn)

    @property
    def urn(self) -> str:
        """The name of the scheduler."""
        return self._urn

    @property
    def _task_options(self) -> TaskOptions:
        return self._job._task_options

    def _changed(self, **given: Unpack[GivenJobOptions]) -> Self:
        return replace(self, _job=self._job._changed(**given))

    def unique(self) -> Self:
        """An occurrence is skipped while an earlier one is waiting, running or being retried."""
        return replace(self, _overlap=Overlap.UNIQUE)

    def replacing(self) -> Self:
        """An occurrence cancels an earlier occurrence that is waiting, running or being retried."""
        return replace(self, _overlap=Overlap.REPLACE)

    def when_late(self, late: Late | str, window: DurationLike = WINDOW) -> Self:
        """Sets the missed occurrences to create after downtime: none (`skip`), the `latest` (default) or `all`. An
        occurrence older than `window` is never created."""
        return replace(self, _late=Late.of(late), _window=to_timedelta(window))

    def must_succeed_within(self, duration: DurationLike) -> Self:
        """Reports the scheduler, with `recruiter doctor` and an event, if its last success is older than this."""
        if not (promise := to_timedelta(duration)):
            raise InvalidSchedule(f"must_succeed_within needs some time, not {humanize(promise)}")
        return replace(self, _must_succeed_within=promise)

    def build(self) -> Scheduler:
        """The scheduler that `create` would store."""
        now = self._sender.clock.now()
        within = self._must_succeed_within
        return Scheduler(
            urn=self._urn,
            template=self._job.as_template(self._urn),
            schedule=self._sender.schedules.dump(self._policy),
            created_at=now,
            handled=now,
            next_at=next_occurrence(self._policy, now),
            overlap=self._overlap,
            late=self._late,
            window=to_timedelta(self._window),
            must_succeed_within=None if within is None else to_timedelta(within),
        )

    def create(self) -> SchedulerHandle:
        """Stores the scheduler, or changes the existing scheduler of this urn together with its waiting occurrence."""
        repeat.put(self._sender.store, self.build())
        return SchedulerHandle(self._sender, self._urn)

    acreate = async_face(create)


class SchedulerHandle:
    """A handle for a stored scheduler."""

    def __init__(self, sender: Producer, urn: str) -> None:
        self._sender = sender
        self.urn = urn
        """The name of the scheduler."""

    def find(self) -> Scheduler:
        """The stored scheduler. Raises SchedulerNotFound."""
        return repeat.get(self._sender.store, self.urn)

    afind = async_face(find)

    def next_runs(self, count: int = 5) -> list[datetime]:
        """The times of its next runs, unless it is paused or changed."""
        scheduler = self.find()
        return repeat.next_runs(scheduler, self._sender.schedules, self._sender.clock.now(), count)

    anext_runs = async_face(next_runs)

    def pause(self, *, by: str | None = None, reason: str | None = None) -> None:
        """Pauses it: there are no occurrences until it is resumed. Missed occurrences are not made up for."""
        check_remark(by, reason)
        repeat.pause(self._sender.store, self._sender.clock.now(), self.urn, by, reason)

    apause = async_face(pause)

    def resume(self) -> None:
        """Resumes it with its next occurrence."""
        repeat.resume(self._sender.store, self._sender.schedules, self._sender.clock.now(), self.urn)

    aresume = async_face(resume)

    def run_now(self, *, session: Session | None = None) -> JobHandle[Any]:
        """Enqueues an extra occurrence now, even if the scheduler is paused. With a `session` it is part of the
        caller's own transaction. Raises SchedulerNotFound, InvalidSession."""
        job = repeat.extra_job(self.find(), self._sender.clock.now())
        if session is None:
            return self._sender.send(job)
        self._sender.produce(lambda here: here.enqueue([job], own_ids=False), session)
        return self._sender.handle(job.id)

    arun_now = async_face(run_now)

    def remove(self) -> int:
        """Removes it, and cancels its jobs that have not ended; returns how many."""
        return repeat.remove(self._sender.store, self._sender.clock.now(), self.urn)

    aremove = async_face(remove)

    def last(self) -> ArchivedJob | None:
        """The job of it that ended last, if the archive still has one."""
        return self._sender.store.archived.latest(self.urn)

    alast = async_face(last)

    def waiting(self) -> list[Job]:
        """Its occurrences that have not ended."""
        return list(self._sender.store.scheduled.of_urn(self.urn))

    awaiting = async_face(waiting)

    def __repr__(self) -> str:
        return f"SchedulerHandle({self.urn!r})"
