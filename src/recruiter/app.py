"""The facade: what an application holds in its hand. It only delegates."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from recruiter.builder import JobBuilder, Wishes, WorkableJob
from recruiter.clock import SystemClock
from recruiter.domain.defaults import Defaults
from recruiter.domain.duration import DurationLike
from recruiter.domain.job import Job, JobId
from recruiter.domain.names import DEFAULT_GROUP, check_name
from recruiter.domain.retry import RetryPolicy
from recruiter.domain.values import to_bson
from recruiter.errors import JobExists, JobNotFound, RecruiterError
from recruiter.events import Listener
from recruiter.registry import FunctionTask, RegistryOwner
from recruiter.results import JobHandle, Results
from recruiter.settings import TargetSettings
from recruiter.steps.cancel import cancel
from recruiter.steps.enqueue import Enqueuer, refusal
from recruiter.steps.execute import Executor
from recruiter.steps.run_here import run_here
from recruiter.store.codec import checked_size, decode, encode_job
from recruiter.store.database import Store
from recruiter.store.target import Target
from recruiter.task import Task
from recruiter.twins import twin
from recruiter.workable import Workable, stored, tags_of

if TYPE_CHECKING:
    from pymongo.client_session import ClientSession

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W", bound=Workable)

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Recruiter(RegistryOwner):
    """Makes and watches jobs. Connects on first use.

    `target` is where MongoDB is: `127.0.0.1:27017`, `host/database` or a full URI. Without one, the environment
    variable RECRUITER_TARGET or the settings file says it.
    """

    def __init__(self, target: str | None = None) -> None:
        super().__init__()
        self._target_given = target
        self._target: Target | None = None
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
        timeout: DurationLike | None = None,
        aliases: Iterable[str] = (),
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
        timeout: DurationLike | None = None,
        aliases: Iterable[str] = (),
    ) -> Any:
        """Makes a function a task. What is given here holds for its jobs unless they say otherwise.

        `name` is what is stored (the function's own name by default); `aliases` are names it had before, under which
        jobs may still be waiting.
        """
        defaults = Defaults.of(group, priority, tags, retry, only, at_most_once, timeout)
        decorator = _Decorator(self, name, tuple(aliases), defaults)
        return decorator if function is None else decorator(function)

    def job_of(self, workable: W) -> WorkableJob[W]:
        """A job that runs a method of this workable."""
        cls, args = type(workable), stored(workable)
        return WorkableJob(self, Wishes(cls.task_name, args, cls.task_defaults, tags=tags_of(workable)))

    def job(self, task: str, data: Mapping[str, Any] | Sequence[Any] = _NOTHING) -> JobBuilder[Any]:
        """A job by the name of its task, for whoever has not got the code: `data` are its arguments, named or in order.

        If the task is known here the arguments are checked; otherwise any that can travel are stored.
        """
        definition = self.registry.find(check_name("task", task))
        if definition is None:
            return JobBuilder(self, Wishes(task, to_bson(data, "data"), Defaults()))
        return JobBuilder(self, Wishes(definition.name, definition.store(data), definition.defaults))

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

    def send_unused(self, job: Job, returns: Any = Any) -> JobHandle[Any]:
        """Stores a job with an id of the user's own. Raises JobExists when there is one, waiting or ended."""
        if not self.store.settlement.create(decode(checked_size(job)), once_ever=False):
            raise JobExists(f"a job with id {job.id!r} exists already; it was left as it is")
        return self.handle(job.id, returns)

    def send_once(self, job: Job, returns: Any = Any) -> JobHandle[Any]:
        """Stores a job unless there ever was one with this id; the handle says which."""
        created = self.store.settlement.create(decode(checked_size(job)), once_ever=True)
        return JobHandle(job.id, self._results, returns, created=created)

    def create(
        self, task: str, data: Mapping[str, Any] | Sequence[Any] = _NOTHING, *, id: JobId | None = None
    ) -> JobHandle[Any]:
        """Makes a job once, ever: the same task with the same data is the same job, whatever the order of its keys.

        An `id` tells apart what is meant to be run again. The handle's `created` says whether it is new.
        """
        job = self.job(task, data)
        return (job if id is None else job.with_id(id)).create()

    acreate = twin(create)

    def run_here(self, job: Job, returns: Any = Any) -> JobHandle[Any]:
        """Runs a job in this process, now; only its retries go to the background."""
        run_here(self.store, self._executor.run, job)
        return self.handle(job.id, returns)

    def handle(self, id: JobId, returns: Any = Any) -> JobHandle[Any]:
        return JobHandle(id, self._results, returns)

    def find(self, id: JobId) -> Job:
        """The job; an ArchivedJob when it has ended. Raises JobNotFound."""
        found = self.store.scheduled.get(id) or self.store.archived.get(id)
        if found is None:
            raise JobNotFound(f"there is no job {id!r}")
        return found

    afind = twin(find)

    def cancel(self, id: JobId, *, by: str | None = None, reason: str | None = None) -> None:
        """Cancels a job that has not ended."""
        cancel(self.store, self.clock, id, by, reason)

    acancel = twin(cancel)

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
        for name in ("store", "_enqueuer", "_executor"):
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
        """A decorator: call this with every event of this process (see `recruiter.events`)."""
        return self.events.listen(listener)

    def close(self) -> None:
        store = self.__dict__.pop("store", None)
        for name in ("_enqueuer", "_executor"):
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
        return Executor(self.registry, self.policies, self.clock, "here", owners=(self,))


class _Decorator:
    """What `@recruiter.task(...)` leaves to be put on a function."""

    def __init__(self, recruiter: Recruiter, name: str | None, aliases: tuple[str, ...], defaults: Defaults) -> None:
        self._recruiter = recruiter
        self._name = name
        self._aliases = aliases
        self._defaults = defaults

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        definition = FunctionTask(self._name or function.__name__, function, self._defaults, self._aliases)
        self._recruiter.registry.add(definition)
        return Task(self._recruiter, definition, function)
