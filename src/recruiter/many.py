"""Enqueues many jobs in one call: their shared options, and the result for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any, Generic, Literal, TypeVar, get_args

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from recruiter.builder import JobBuilder
from recruiter.domain.duration import DurationLike
from recruiter.domain.job import Job, JobId
from recruiter.domain.options import GivenJobOptions
from recruiter.domain.text import shown
from recruiter.errors import InvalidArguments, InvalidJob, JobsRefused, RecruiterError
from recruiter.instruments import SendStart
from recruiter.interruption import may_be_interrupted
from recruiter.producer import Producer
from recruiter.results import JobHandle
from recruiter.steps.enqueue import LARGEST_BATCH
from recruiter.store.batches import MAX_JOBS_PER_TRANSACTION, in_batches
from recruiter.store.codec import JobEncoder, encode, new_id
from recruiter.store.connection import answered_within
from recruiter.store.in_session import InSession, Produced, Session
from recruiter.store.payload import Owner

R = TypeVar("R")
T = TypeVar("T")

Call = tuple[Any, ...] | Mapping[str, Any]
CallOrJob = Call | JobBuilder[Any]
Errors = Literal["raise", "return"]
Write = Callable[[InSession, list[T]], list[Produced]]


class ManyOptions(GivenJobOptions, total=False):
    """The shared options: the options of one job, and when the jobs run. Tags are added to the tags of the task."""

    schedule_at: datetime
    schedule_in: DurationLike
    ids: Sequence[JobId]
    """Your own id for each job, in the same order."""
    session: Session | None
    server_timeout: DurationLike | None


def check_options(options: ManyOptions) -> None:
    unknown = sorted(set(options) - set(ManyOptions.__annotations__))
    if unknown:
        raise InvalidJob(f"there is no option {', '.join(unknown)}; known: {', '.join(ManyOptions.__annotations__)}")


class Many(Generic[R]):
    """Jobs of one task. A job that cannot be stored does not stop the others."""

    def __init__(
        self,
        sender: Producer,
        task: str,
        calls: Sequence[CallOrJob],
        arguments_of: Callable[[CallOrJob], Mapping[str, Any]],
        builder_of: Callable[[Mapping[str, Any]], JobBuilder[R]],
        options: ManyOptions,
        errors: Errors,
        returns: Any = Any,
    ) -> None:
        if errors not in get_args(Errors):
            raise InvalidJob(f"errors is {shown(errors)}; it must be 'raise' or 'return'")
        self._errors = errors
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

    def enqueue(self) -> list[Any]:
        """Enqueues the jobs; unique jobs, own ids and a session need transactions. Returns the answer to each call."""
        job = self._builder_of({})
        if (job.unique_if(self._options["unique"]) if "unique" in self._options else job).is_unique:
            return self._produce(lambda builder: builder.unique_job(builder.made()), InSession.enqueue_unique)
        if self._session is not None or self._ids is not None:
            return self._produce(JobBuilder.made, partial(InSession.enqueue, own_ids=self._ids is not None))
        with answered_within(self._timeout), self._producing():
            self._send_without_transaction()
        return self._answered()

    def create(self) -> list[Any]:
        return self._produce(JobBuilder.creation, InSession.create)

    def _produce(self, build: Callable[[JobBuilder[R]], T], write: Write[T]) -> list[Any]:
        with answered_within(self._timeout), self._producing():
            for batch in self._batches(build):
                self._store(batch, write)
        return self._answered()

    def _producing(self) -> AbstractContextManager[Any]:
        def start() -> SendStart:
            group = self._options.get("group") or self._builder_of({})._group
            return SendStart(self._task, len(self._calls), self._sender, group)

        return self._sender.instruments.producing(start)

    def _batches(self, build: Callable[[JobBuilder[R]], T]) -> list[list[tuple[int, T]]]:
        """The jobs that can be made, with their positions, for one transaction each; for the others the error is
        noted."""

        def one(place: int, call: CallOrJob) -> T:
            job = self._with_options(self._builder_of(self._arguments_of(call)))
            return build(job if self._ids is None else job.with_id(self._ids[place]))

        return list(in_batches(self._make_each(one), lambda item: _size_of(item[1]), MAX_JOBS_PER_TRANSACTION))

    def _send_without_transaction(self) -> None:
        """Stores large batches; the shared fields are encoded once. First, arguments are checked: an exception of the
        caller's code is raised before. Then each batch is encoded while MongoDB stores the previous one."""
        arguments_of, seal, task = self._arguments_of, self._sender.payload.seal_arguments, self._task
        try:
            encode = JobEncoder(self._with_options(self._builder_of({})).made()).encode
        except InvalidJob as error:  # an invalid option is an error of every job
            self._answers = [error] * len(self._calls)
            return

        def sealed(_: int, call: CallOrJob) -> tuple[ObjectId, Any]:
            id = new_id()
            return id, seal(task, arguments_of(call), Owner(id))

        arguments = self._make_each(sealed)
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

    def _with_options(self, job: JobBuilder[R]) -> JobBuilder[R]:
        if "schedule_at" in self._options:
            job = job.schedule_at(self._options["schedule_at"])
        if "schedule_in" in self._options:
            job = job.schedule_in(self._options["schedule_in"])
        given: Any = {name: self._options[name] for name in GivenJobOptions.__annotations__ if name in self._options}  # type: ignore[literal-required]
        return job._given(**given)

    def _make_each(self, make: Callable[[int, CallOrJob], T]) -> list[tuple[int, T]]:
        """Calls `make` for each call; returns its values with their positions. An InvalidJob answers its call."""
        made = []
        for place, call in enumerate(self._calls):
            try:
                made.append((place, make(place, call)))
            except InvalidJob as error:
                self._answers[place] = error
        return made

    def _store(self, batch: list[tuple[int, T]], write: Write[T]) -> None:
        """Stores a batch in one transaction, and notes the answers."""
        jobs = [job for _, job in batch]
        produced = self._sender.produce(lambda here: write(here, jobs), self._session)
        for (place, _), answer in zip(batch, produced, strict=True):
            if isinstance(answer, RecruiterError):
                self._answers[place] = answer
            else:
                self._answers[place] = self._sender.handle(answer[0], self._returns, created=answer[1])

    def _answered(self) -> list[Any]:
        refused = {place: error for place, error in enumerate(self._answers) if isinstance(error, RecruiterError)}
        if refused and self._errors == "raise":
            handles = [None if place in refused else handle for place, handle in enumerate(self._answers)]
            raise JobsRefused(refused, handles)
        return self._answers


def _one_ahead(make: Callable[[int], T], numbers: Sequence[int]) -> Iterator[T]:
    """Calls `make` for each number in a separate thread, one call ahead of the caller."""
    if len(numbers) < 2 or may_be_interrupted():
        yield from map(make, numbers)
        return
    with ThreadPoolExecutor(1, "encoding") as thread:
        try:
            coming = thread.submit(make, numbers[0])
        except RuntimeError:  # the interpreter is ending and can start no thread
            yield from map(make, numbers)
            return
        for number in numbers[1:]:
            made, coming = coming.result(), thread.submit(make, number)
            yield made
        yield coming.result()


def _size_of(item: object) -> int:
    """The size of its arguments in bytes; 0 if they cannot be encoded, which is an error later."""
    job = item if isinstance(item, Job) else getattr(item, "job", None)
    try:
        return len(encode({"args": job.args})) if isinstance(job, Job) else 0
    except Exception:
        return 0
