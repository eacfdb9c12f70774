"""A task: a function that can also be a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from recruiter.builder import JobBuilder, Wishes
from recruiter.errors import InvalidArguments, RecruiterError
from recruiter.registry import FunctionTask
from recruiter.results import JobHandle
from recruiter.twins import in_a_thread, twin

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo.client_session import ClientSession

    from recruiter.app import Recruiter

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


class Task(Generic[P, C, R]):
    """What `@recruiter.task` leaves in place of your function. Call it, and the function runs here. `enqueue` it, and a
    worker runs it."""

    def __init__(self, recruiter: Recruiter, definition: FunctionTask, function: Callable[P, C]) -> None:
        self._recruiter = recruiter
        self._definition = definition
        self._function = function
        self.name = definition.name
        """What is stored: its own name, or the one that was given."""
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        return self._function(*args, **kwargs)

    # -- making jobs ---------------------------------------------------------------------------------------------

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Runs it in the background as soon as possible. Returns when the job is durable.

        Raises InvalidArguments, UnsupportedValue, JobTooLarge; nothing is stored then.
        """
        return self.job(*args, **kwargs).in_background().execute()

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Like `enqueue`, without blocking the event loop."""
        return await in_a_thread(self.enqueue, *args, **kwargs)

    def create(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Runs it in the background, once, ever: the same arguments make the same job, and `created` says whether it is
        new. Raises what `enqueue` raises."""
        return self.job(*args, **kwargs).create()

    async def acreate(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Like `create`, without blocking the event loop."""
        return await in_a_thread(self.create, *args, **kwargs)

    def enqueue_many(
        self,
        calls: Iterable[tuple[Any, ...] | Mapping[str, Any]],
        *,
        session: ClientSession | None = None,
    ) -> list[JobHandle[R] | RecruiterError]:
        """Many jobs at once, each a tuple of arguments or a mapping of named ones.

        One that cannot be stored does not stop the rest: in its place in the list stands the error that says why.
        """
        answers: list[JobHandle[R] | RecruiterError] = []
        jobs = []
        for call in calls:
            try:
                job = self._job_of(call).build()
            except RecruiterError as error:
                answers.append(error)
                continue
            jobs.append((len(answers), job))
            answers.append(self._recruiter.handle(job.id, self._definition.signature.returns))
        errors = self._recruiter.send_many([job for _, job in jobs], session)
        for (place, _), refusal in zip(jobs, errors, strict=True):
            if refusal is not None:
                answers[place] = refusal
        return answers

    aenqueue_many = twin(enqueue_many)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobBuilder[R]:
        """A job with these arguments, to be told more: `.schedule_in("5 minutes").in_background().execute()`.

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

    def _job_of(self, call: tuple[Any, ...] | Mapping[str, Any]) -> JobBuilder[R]:
        if isinstance(call, Mapping):
            return self._builder(self._definition.bind((), call))
        if isinstance(call, tuple):
            return self._builder(self._definition.bind(call, {}))
        raise InvalidArguments(
            f"{self.name}: each call is a tuple of arguments or a mapping of named ones, not {call!r}"
        )

    def _builder(self, args: Mapping[str, Any]) -> JobBuilder[R]:
        definition = self._definition
        wishes = Wishes(self.name, args, definition.defaults, definition.signature.returns)
        return JobBuilder(self._recruiter, wishes)

    def __repr__(self) -> str:
        return f"Task({self.name!r})"
