"""Enqueues many jobs at once: the options that they share, and the result for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar, get_args

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from recruiter.async_face import in_a_thread
from recruiter.builder import JobBuilder
from recruiter.domain.duration import DurationLike
from recruiter.domain.job import Job, JobId
from recruiter.domain.text import shown
from recruiter.domain.uniqueness import Until
from recruiter.errors import InvalidArguments, InvalidJob, JobsRefused, RecruiterError
from recruiter.interruption import may_be_interrupted
from recruiter.producer import JobSender
from recruiter.results import JobHandle
from recruiter.steps.enqueue import LARGEST_BATCH
from recruiter.store.batches import in_batches
from recruiter.store.codec import JobEncoder, encode, new_id
from recruiter.store.connection import answered_within
from recruiter.store.in_session import (
    Creation,
    InSession,
    Session,
    Steps,
    UniqueJob,
    aperform,
    in_own_transaction,
    is_async,
    perform,
)
from recruiter.store.payload import Owner

R = TypeVar("R")
T = TypeVar("T")

Call = tuple[Any, ...] | Mapping[str, Any]
Errors = Literal["raise", "return"]
_AT_ONCE = 500
"""Jobs in one transaction of ours."""


class ManyOptions(TypedDict, total=False):
    """What all of them have in common, in the words of the builder."""

    group: str
    tags: Iterable[str]
    priority: int | float
    schedule_at: datetime
    schedule_in: DurationLike
    unique: bool | Until
    ids: Sequence[JobId]
    """An id of your own for each, in the same order."""
    session: Session | None
    server_timeout: DurationLike | None


def check_options(options: ManyOptions) -> None:
    """Raises InvalidJob for an option that there is not."""
    unknown = sorted(set(options) - set(ManyOptions.__annotations__))
    if unknown:
        raise InvalidJob(f"there is no option {', '.join(unknown)}; known: {', '.join(ManyOptions.__annotations__)}")


class Many(Generic[R]):
    """Jobs of a task to be made together. One that cannot be made does not stop the others."""

    def __init__(
        self,
        sender: JobSender,
        task: str,
        calls: Sequence[Call],
        arguments_of: Callable[[Call], Mapping[str, Any]],
        builder_of: Callable[[Mapping[str, Any]], JobBuilder[R]],
        options: ManyOptions,
        returns: Any = Any,
    ) -> None:
        self._sender = sender
        self._task = task
        self._calls = calls
        self._arguments_of = arguments_of
        self._builder_of = builder_of
        self._options = options
        self._returns = returns
        self._session = options.get("session")
        self._timeout = options.get("server_timeout")
        self._ids = options.get("ids")
        if self._ids is not None and (isinstance(self._ids, str) or not isinstance(self._ids, Sequence)):
            raise InvalidArguments(f"ids is a list with an id for each call, not {shown(self._ids)}")
        if self._ids is not None and len(self._ids) != len(calls):
            raise InvalidArguments(f"there are {len(calls)} calls and {len(self._ids)} ids; each needs one")
        self._answers: list[JobHandle[R] | RecruiterError | None] = [None] * len(calls)

    def enqueue(self, errors: Errors) -> list[Any]:
        with answered_within(self._timeout), self._producing():
            if self._is_unique:
                self._make_unique(self._built(errors, _wanted))
                return self._answered(errors)
            if self._session is not None:
                jobs = self._built(errors, _job)
                self._enqueued(jobs, perform(self._sender.store, self._session, self._steps(jobs)))
            elif self._ids is not None:
                for some in _batches(self._built(errors, _job)):
                    self._enqueued(some, in_own_transaction(self._sender.store, self._steps(some)))
                self._sender.after_send()
            else:
                self._send(errors)
        return self._answered(errors)

    async def aenqueue(self, errors: Errors) -> list[Any]:
        if self._session is None or not is_async(self._session):
            return await in_a_thread(self.enqueue, errors)
        with answered_within(self._timeout), self._producing():
            if self._is_unique:
                wanted = await in_a_thread(self._built, errors, _wanted)
                for some in _batches(wanted):
                    self._met(some, await aperform(self._sender.store, self._session, _unique(some)))
                return self._answered(errors)
            jobs = await in_a_thread(self._built, errors, _job)
            self._enqueued(jobs, await aperform(self._sender.store, self._session, self._steps(jobs)))
        return self._answered(errors)

    @property
    def _is_unique(self) -> bool:
        """Whether they may meet others, by an option of this call or of their task."""
        job = self._builder_of({})
        return (job.unique_if(self._options["unique"]) if "unique" in self._options else job).is_unique

    def _make_unique(self, wanted: list[tuple[int, UniqueJob]]) -> None:
        for some in _batches(wanted):
            self._met(some, self._sender.send_unique([job for _, job in some], self._session))

    def create(self, errors: Errors) -> list[Any]:
        with answered_within(self._timeout), self._producing():
            wanted = self._built(errors, _creation)
            if self._session is not None:
                self._created(wanted, perform(self._sender.store, self._session, _creations(wanted)))
            else:
                for some in _batches(wanted):
                    self._created(some, in_own_transaction(self._sender.store, _creations(some)))
                self._sender.after_send()
        return self._answered(errors)

    async def acreate(self, errors: Errors) -> list[Any]:
        if self._session is None or not is_async(self._session):
            return await in_a_thread(self.create, errors)
        with answered_within(self._timeout), self._producing():
            wanted = await in_a_thread(self._built, errors, _creation)
            self._created(wanted, await aperform(self._sender.store, self._session, _creations(wanted)))
        return self._answered(errors)

    def _producing(self) -> AbstractContextManager[Any]:
        return self._sender.instruments.producing(self._task, len(self._calls))

    def _built(self, errors: Errors, build: Callable[[JobBuilder[R]], T]) -> list[tuple[int, T]]:
        """What can be made, with its place; for the rest the error is noted."""

        def one(place: int, call: Call) -> T:
            job = self._told(self._builder_of(self._arguments_of(call)))
            return build(job if self._ids is None else job.with_id(self._ids[place]))

        return self._each(errors, one)

    def _send(self, errors: Errors) -> None:
        """All are made at one moment, so what they share is encoded once. First all arguments are checked, so that a
        mistake in the code of the caller is raised before anything is stored. Then each part is encoded while MongoDB
        stores the one before."""
        arguments_of, seal, task = self._arguments_of, self._sender.payload.seal_arguments, self._task
        try:
            encode = JobEncoder(_job(self._told(self._builder_of({})))).encode
        except InvalidJob as error:  # what is wrong with one is wrong with all
            self._answers = [error] * len(self._calls)
            return

        def sealed(_: int, call: Call) -> tuple[ObjectId, Any]:
            id = new_id()
            return id, seal(task, arguments_of(call), Owner(id))

        arguments = self._each(errors, sealed)
        sent: list[tuple[int, ObjectId]] = []

        def part(start: int) -> list[RawBSONDocument]:
            documents = []
            for place, (id, args) in arguments[start : start + LARGEST_BATCH]:
                try:
                    documents.append(encode(id, args))
                except InvalidJob as error:
                    self._answers[place] = error
                else:
                    sent.append((place, id))
            return documents

        refused = self._sender.send_many(_one_ahead(part, range(0, len(arguments), LARGEST_BATCH)))
        handle, returns = self._sender.handle, self._returns
        for number, (place, id) in enumerate(sent):
            self._answers[place] = refused[number] if number in refused else handle(id, returns)

    def _told(self, job: JobBuilder[R]) -> JobBuilder[R]:
        options = self._options
        if "group" in options:
            job = job.in_group(options["group"])
        if "tags" in options:
            job = job.tagged_as(options["tags"])
        if "priority" in options:
            job = job.with_priority(options["priority"])
        if "schedule_at" in options:
            job = job.schedule_at(options["schedule_at"])
        if "schedule_in" in options:
            job = job.schedule_in(options["schedule_in"])
        if "unique" in options:
            job = job.unique_if(options["unique"])
        return job

    def _each(self, errors: Errors, make: Callable[[int, Call], T]) -> list[tuple[int, T]]:
        if errors not in get_args(Errors):
            raise InvalidJob(f"errors is {shown(errors)}; it must be 'raise' or 'return'")
        made = []
        for place, call in enumerate(self._calls):
            try:
                made.append((place, make(place, call)))
            except InvalidJob as error:
                self._answers[place] = error
        return made

    def _steps(self, jobs: list[tuple[int, Job]]) -> Callable[[InSession], Steps[list[RecruiterError | None]]]:
        return lambda here: here.enqueue([job for _, job in jobs], own_ids=self._ids is not None)

    def _enqueued(self, jobs: list[tuple[int, Job]], errors: list[RecruiterError | None]) -> None:
        for (place, job), error in zip(jobs, errors, strict=True):
            self._answers[place] = self._sender.handle(job.id, self._returns) if error is None else error

    def _created(self, wanted: list[tuple[int, Creation]], answers: list[tuple[JobId, bool]]) -> None:
        for (place, _), (id, created) in zip(wanted, answers, strict=True):
            self._answers[place] = self._sender.handle(id, self._returns, created=created)

    def _met(self, jobs: list[tuple[int, UniqueJob]], answers: list[tuple[JobId, bool] | RecruiterError]) -> None:
        for (place, _), answer in zip(jobs, answers, strict=True):
            if isinstance(answer, RecruiterError):
                self._answers[place] = answer
            else:
                self._answers[place] = self._sender.handle(answer[0], self._returns, created=answer[1])

    def _answered(self, errors: Errors) -> list[Any]:
        refused = {place: each for place, each in enumerate(self._answers) if isinstance(each, RecruiterError)}
        if refused and errors == "raise":
            raise JobsRefused(refused, [None if place in refused else each for place, each in enumerate(self._answers)])
        return self._answers


def _one_ahead(make: Callable[[int], T], numbers: Sequence[int]) -> Iterator[T]:
    """What is made of each number, on a thread of its own: the next one while the caller is busy with this one."""
    if len(numbers) < 2 or may_be_interrupted():
        yield from map(make, numbers)
        return
    with ThreadPoolExecutor(1, "encoding") as thread:
        try:
            coming = thread.submit(make, numbers[0])
        except RuntimeError:  # the interpreter is ending, and starts no threads any more
            yield from map(make, numbers)
            return
        for number in numbers[1:]:
            made, coming = coming.result(), thread.submit(make, number)
            yield made
        yield coming.result()


def _job(builder: JobBuilder[Any]) -> Job:
    return builder.in_background().made()


def _creation(builder: JobBuilder[Any]) -> Creation:
    return builder.creation()


def _wanted(builder: JobBuilder[Any]) -> UniqueJob:
    return builder.unique_job(builder.in_background().made())


def _unique(
    jobs: list[tuple[int, UniqueJob]],
) -> Callable[[InSession], Steps[list[tuple[JobId, bool] | RecruiterError]]]:
    return lambda here: here.enqueue_unique([job for _, job in jobs])


def _creations(wanted: list[tuple[int, Creation]]) -> Callable[[InSession], Steps[list[tuple[JobId, bool]]]]:
    return lambda here: here.create([creation for _, creation in wanted])


def _batches(items: list[tuple[int, T]]) -> Iterable[list[tuple[int, T]]]:
    """For one transaction each."""
    return in_batches(items, lambda item: _size_of(item[1]), _AT_ONCE)


def _size_of(item: object) -> int:
    """Bytes of its arguments, which are all that is large; those that cannot be encoded are refused later."""
    job = item if isinstance(item, Job) else getattr(item, "job", None)
    try:
        return len(encode({"args": job.args})) if isinstance(job, Job) else 0
    except Exception:
        return 0
