"""A task: a function that can also be a job; and the decorators that make one."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import update_wrapper
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Unpack, cast, overload

from recruiter.async_face import in_a_thread
from recruiter.builder import JobBuilder, JobDraft
from recruiter.domain.names import check_aliases, check_name
from recruiter.domain.options import TaskOptions
from recruiter.domain.planning.limits import Ceiling
from recruiter.domain.schedule.scheduler import SchedulePolicy
from recruiter.domain.text import said_by, shown
from recruiter.errors import InvalidArguments, RecruiterError
from recruiter.many import Call, CallOrJob, Errors, Many, ManyOptions, check_options
from recruiter.producer import Producer
from recruiter.registry import FunctionTask
from recruiter.repeatable import RepeatableJob
from recruiter.results import JobHandle
from recruiter.store.in_session import Session, is_session

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


class Task(Generic[P, C, R]):
    """A function with the decorator `@recruiter.task`. Call it, and the function runs here. `enqueue` it, and a worker
    runs it."""

    def __init__(self, sender: Producer, definition: FunctionTask, function: Callable[P, C]) -> None:
        self._sender = sender
        self._definition = definition
        self._function = function
        self.name = definition.name
        """The stored name: the name of the function, or the option `name`."""
        update_wrapper(self, function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> C:
        return self._function(*args, **kwargs)

    # -- making jobs ---------------------------------------------------------------------------------------------

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Runs it in the background as soon as possible. Returns when the job is durable.

        With a `session=` from your client, which is never an argument of the task, the job is part of your
        transaction; `.job(…).enqueue(session=…)` does the same, and type checkers know it. Raises InvalidArguments,
        UnsupportedValue, JobTooLarge; nothing is stored then.
        """
        session = self._session_of(kwargs)
        return self.job(*args, **kwargs).enqueue(session=session)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Like `enqueue`, without blocking the event loop. The session may be of an AsyncMongoClient."""
        session = self._session_of(kwargs)
        return await self.job(*args, **kwargs).aenqueue(session=session)

    def create(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Runs it in the background, once and never again: the same arguments are the same job, and `created` is true
        if it is new. Takes a `session=` and raises like `enqueue`."""
        session = self._session_of(kwargs)
        return self.job(*args, **kwargs).create(session=session)

    async def acreate(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Like `create`, without blocking the event loop. The session may be of an AsyncMongoClient."""
        session = self._session_of(kwargs)
        return await self.job(*args, **kwargs).acreate(session=session)

    @overload
    def enqueue_many(
        self,
        calls: Iterable[Call | JobBuilder[R]],
        *,
        errors: Literal["raise"] = "raise",
        **options: Unpack[ManyOptions],
    ) -> list[JobHandle[R]]: ...
    @overload
    def enqueue_many(
        self, calls: Iterable[Call | JobBuilder[R]], *, errors: Literal["return"], **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R] | RecruiterError]: ...
    def enqueue_many(
        self, calls: Iterable[Call | JobBuilder[R]], *, errors: Errors = "raise", **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R]] | list[JobHandle[R] | RecruiterError]:
        """Enqueues many jobs in one call, each a tuple of arguments, a mapping of named arguments, or `task.job(…)`,
        whose arguments type checkers check. They share the options of one job, `schedule_at` and
        `schedule_in`.

        A job that cannot be stored does not stop the others. Then JobsRefused is raised, which names each refused job
        by its position and has the handles of the others; with `errors="return"` the list has the error instead.
        """
        return self._many(calls, options, errors).enqueue()

    @overload
    async def aenqueue_many(
        self,
        calls: Iterable[Call | JobBuilder[R]],
        *,
        errors: Literal["raise"] = "raise",
        **options: Unpack[ManyOptions],
    ) -> list[JobHandle[R]]: ...
    @overload
    async def aenqueue_many(
        self, calls: Iterable[Call | JobBuilder[R]], *, errors: Literal["return"], **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R] | RecruiterError]: ...
    async def aenqueue_many(
        self, calls: Iterable[Call | JobBuilder[R]], *, errors: Errors = "raise", **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R]] | list[JobHandle[R] | RecruiterError]:
        """Like `enqueue_many`, without blocking the event loop. The session may be of an AsyncMongoClient."""
        return await in_a_thread(self._many(calls, options, errors).enqueue)

    @overload
    def create_many(
        self,
        calls: Iterable[Call | JobBuilder[R]],
        *,
        errors: Literal["raise"] = "raise",
        **options: Unpack[ManyOptions],
    ) -> list[JobHandle[R]]: ...
    @overload
    def create_many(
        self, calls: Iterable[Call | JobBuilder[R]], *, errors: Literal["return"], **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R] | RecruiterError]: ...
    def create_many(
        self, calls: Iterable[Call | JobBuilder[R]], *, errors: Errors = "raise", **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R]] | list[JobHandle[R] | RecruiterError]:
        """Creates many jobs in one call, each once and never again, like `create`. The `created` of a handle is true if
        its job is new: not if the same job exists, or is earlier in the list. Raises like `enqueue_many`."""
        return self._many(calls, options, errors).create()

    @overload
    async def acreate_many(
        self,
        calls: Iterable[Call | JobBuilder[R]],
        *,
        errors: Literal["raise"] = "raise",
        **options: Unpack[ManyOptions],
    ) -> list[JobHandle[R]]: ...
    @overload
    async def acreate_many(
        self, calls: Iterable[Call | JobBuilder[R]], *, errors: Literal["return"], **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R] | RecruiterError]: ...
    async def acreate_many(
        self, calls: Iterable[Call | JobBuilder[R]], *, errors: Errors = "raise", **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R]] | list[JobHandle[R] | RecruiterError]:
        """Like `create_many`, without blocking the event loop. The session may be of an AsyncMongoClient."""
        return await in_a_thread(self._many(calls, options, errors).create)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> JobBuilder[R]:
        """A builder for a job with these arguments: `.schedule_in("5 minutes").enqueue()`.

        Raises InvalidArguments, UnsupportedValue.
        """
        return self._builder(self._definition.bind(args, kwargs))

    # -- after each attempt --------------------------------------------------------------------------------------

    def after_success(self, function: Callable[[R], Any]) -> Callable[[R], Any]:
        """A decorator: call this with the result when a job of this task has succeeded."""
        self._definition.finalizers.after_success.append(function)
        return function

    def after_failure(self, function: Callable[[BaseException], Any]) -> Callable[[BaseException], Any]:
        """A decorator: call this with the exception after each attempt that failed."""
        self._definition.finalizers.after_failure.append(function)
        return function

    def after_last_failure(self, function: Callable[[BaseException], Any]) -> Callable[[BaseException], Any]:
        """A decorator: call this with the exception when there will be no other attempt."""
        self._definition.finalizers.after_last_failure.append(function)
        return function

    def finalize(self, function: Callable[[BaseException | None], Any]) -> Callable[[BaseException | None], Any]:
        """A decorator: call this last after each attempt, with the exception or None."""
        self._definition.finalizers.finalize.append(function)
        return function

    def _many(self, calls: Iterable[Call | JobBuilder[R]], options: ManyOptions, errors: Errors) -> Many[R]:
        check_options(options)
        if not isinstance(calls, Iterable):
            raise InvalidArguments(f"{self.name}: calls are a list of tuples, mappings or jobs, not {shown(calls)}")
        returns = self._definition.signature.returns
        return Many(self._sender, self.name, list(calls), self._arguments_of, self._builder, options, errors, returns)

    def _arguments_of(self, call: CallOrJob) -> Mapping[str, Any]:
        """The arguments of one call of `enqueue_many`, by name. Raises InvalidArguments."""
        if isinstance(call, tuple):
            return self._definition.bind(call, {})
        if isinstance(call, Mapping):
            return self._definition.bind((), call)
        if isinstance(call, JobBuilder):
            args = cast(Mapping[str, Any], call._draft.args)
            if call._draft == self._builder(args)._draft:  # as `task.job(…)` has made it
                return args
            raise InvalidArguments(
                f"{self.name}: a job in the list is {self.name}.job(…) without options of its own; the options of "
                "all jobs go behind the list"
            )
        raise InvalidArguments(
            f"{self.name}: each call is a tuple of arguments, a mapping of named ones or {self.name}.job(…), not "
            f"{said_by(call, repr):.200}"
        )

    def _session_of(self, kwargs: dict[str, Any]) -> Session | None:
        """Takes a session out of the arguments: it could not be stored."""
        none = kwargs.get("session", ...) is None and "session" not in self._definition.signature.names
        session: Session | None = kwargs.pop("session") if none or is_session(kwargs.get("session")) else None
        return session

    def _builder(self, args: Mapping[str, Any]) -> JobBuilder[R]:
        definition = self._definition
        draft = JobDraft(self.name, args, definition.options, definition.signature.returns)
        return JobBuilder(self._sender, draft)

    def __repr__(self) -> str:
        return f"Task({self.name!r})"


class AsRepeated:
    """The decorator `@recruiter.every(...)`, for a function or a task that takes no arguments."""

    def __init__(self, as_task: AsTask, policy: SchedulePolicy, declare: Callable[[RepeatableJob], None]) -> None:
        self._as_task = as_task
        self._policy = policy
        self._declare = declare

    @overload
    def __call__(self, function: Task[[], C, R], /) -> Task[[], C, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[[], Coroutine[Any, Any, R]], /) -> Task[[], Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[[], R], /) -> Task[[], R, R]: ...
    def __call__(self, function: Callable[[], Any], /) -> Any:
        task = function if isinstance(function, Task) else self._as_task(function)
        self._declare(task.job().repeat_with_policy(self._policy))
        return task


class AsTask:
    """The decorator `@recruiter.task(...)`."""

    def __init__(
        self, sender: Producer, name: str | None, aliases: Iterable[str], options: TaskOptions, ceiling: Ceiling | None
    ) -> None:
        self._sender = sender
        self._name = None if name is None else check_name("task", name)
        self._ceiling = ceiling
        self._aliases = aliases
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        definition = FunctionTask(
            self._name or function.__name__,
            function,
            self._options,
            check_aliases(self._aliases),
            ceiling=self._ceiling,
        )
        if self._ceiling is not None:
            self._ceiling.limits_of(definition.name)
        self._sender.registry.add(definition)
        return Task(self._sender, definition, function)
