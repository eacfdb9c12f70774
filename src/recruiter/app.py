"""The facade `Recruiter`: the one object that an application holds. It only delegates."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, get_args, overload

from recruiter.async_face import Ending, StopEvent, async_face, finishing_first
from recruiter.builder import (
    GuardedJob,
    JobBuilder,
    WorkableJob,
    job_by_name,
    job_of_workable,
    words_that_are_methods,
)
from recruiter.controls import Controls
from recruiter.current import CurrentJob
from recruiter.domain.duration import DurationLike, MomentLike, resolved, to_moment, to_seconds, to_timedelta
from recruiter.domain.job import Job, JobId, JobReport
from recruiter.domain.names import check_name, check_remark, check_text, id_told
from recruiter.domain.options import DEFAULTS, GivenOptions, accepts_options
from recruiter.domain.planning.limits import Ceiling, KeyLimit
from recruiter.domain.policy_registry import schedule_policy
from recruiter.domain.schedule.scheduler import WINDOW, Late, SchedulePolicy, Scheduler
from recruiter.domain.statistics import Analytics
from recruiter.domain.text import shown
from recruiter.errors import InvalidJob, JobNotFound, NoCurrentJob, UnknownTask
from recruiter.events import Listener
from recruiter.first_use import cached_property
from recruiter.flow import Flow, FlowHandle, Flows, TaskOrJob, chain, fan_out
from recruiter.instruments import Instrument
from recruiter.jobs import Jobs
from recruiter.many import CallOrJob
from recruiter.processes import inline
from recruiter.producer import Producer
from recruiter.registry import BECAME_MASTER, STEPT_BACK, TaskDefinition
from recruiter.repeatable import RepeatableJob, SchedulerHandle
from recruiter.results import JobHandle
from recruiter.steps import cancel, change, clean
from recruiter.store.changes import JobChange
from recruiter.store.in_session import Session
from recruiter.task import AsRepeated, AsTask, Task
from recruiter.views import analytics, explain, find
from recruiter.views.analytics import By
from recruiter.workable import Workable

if TYPE_CHECKING:
    from recruiter.processes.inline import Inline, InlineApplication
    from recruiter.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W", bound=Workable)

_NOTHING: Mapping[str, Any] = MappingProxyType({})

TaskLike = str | Task[..., Any, Any] | type[Workable]
"""A task by its name, itself, or a workable class."""


class Recruiter(Producer):
    """Makes and watches jobs. Connects on first use; one can be shared by all threads.

    `target` is the address of MongoDB: `127.0.0.1:27017`, `host/database` or a full URI; or your `MongoClient` or one
    of its databases, which is used and left open. The default comes from the environment variable RECRUITER_TARGET or
    the settings file. `prefix` begins the name of each collection of Recruiter, so that it never meets a collection of
    the application. The default comes from RECRUITER_PREFIX or the settings file, and is otherwise "recruiter."; use ""
    for plain names. Two prefixes in one database are two independent systems. `server_timeout` is how long calls wait
    for MongoDB before they raise StoreUnreachable. The default comes from RECRUITER_SERVER_TIMEOUT or the settings
    file, and is otherwise 30 seconds. With a `codec`, such as `recruiter.crypto.AesGcm`, arguments and results are
    encrypted or compressed before they are stored, except the arguments that `clear` names. With `sealed_only` this
    application refuses to run or read anything that is stored in clear.
    """

    # -- tasks ---------------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        max_running: int | None = None,
        rate: str | None = None,
        limits: Mapping[str, KeyLimit] | None = None,
        **options: Unpack[GivenOptions],
    ) -> AsTask: ...
    @accepts_options
    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        max_running: int | None = None,
        rate: str | None = None,
        limits: Mapping[str, KeyLimit] | None = None,
        **options: Unpack[GivenOptions],
    ) -> Any:
        """A decorator that makes a function a task. Its options are the defaults of its jobs.

        `name` is stored with each job (default: the name of the function); `aliases` are former names, under which
        jobs may still be waiting. `max_running` limits how many of its jobs run concurrently in the whole fleet, and
        `rate="5/1s"` how many start in a period, unless an operator sets another limit. `limits={"customer": "2/10s"}`
        or `{"customer": 2}` sets the same limits for each key of its jobs: `.limited_by(customer=42)`. A job that has
        not started within `expires` after its time never starts. A job that did not succeed stays in the archive for
        `keep_failed`, instead of the time that the cleaner uses (`--keep-failed`). `JobBuilder` explains the other
        options. Raises TaskExists, and InvalidName, InvalidJob, InvalidDuration or SettingsError for an invalid option.
        """
        decorator = AsTask(self, name, aliases, DEFAULTS.changed(**options), Ceiling.parse(max_running, rate, limits))
        return decorator if function is None else decorator(function)

    def job_of(self, workable: W) -> WorkableJob[W]:
        """A job that runs a method of this workable; `workable.as_job_of(recruiter)` calls it."""
        job = job_of_workable(self, workable)
        clashes = words_that_are_methods(type(workable))  # type: ignore[arg-type]  # a class can be hashed
        return cast("WorkableJob[W]", GuardedJob(job, clashes)) if clashes else job

    def job(self, task: str, data: Mapping[str, Any] | Sequence[Any] = _NOTHING) -> JobBuilder[Any]:
        """A job by the name of its task, for producers that do not have its code. `data` are its arguments, named or in
        order.

        If the task is known here the arguments are checked; otherwise any that can travel are stored.
        Raises InvalidName, InvalidArguments, UnsupportedValue.
        """
        return job_by_name(self, task, data)

    # -- jobs ----------------------------------------------------------------------------------------------------

    def create(
        self,
        task: str,
        data: Mapping[str, Any] | Sequence[Any] = _NOTHING,
        *,
        id: JobId | None = None,
        session: Session | None = None,
        server_timeout: DurationLike | None = None,
    ) -> JobHandle[Any]:
        """Creates a job once and never again: the same task with the same data, in any order of keys, is the same job.

        Give another `id` to run the same data again. The handle's `created` is true if the job is new. Raises the
        errors of `job`, and JobTooLarge.
        """
        job = self.job(task, data)
        job = job if id is None else job.with_id(id)
        return job.create(session=session, server_timeout=server_timeout)

    acreate = async_face(create)

    def find(self, id: JobId) -> Job:
        """The job; an ArchivedJob when it has ended. The id may be given as text. Raises JobNotFound."""
        id = find.meant(self.store, id)
        found = find.find(self.store, id)
        if found is None:
            raise JobNotFound(f"there is no job {id_told(id)}")
        return found

    afind = async_face(find)

    def cancel(self, id: JobId, *, by: str | None = None, reason: str | None = None) -> None:
        """Cancels a job that has not ended. A waiting job never runs. A running job gets an exception, and is killed if
        it does not stop.

        Raises JobNotFound when it has ended, or never was.
        """
        check_remark(by, reason)
        cancel.cancel(self.store, self.clock, find.meant(self.store, id), by, reason)

    acancel = async_face(cancel)

    def reschedule(
        self,
        id: JobId,
        *,
        at: datetime | None = None,
        in_: DurationLike | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Gives a waiting job another time: `at`, a datetime with a time zone, or `in_`, a duration from now. A job
        that waits for its retry, or sleeps (`current_job.sleep`), resumes at that time too.

        When the call has returned, no worker starts the job before its new time. A job whose expiry was given as a
        duration expires that long after the new time. Raises JobNotFound when the job has ended, or never was;
        JobNotWaiting when a worker holds it, or when it waits for a signal or for other steps of its flow; InvalidJob
        and InvalidDuration.
        """
        check_remark(by, reason)
        self._change(id, change.to_time(self.clock.now(), at, in_, by, reason))

    areschedule = async_face(reschedule)

    def run_now(self, id: JobId, *, by: str | None = None, reason: str | None = None) -> None:
        """Makes a job due that is scheduled for later, waits for its retry, or sleeps. It gets its turn by its
        priority. A job that is due already stays unchanged. Raises JobNotFound and JobNotWaiting like `reschedule`."""
        check_remark(by, reason)
        self._change(id, change.to_now(self.clock.now(), by, reason))

    arun_now = async_face(run_now)

    def reprioritise(
        self, id: JobId, priority: int | float, *, by: str | None = None, reason: str | None = None
    ) -> None:
        """Gives a waiting job another priority. Raises JobNotFound and JobNotWaiting like `reschedule`, and
        InvalidJob."""
        check_remark(by, reason)
        self._change(id, change.to_priority(self.clock.now(), priority, by, reason))

    areprioritise = async_face(reprioritise)

    def _change(self, id: JobId, wanted: JobChange) -> None:
        change.change_one(self.store, find.meant(self.store, id), wanted)
        self.after_send()

    def remove(self, id: JobId) -> None:
        """Removes an ended job for good. Raises JobNotFound if it waits, runs or does not exist, and InvalidFlow if it
        is a step of a flow, which is removed as a whole."""
        clean.remove(self.store, find.meant(self.store, id))

    aremove = async_face(remove)

    def explain(self, id: JobId) -> str:
        """Why this job is not running, in words; or where it runs, or how it ended. Raises JobNotFound."""
        return explain.explain(self.store, find.meant(self.store, id), self.clock.now())

    aexplain = async_face(explain)

    def analytics(
        self,
        group: str | None = None,
        *,
        task: str | None = None,
        at: MomentLike | None = None,
        within: DurationLike = "1 minute",
    ) -> Analytics:
        """Counts waiting, running and recently ended jobs, with how late they started and how long they took.

        It counts all jobs, or the jobs of a group or a task, now or at another time. The counts are kept per minute, so
        this takes as long with a million ended jobs as with ten, and covers whole minutes: at least `within`, and the
        current minute so far. `at` is a date with a time zone, or how long ago. Raises InvalidFilter.
        """
        for kind, name in (("group", group), ("task", task)):
            if name is not None:
                check_name(kind, name)
        now = self.clock.now()
        then = now if at is None else resolved(to_moment("at", at), now)
        return analytics.analyse(self.store, then, to_timedelta(within), group=group, task=task)

    aanalytics = async_face(analytics)

    def counts(self, by: By, *, within: DurationLike = "1 hour") -> dict[str, dict[str, int]]:
        """Counts waiting, running and recently ended jobs by state, for each group, task, owner or tag."""
        if by not in get_args(By):
            raise InvalidJob(f"jobs are counted by {', '.join(get_args(By))}, not by {shown(by)}")
        return analytics.count(self.store, by, self.clock.now(), to_timedelta(within))

    acounts = async_face(counts)

    @cached_property
    def jobs(self) -> Jobs:
        """Lists, counts, cancels, recovers and removes jobs by a filter."""
        return Jobs(lambda: self.store, lambda: self.after_send())

    @cached_property
    def controls(self) -> Controls:
        """Sets limits, pauses groups, drains workers."""
        return Controls(lambda: self.store)

    # -- jobs that wait for others -------------------------------------------------------------------------------

    def flow(self, name: str, *, owner: str | None = None) -> Flow:
        """A new flow: jobs that wait for others, stored together by `flow.start()`. Raises InvalidName."""
        return Flow(self, name, owner)

    def chain(self, first: TaskOrJob[Any] | Flow, *others: TaskOrJob[Any] | Flow, name: str = "chain") -> Flow:
        """A flow of steps one after the other: `recruiter.chain(fetch.job(url), shrink, upload).start()`. Each task
        takes the result of the step before it as its argument; a job only waits for that step."""
        return chain(self, name, first, *others)

    def fan_out(
        self,
        task: Task[..., Any, Any] | str,
        calls: Iterable[CallOrJob],
        *,
        then: TaskOrJob[Any] | None = None,
        name: str = "fan-out",
    ) -> Flow:
        """A flow of steps side by side, one for each call: `recruiter.fan_out(resize, [(url, 64), (url, 128)],
        then=merge).start()`. The task `then` takes the list of their results; a job only waits for them."""
        return fan_out(self, name, task, calls, then)

    @cached_property
    def flows(self) -> Flows:
        """Flows that were started, to be found and listed."""
        return Flows(self)

    # -- jobs that repeat ----------------------------------------------------------------------------------------

    def every(
        self,
        schedule: SchedulePolicy | DurationLike,
        *,
        tz: str = "UTC",
        urn: str | None = None,
        unique: bool = False,
        late: Late | str = Late.LATEST,
        window: DurationLike = WINDOW,
        must_succeed_within: DurationLike | None = None,
    ) -> AsRepeated:
        """A decorator: runs this function, or task, again and again. Raises InvalidSchedule.

        `schedule` is a cron expression with `tz`, an interval such as "5 minutes", or a policy. The scheduler is stored
        when a recruiter with this application becomes the leader, or by `create_schedulers`; see `RepeatableJob` for
        the other options.
        """

        def declare(job: RepeatableJob) -> None:
            job = job.when_late(late, window)
            job = job.unique() if unique else job
            job = job if urn is None else job.with_urn(urn)
            self.declare(job if must_succeed_within is None else job.must_succeed_within(must_succeed_within))

        return AsRepeated(AsTask(self, None, (), DEFAULTS, None), schedule_policy(schedule, tz), declare)

    def create_schedulers(self) -> list[SchedulerHandle]:
        """Stores the schedulers that `every` has declared. Safe to call in every process, at every start."""
        return [job.create() for job in self._declared.values()]

    acreate_schedulers = async_face(create_schedulers)

    def schedulers(self) -> list[Scheduler]:
        """All schedulers, by urn."""
        return list(self.store.schedulers.all())

    aschedulers = async_face(schedulers)

    def scheduler(self, urn: str) -> SchedulerHandle:
        """A handle for the scheduler with this urn: to look at it, pause, resume or remove it."""
        return SchedulerHandle(self, check_text("urn", urn))

    # -- jobs in this process ------------------------------------------------------------------------------------

    def run(self, task: TaskLike, *, wait: DurationLike | None = None) -> JobReport | None:
        """Runs one due job of this task in this process; None if there is no due job for it. Raises UnknownTask.

        No other process is needed; others may run at the same time. `wait` is how long to wait for a due job that
        another recruiter has not assigned yet; by default as long as it takes to replace a recruiter that was killed.
        """
        return self._run(task, wait)

    async def arun(self, task: TaskLike, *, wait: DurationLike | None = None) -> JobReport | None:
        """Like `run`, without blocking the event loop. Cancelling it stops it; a job that runs finishes first."""
        ending = Ending()
        return await finishing_first(lambda: self._run(task, wait, ending), ending.set)

    def _run(self, task: TaskLike, wait: DurationLike | None, stop: StopEvent | None = None) -> JobReport | None:
        return self._inline.run(self._names_of(task), None if wait is None else to_seconds(wait), stop)

    def run_all(self, task: TaskLike) -> list[JobReport]:
        """Runs due jobs of this task here, one after another, until none is left. This includes retries that are due
        immediately, and steps of flows that may start meanwhile. Raises UnknownTask."""
        return self._inline.run_all(self._names_of(task))

    async def arun_all(self, task: TaskLike) -> list[JobReport]:
        """Like `run_all`, without blocking the event loop. Cancelling it stops it; the running job finishes first."""
        ending = Ending()
        return await finishing_first(lambda: self._inline.run_all(self._names_of(task), ending), ending.set)

    def watch(self, *tasks: TaskLike, stop: StopEvent | None = None) -> None:
        """Runs due jobs of these tasks here as they come, until `stop` (a `threading.Event`) is set.

        In the main thread Ctrl-C and SIGTERM stop it too: the running job finishes, and `watch` returns. A second one
        interrupts the job, which is handed back.
        """
        if not tasks:
            raise UnknownTask("watch needs at least one task")
        self._inline.watch([name for task in tasks for name in self._names_of(task)], stop)

    async def awatch(self, *tasks: TaskLike, stop: StopEvent | None = None) -> None:
        """Like `watch`, without blocking the event loop. Cancelling it stops it; the running job finishes first."""
        ending = Ending(stop)
        await finishing_first(lambda: self.watch(*tasks, stop=ending), ending.set)

    def flush_jobs_synchronously(self, *, due_only: bool = False, most: int = 10_000) -> list[JobReport]:
        """Runs every waiting job in this process now, in the order of their time, future ones too; for your tests.

        Jobs that are enqueued meanwhile are run as well. Each job is run once: a job that failed and will be tried
        again stays waiting. With `due_only`, jobs that are not due yet stay waiting too. Raises NotAlone if a
        recruiter or a worker is running.
        """
        flush = inline.Flush(self.store, self.events, self._inline_application, self._caller_settings)
        return flush.run(most, due_only)

    aflush_jobs_synchronously = async_face(flush_jobs_synchronously, runs_user_code=True)

    # -- the connection ------------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> Listener:
        """A decorator: calls this with every event of the jobs that this process runs: `job.started`, `job.ended`,
        `job.failed`, `job.failure.last`, `job.snoozed`. Events of recruiters, workers and cleaners are in their
        logs."""
        return self.events.listen(listener)

    def instrument(self, instrument: Instrument) -> None:
        """Lets a tool follow its jobs, here and in every process that loads this application:
        `recruiter.instrument(OpenTelemetry())` (see `recruiter.contrib`)."""
        self.instruments.add(instrument)

    def on_became_leader(self, hook: Callable[[Recruiter], Any]) -> Callable[[Recruiter], Any]:
        """A decorator: calls the function, with the Recruiter, when the recruiter process of this application becomes
        the leader. A function `recruiter_became_master(recruiter)` in the bootstrap module does the same."""
        self.hooks[BECAME_MASTER].append(hook)
        return hook

    def on_stepped_down(self, hook: Callable[[Recruiter], Any]) -> Callable[[Recruiter], Any]:
        """A decorator: calls the function, with the Recruiter, when the recruiter process of this application is no
        longer the leader. A function `recruiter_stept_back(recruiter)` in the bootstrap module does the same."""
        self.hooks[STEPT_BACK].append(hook)
        return hook

    # -- for extensions ------------------------------------------------------------------------------------------

    def repeatable_job_of(self, workable: W, urn: str | None, unique: bool) -> WorkableJob[W]:
        """A job of this workable that still needs a schedule."""
        return job_of_workable(self, workable).repeated_as(urn or type(workable).task_name, unique)

    @cached_property
    def _declared(self) -> dict[str, RepeatableJob]:
        return {}

    def declare(self, job: RepeatableJob) -> None:
        """Keeps a scheduler until `create_schedulers` stores it."""
        self._declared[job.urn] = job

    def definition_of(self, task: TaskLike) -> TaskDefinition:
        """The definition that is registered here for a task. Raises UnknownTask."""
        if isinstance(task, Task):
            return self.registry.get(task.name)
        if isinstance(task, type) and issubclass(task, Workable):
            return self.registry.get(task.task_name)
        if isinstance(task, str):
            return self.registry.get(task)
        raise UnknownTask(f"{shown(task)} is not a task: give its name, the decorated function, or a Workable class")

    def _names_of(self, task: TaskLike) -> list[str]:
        definition = self.definition_of(task)
        return [definition.name, *definition.aliases]

    @property
    def _inline_application(self) -> InlineApplication:
        return inline.InlineApplication(self.registry, self.policies, self.schedules, self._executor_of, self.payload)

    @cached_property
    def _inline(self) -> Inline:
        self.store.prepare()
        return inline.Inline(self.store, self.events, self._inline_application, self._caller_settings)

    @property
    def _caller_settings(self) -> Settings:
        """The settings of the processes on this database. Imported when a job is run here."""
        settings: Settings = import_module("recruiter.settings").Settings.load().of_caller()
        return settings


class RecruiterJob(CurrentJob):
    """The job that runs here, of a `Recruiter`."""

    @property
    def recruiter(self) -> Recruiter:
        """The application it belongs to, to enqueue more jobs with. Raises NoCurrentJob if it runs without one."""
        recruiter: Recruiter = self._owner()
        return recruiter

    @property
    def flow(self) -> FlowHandle:
        """The flow that it is a step of, to add steps to it: `current_job.flow.add(resize, url)`. A step that waits for
        this one is added with `after=current_job.flow.current`. Raises NoCurrentJob if it is not a step of a flow."""
        place = self.job.flow
        if place is None:
            raise NoCurrentJob(f"job {id_told(self.id)} is not a step of a flow")
        attempt = self._attempt
        # A job that its worker has lost adds no steps: this proves that the worker holds it.
        return self.recruiter.flows.of_step(place, self.task, lambda: attempt.runner.checkpoints(attempt).hold())


current_job = RecruiterJob()
