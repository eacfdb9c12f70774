"""The facade: what an application holds in its hand. It only delegates."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from recruiter.builder import WorkableJob, _Wishes
from recruiter.clock import SystemClock
from recruiter.domain.duration import DurationLike, to_seconds
from recruiter.domain.job import ArchivedJob, Job, JobId
from recruiter.domain.names import DEFAULT_GROUP
from recruiter.domain.report import JobReport
from recruiter.domain.retry import RetryPolicy
from recruiter.errors import JobExists, JobNotFound, RecruiterError, UnknownTask
from recruiter.events import Events, Listener
from recruiter.processes.caller import CallingOptions
from recruiter.processes.calling import Calling, StopWish
from recruiter.processes.flushing import MOST_FLUSHED, Flushing
from recruiter.processes.seat import Crew
from recruiter.registry import Defaults, FunctionTask, RegistryOwner
from recruiter.results import JobHandle, Results
from recruiter.settings import Settings, TargetSettings
from recruiter.steps.cancel import cancel
from recruiter.steps.enqueue import Enqueuer, refusal
from recruiter.steps.execute import Executor
from recruiter.steps.run_here import run_here
from recruiter.store.codec import encode_job
from recruiter.store.database import Store
from recruiter.store.target import Target
from recruiter.task import Task
from recruiter.workable import Workable

if TYPE_CHECKING:
    from pymongo.client_session import ClientSession

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W", bound=Workable)

TaskLike = str | Task[..., Any, Any] | type[Workable]
"""A task by its name, itself, or a workable class."""

_ON_THIS_CONNECTION = ("store", "_enqueuer", "_executor", "_calling")


class Recruiter(RegistryOwner):
    """Makes and watches jobs. Connects on first use.

    `target` is where MongoDB is: `127.0.0.1:27017`, `host/database` or a full URI. Without one, the environment
    variable RECRUITER_TARGET or the settings file says it.
    """

    def __init__(self, target: str | None = None) -> None:
        super().__init__()
        self._target_given = target
        self._target: Target | None = None
        self.events = Events()
        self._results = Results(lambda: self.store)

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
        group: str = DEFAULT_GROUP,
        priority: int | float = 0,
        tags: Iterable[str] = (),
        retry: RetryPolicy | None = None,
        only: Iterable[type[BaseException]] = (),
        at_most_once: bool = False,
    ) -> _Decorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        group: str = DEFAULT_GROUP,
        priority: int | float = 0,
        tags: Iterable[str] = (),
        retry: RetryPolicy | None = None,
        only: Iterable[type[BaseException]] = (),
        at_most_once: bool = False,
    ) -> Any:
        """Makes a function a task. What is given here holds for its jobs unless they say otherwise."""
        defaults = Defaults(group, priority, tuple(tags), retry, tuple(only), at_most_once)
        decorator = _Decorator(self, name, defaults)
        return decorator if function is None else decorator(function)

    def job_of(self, workable: W) -> WorkableJob[W]:
        """A job that runs a method of this workable."""
        return WorkableJob(self, _Wishes(type(workable).task_name, workable.export(), Defaults()))

    # -- jobs ----------------------------------------------------------------------------------------------------

    def send(self, job: Job, returns: Any = Any, session: ClientSession | None = None) -> JobHandle[Any]:
        """Stores a job; returns when it is durable, or with the caller's own transaction."""
        if session is None:
            self._enqueuer.one(job)
        else:
            self.store.scheduled.insert([encode_job(job)], session)
        return self.handle(job.id, returns)

    def send_many(self, jobs: Sequence[Job], session: ClientSession | None = None) -> list[RecruiterError | None]:
        if session is None:
            return self._enqueuer.many(jobs)
        errors = self.store.scheduled.insert([encode_job(job) for job in jobs], session) if jobs else {}
        return [refusal(job, errors[place]) if place in errors else None for place, job in enumerate(jobs)]

    def check_unused(self, id: JobId) -> None:
        """Refuses the id of a job that has ended; the id of a waiting one is refused when the job is stored."""
        if self.store.archived.get(id) is not None:
            raise JobExists(f"the job with id {id!r} has ended already; it was left as it is")

    def run_here(self, job: Job, returns: Any = Any) -> JobHandle[Any]:
        run_here(self.store, self._executor.run, job)
        return self.handle(job.id, returns)

    def handle(self, id: JobId, returns: Any = Any) -> JobHandle[Any]:
        return JobHandle(id, self._results, returns)

    def find(self, id: JobId) -> Job | ArchivedJob:
        """The job, waiting or ended. Raises JobNotFound."""
        found = self.store.scheduled.get(id) or self.store.archived.get(id)
        if found is None:
            raise JobNotFound(f"there is no job {id!r}")
        return found

    def cancel(self, id: JobId, *, by: str | None = None, reason: str | None = None) -> None:
        """Cancels a job that has not ended."""
        cancel(self.store, self.clock, id, by, reason)

    # -- jobs in this process ------------------------------------------------------------------------------------

    def run(self, task: TaskLike, *, wait: DurationLike | None = None) -> JobReport | None:
        """Runs one due job of this task here, and reports; None when there is none to be had now.

        No other process is needed, and any number may be there. `wait` is how long to wait for a due job that another
        recruiter has not given to anybody yet; by default as long as it takes to replace one that was killed.
        """
        return self._calling.run(self._name_of(task), None if wait is None else to_seconds(wait))

    def run_all(self, task: TaskLike) -> list[JobReport]:
        """Runs due jobs of this task here, one after another, until none is left; retries that are due at once too."""
        return self._calling.run_all(self._name_of(task))

    def watch(self, *tasks: TaskLike, stop: StopWish | None = None) -> None:
        """Runs due jobs of these tasks here as they come, until `stop` (a `threading.Event`) is set.

        In the main thread Ctrl-C and SIGTERM stop it too: the running job finishes, and `watch` returns. A second one
        interrupts the job, which is handed back.
        """
        if not tasks:
            raise UnknownTask("watch needs at least one task")
        self._calling.watch([self._name_of(task) for task in tasks], stop)

    def flush_jobs_synchronously(self, *, most: int = MOST_FLUSHED) -> list[JobReport]:
        """Runs every waiting job here and now, in the order of their time, future ones too; for your tests.

        Jobs that are enqueued meanwhile are run as well, and each job is run once: one that is to be tried again stays
        waiting. Raises NotAlone where a recruiter or a worker is running.
        """
        return Flushing(self.store, self.events, self._crew, self._calling_options).run(most)

    def _name_of(self, task: TaskLike) -> str:
        if isinstance(task, Task):
            return self.registry.get(task.name).name
        if isinstance(task, type) and issubclass(task, Workable):
            return self.registry.get(task.task_name).name
        if isinstance(task, str):
            return self.registry.get(task).name
        raise UnknownTask(f"{task!r} is no task: give its name, the decorated function, or a Workable class")

    # -- the connection ------------------------------------------------------------------------------------------

    @property
    def target(self) -> Target:
        if self._target is None:
            self._target = Target.parse(self._target_given or TargetSettings().target)
        return self._target

    @property
    def address(self) -> str:
        return self.target.uri

    def point_at(self, address: str) -> None:
        """Uses another MongoDB from now on, over a new connection; for processes that were started with --target."""
        for name in _ON_THIS_CONNECTION:
            self.__dict__.pop(name, None)
        self._target = Target.parse(address)

    @property
    def clock(self) -> SystemClock:
        return self.store.clock

    @cached_property
    def store(self) -> Store:
        store = Store(self.target)
        store.check()
        return store

    def listen(self, listener: Listener) -> Listener:
        return self.events.listen(listener)

    def close(self) -> None:
        store = self.__dict__.pop("store", None)
        for name in _ON_THIS_CONNECTION:
            self.__dict__.pop(name, None)
        if store is not None:
            store.close()

    def __enter__(self) -> Recruiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _enqueuer(self) -> Enqueuer:
        return Enqueuer(self.store)

    @cached_property
    def _executor(self) -> Executor:
        return self._executor_of("here")

    def _executor_of(self, worker: str) -> Executor:
        return Executor(self.registry, self.policies, self.clock, worker)

    @property
    def _crew(self) -> Crew:
        return Crew(self.registry, self.policies, self._executor_of)

    @cached_property
    def _calling(self) -> Calling:
        self.store.prepare()
        return Calling(self.store, self.events, self._crew, self._calling_options)

    @property
    def _calling_options(self) -> CallingOptions:
        """The same as of the processes on this database, as far as settings say."""
        settings = Settings.load()
        return CallingOptions(
            lease_time=settings.lease_time.total_seconds(),
            dead_after=settings.considered_dead_after.total_seconds(),
            heartbeat=settings.heartbeat.total_seconds(),
            backoff_from=settings.backoff_from.total_seconds(),
            backoff_to=settings.backoff_to.total_seconds(),
        )


class _Decorator:
    """What `@recruiter.task(...)` leaves to be put on a function."""

    def __init__(self, recruiter: Recruiter, name: str | None, defaults: Defaults) -> None:
        self._recruiter = recruiter
        self._name = name
        self._defaults = defaults

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        definition = FunctionTask(self._name or function.__name__, function, self._defaults)
        self._recruiter.registry.add(definition)
        return Task(self._recruiter, definition, function)
