"""Builds one job, option by option; the last call of the chain stores or runs it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, Unpack, cast, overload

from recruiter.async_face import async_face, in_a_thread, in_its_own_thread
from recruiter.domain.arguments.results import Unfilled, WithResults, contains_results, unfilled_in
from recruiter.domain.arguments.values import to_bson
from recruiter.domain.duration import DurationLike, to_timedelta
from recruiter.domain.job import Job, JobId, expiry
from recruiter.domain.names import DEFAULT_METHOD, check_name, check_remark, check_text
from recruiter.domain.options import DEFAULTS, GivenJobOptions, HasOptions, TaskOptions
from recruiter.domain.retry.decision import after
from recruiter.domain.schedule.scheduler import Overlap, SchedulePolicy
from recruiter.domain.text import shown
from recruiter.domain.uniqueness import UniqueKind, Uniqueness, Until
from recruiter.errors import InvalidArguments, InvalidJob, RecruiterError
from recruiter.instruments import SendStart
from recruiter.producer import Producer
from recruiter.registry import WorkableTask
from recruiter.repeatable import RepeatableJob
from recruiter.results import JobHandle
from recruiter.steps.signal import checked_signal, not_signalled
from recruiter.store.codec import new_id
from recruiter.store.collections.creations import content_id
from recruiter.store.connection import answered_within
from recruiter.store.fields import check_id
from recruiter.store.in_session import Creation, InSession, Produced, Session, UniqueJob
from recruiter.store.payload import Owner
from recruiter.workable import Workable, stored, tags_of

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
W = TypeVar("W", bound=Workable)
W_co = TypeVar("W_co", covariant=True)


@dataclass(frozen=True)
class JobDraft:
    """The state of a builder."""

    task: str
    args: Mapping[str, Any] | Sequence[Any]
    options: TaskOptions = DEFAULTS
    returns: Any = Any
    id: JobId | None = None
    at: datetime | None = None
    delay: timedelta | None = None
    here: bool = False
    background: bool = False
    method: str = DEFAULT_METHOD
    urn: str | None = None
    expires_at: datetime | None = None
    overlap: Overlap | None = None
    """Whether occurrences may overlap; set for a repeatable job that has no schedule yet."""
    step: bool = False
    """Whether it is a step of a flow."""
    template: bool = False
    """Whether it is the template of a scheduler: its arguments are sealed for all occurrences."""


class JobBuilder(HasOptions, Generic[R]):
    """Builds one job. Each method returns a new builder; `enqueue` or `create` stores the job.

    The job runs in the background. After `here` it runs in this process when `execute` is called.
    """

    _optimistic = False
    """Whether `execute` runs it here by default: so it is with workables."""

    def __init__(self, sender: Producer, draft: JobDraft) -> None:
        self._sender = sender
        self._draft = draft

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._draft.task!r})"

    @property
    def _task_options(self) -> TaskOptions:
        return self._draft.options

    def _with(self, **changes: Any) -> Self:
        return type(self)(self._sender, replace(self._draft, **changes))

    def _changed(self, **given: Unpack[GivenJobOptions]) -> Self:
        options = self._draft.options.changed(**given)
        if "retry" in given and options.retry is not None:
            self._sender.policies.dump(options.retry, options.only)  # refused here if it cannot be stored
        return self._with(options=options, expires_at=None if "expires" in given else self._draft.expires_at)

    def _given(self, **options: Unpack[GivenJobOptions]) -> Self:
        """Sets several options. Tags are added to the tags of the task."""
        if "tags" in options:
            return self.tagged_as(options.pop("tags"))._changed(**options)
        return self._changed(**options)

    def in_background(self) -> Self:
        """Let a worker run it, as soon as possible or at the time given."""
        return self._with(background=True, here=False)

    def here(self) -> Self:
        """Run it in this process, now, when `execute` is called; only its retries go to the background. It is stored
        when it has ended, so it is lost if this process dies meanwhile."""
        return self._with(here=True, background=False, at=None, delay=None)

    def schedule_at(self, moment: datetime) -> Self:
        """Runs it at this time or later, a datetime with a time zone; implies the background. Raises InvalidJob."""
        if not isinstance(moment, datetime) or moment.utcoffset() is None:
            raise InvalidJob(
                f"schedule_at needs a datetime with a time zone, not {shown(moment)}; add tzinfo=UTC or yours"
            )
        return self._with(at=moment.astimezone(UTC), delay=None, background=True, here=False)

    def schedule_in(self, delay: DurationLike) -> Self:
        """Runs it after this delay or later; implies the background. Raises InvalidDuration."""
        return self._with(at=None, delay=to_timedelta(delay), background=True, here=False)

    def with_id(self, id: JobId) -> Self:
        """Your own id: an ObjectId, a string of up to 1,000 characters, an integer or a UUID. A second job with this id
        raises JobExists as long as the first waits, runs or is in the archive. Raises InvalidJob."""
        return self._with(id=check_id(id))

    def with_urn(self, urn: str) -> Self:
        """Your own string for the origin of the job."""
        return self._with(urn=check_text("urn", urn))

    def expires_at(self, moment: datetime) -> Self:
        """Like `expires_in`, with a datetime that has a time zone. Raises InvalidJob."""
        if not isinstance(moment, datetime) or moment.utcoffset() is None:
            raise InvalidJob(
                f"expires_at needs a datetime with a time zone, not {shown(moment)}; add tzinfo=UTC or yours"
            )
        return self._changed(expires=None)._with(expires_at=moment.astimezone(UTC))

    def unique(self, key: str | None = None, until: Until = "ended") -> Self:
        """Makes no second job while there is one like it: then the handle's `created` is false, and its `id` is the id
        of the first job. Two jobs are alike if their task and arguments are the same, or with a `key` their task and
        key.

        `until="ended"`: until the first job has ended. `until="started"`: until the first job has begun, so that no
        later change is missed. A duration: for that long after the first job was made, ended or not, unless it was
        cancelled or expired before it began. Any number of producers may do this at the same time. Raises InvalidJob,
        InvalidName, InvalidDuration.
        """
        return self._changed(unique=cast(Until, Uniqueness.until(until, key)))

    def debounce(self, delay: DurationLike, key: str | None = None, at_most: DurationLike | None = None) -> Self:
        """Runs when this delay has passed without another call: each call delays the job again, and the arguments of
        the last call are used. It is never delayed by more than `at_most` after the first call. There is one such job
        for each task, or with a `key` for each key. The handle's `created` is false when the call changed a waiting
        job.

        Raises InvalidName, InvalidDuration.
        """
        return self._changed(unique=cast(Until, Uniqueness.debounce(delay, key, at_most)))

    def throttle(self, period: DurationLike, key: str | None = None) -> Self:
        """Starts at most one job in a period, which counts from the start of the last job. The first call starts a job
        immediately. All further calls in the period make one more job, which starts at its end with the arguments of
        the last call. There is one period for each task, or with a `key` for each key.

        Raises InvalidName, InvalidDuration.
        """
        return self._changed(unique=cast(Until, Uniqueness.throttle(period, key)))

    def enqueue(self, *, session: Session | None = None, server_timeout: DurationLike | None = None) -> JobHandle[R]:
        """Enqueues the job. Returns when it is durable.

        With a `session` it is part of the caller's own transaction. `server_timeout` is how long to wait for MongoDB.
        Raises JobExists, JobTooLarge, InvalidSession, StoreUnreachable.
        """
        with answered_within(server_timeout), self._producing():
            self._check_background()
            job = self.made()
            if session is None and self._is_plain:
                return self._sender.send(job, self._draft.returns)
            return self._handle(self._sender.produce(self._storing(job), session))

    async def aenqueue(
        self, *, session: Session | None = None, server_timeout: DurationLike | None = None
    ) -> JobHandle[R]:
        """Like `enqueue`, without blocking the event loop. The session may be of an AsyncMongoClient."""
        if session is None and self._is_plain and self._sender.sends_from_loops:
            with answered_within(server_timeout), self._producing():
                self._check_background()
                return await self._sender.asend(self.made(), self._draft.returns)
        return await in_a_thread(self.enqueue, session=session, server_timeout=server_timeout)

    def enqueue_with_signal(
        self,
        signal: str,
        data: Any = None,
        *,
        by: str | None = None,
        session: Session | None = None,
        server_timeout: DurationLike | None = None,
    ) -> JobHandle[R]:
        """Sends a signal to the unique job of this key, and enqueues the job first if there is none, in one
        transaction: `order.job(7).unique("order 7").enqueue_with_signal("paid", {"cents": 500})`. The handle's
        `created` says whether the job is new. Raises InvalidJob for a job that is not unique, and like `enqueue` and
        `signal`."""
        with answered_within(server_timeout), self._producing():
            return self._handle(self._sender.produce(self._storing_with_signal(signal, data, by), session))

    aenqueue_with_signal = async_face(enqueue_with_signal)

    def _storing_with_signal(self, signal: str, data: Any, by: str | None) -> Callable[[InSession], list[Produced]]:
        """Raises InvalidJob, InvalidName, UnsupportedValue, JobTooLarge."""
        self._check_background()
        check_remark(by, None)
        task, wanted = self._draft.task, self._draft.options.unique
        if wanted is None or wanted.replaces:
            raise InvalidJob(
                f"{task}: a signal that may enqueue its job needs a unique job, so that the next signal finds it: "
                f'{task}.job(…).unique("a key of yours").enqueue_with_signal({signal!r})'
            )
        (name, stored), unique = checked_signal(signal, data), self.unique_job(self.made())

        def write(here: InSession) -> list[Produced]:
            produced = here.enqueue_unique([unique])
            (answer,) = produced
            if isinstance(answer, RecruiterError):
                return produced
            if not self._sender.signalling(answer[0], name, stored, by)(here):
                raise not_signalled(self._sender.store, answer[0], name)
            return produced

        return write

    def execute(self, *, session: Session | None = None, server_timeout: DurationLike | None = None) -> JobHandle[R]:
        """The same as `enqueue`, except after `here`, and for a workable without `in_background` and without a time:
        then it runs the job in this process, and returns when the job has ended or waits for its next attempt."""
        if session is not None or not self._runs_here:
            return self.enqueue(session=session, server_timeout=server_timeout)
        draft = self._draft
        self._check_not_unique("a job that runs here")
        with answered_within(server_timeout):
            job = self.made()
        return self._sender.run_here(job, draft.returns, check_id=draft.id is not None)

    async def aexecute(
        self, *, session: Session | None = None, server_timeout: DurationLike | None = None
    ) -> JobHandle[R]:
        """Like `execute`, without blocking the event loop. The session may be of an AsyncMongoClient."""
        if session is not None or not self._runs_here:
            return await self.aenqueue(session=session, server_timeout=server_timeout)
        return await in_its_own_thread(self.execute, server_timeout=server_timeout)

    def create(self, *, session: Session | None = None, server_timeout: DurationLike | None = None) -> JobHandle[R]:
        """Enqueues the job once and never again: its id is computed from its task and its arguments, or given by
        `with_id`. If such a job was created before, nothing is stored and the handle's `created` is false."""
        with answered_within(server_timeout), self._producing():
            creation = self.creation()
            return self._handle(self._sender.produce(lambda here: here.create([creation]), session))

    acreate = async_face(create)

    @property
    def _runs_here(self) -> bool:
        draft = self._draft
        return draft.here or (self._optimistic and not draft.background)

    def _check_background(self) -> None:
        if self._draft.here:
            raise InvalidJob("here() goes with execute(); enqueue() always runs a job in the background")

    @property
    def _is_plain(self) -> bool:
        """Whether it needs no comparison with other jobs."""
        return self._draft.id is None and not self.is_unique

    def _storing(self, job: Job) -> Callable[[InSession], list[Produced]]:
        if self.is_unique:
            unique = self.unique_job(job)
            return lambda here: here.enqueue_unique([unique])
        return lambda here: here.enqueue([job], own_ids=self._draft.id is not None)

    def _handle(self, produced: list[Produced]) -> JobHandle[R]:
        (answer,) = produced
        if isinstance(answer, RecruiterError):
            raise answer
        id, created = answer
        return self._sender.handle(id, self._draft.returns, created=created)

    @property
    def is_unique(self) -> bool:
        """Whether the job is unique, debounced or throttled."""
        return self._draft.options.unique is not None

    def unique_if(self, unique: bool | Until) -> Self:
        """Sets or removes uniqueness, like the option `unique` of a task."""
        return self._changed(unique=unique)

    def _check_not_unique(self, what: str) -> None:
        """Raises InvalidJob for a unique, debounced or throttled job."""
        if self._draft.options.unique is not None:
            raise InvalidJob(
                f"{self._draft.task}: {what} is not compared with unique, debounced or throttled jobs. Use enqueue(), "
                "or .unique_if(False) to make it without the comparison"
            )

    def unique_job(self, job: Job) -> UniqueJob:
        """This job with its key. Raises InvalidJob for a job with its own id."""
        draft, wanted = self._draft, self._draft.options.unique
        assert wanted is not None
        if draft.id is not None:
            raise InvalidJob(f"{draft.task}: a job is unique by its key or by an id of your own, not by both")
        if wanted.replaces and draft.options.at_most_once:
            raise InvalidJob(f"{draft.task}: an at-most-once job cannot be debounced or throttled")
        if wanted.key is not None:
            own = f"{draft.task}/{wanted.key}"
        elif wanted.replaces:
            own = draft.task if draft.method == DEFAULT_METHOD else f"{draft.task}.{draft.method}"
        else:
            own = self._content_ids()[0]
        kind = wanted.kind if wanted.replaces else "unique"
        sealed = partial(self._sender.payload.seal_arguments, draft.task, draft.args)
        return UniqueJob(replace(job, debounced=wanted.needs_start), f"{kind}:{own}", wanted, sealed)

    def creation(self) -> Creation:
        """The job for `create`, and its ids under former names of its task."""
        draft = self._draft
        self._check_not_unique("create(), which makes a job once, ever,")
        self._check_background()
        if draft.id is not None:
            return Creation(self.made())
        if not isinstance(draft.args, Mapping):
            raise InvalidArguments(
                f"{draft.task}: the id of a job that is created once comes from its named arguments, and this process "
                "does not know the names of the parameters: give the arguments as a document, or give an id"
            )
        id, *formerly = self._content_ids()
        return Creation(self._with(id=id).made(), tuple(formerly))

    def _content_ids(self) -> list[str]:
        """Its id by its content, and the ids of the same content under former names of its task or in earlier
        releases."""
        draft = self._draft
        definition = self._sender.registry.find(draft.task)
        names, flat = [draft.task], draft.args
        if definition is not None:
            names += definition.aliases
            flat = definition.flat(draft.args) if isinstance(draft.args, Mapping) else draft.args
        ids = [content_id(name, flat, draft.method) for name in names]
        ids += [content_id(name, draft.args, draft.method, exact_numbers=True) for name in names]
        return list(dict.fromkeys(ids))

    def repeat_with_policy(self, policy: SchedulePolicy) -> RepeatableJob:
        """This job again and again: `.repeat_with_policy(Cron("0 6 * * *", tz="Europe/Rome")).create()`. After
        `unique()` an occurrence is skipped while an earlier one has not ended. Raises InvalidJob for options that are
        about one job: `schedule_at`, `schedule_in`, `with_id`, `here`, `expires_at`, `debounce`, `throttle`."""
        draft, unique = self._draft, self._draft.options.unique
        self._check_repeatable()
        overlap = Overlap.UNIQUE if unique is not None else draft.overlap or Overlap.ALLOW
        template = self.unique_if(False)._with(overlap=None)
        return RepeatableJob(self._sender, template, policy, draft.urn or draft.task, overlap)

    def _check_repeatable(self) -> None:
        """Raises InvalidJob for options that occurrences cannot have."""
        draft, unique = self._draft, self._draft.options.unique
        refused = {
            "expires_at, because each occurrence has its own time: use expires_in": draft.expires_at is not None,
            "schedule_at or schedule_in, because its policy decides when it runs": draft.at or draft.delay is not None,
            "with_id, because each occurrence has its own id: use with_urn": draft.id is not None,
            "here, because its occurrences run in the background": draft.here,
            "debounce or throttle, because its policy decides when it runs": unique is not None and unique.replaces,
            "a key or a time for unique, because it is unique among its own occurrences: use unique()": (
                unique is not None and (unique.key is not None or unique.kind is not UniqueKind.ENDED)
            ),
        }
        for reason, given in refused.items():
            if given:
                raise InvalidJob(f"{draft.task}: a job that repeats cannot have {reason}")

    def as_template(self, urn: str) -> Job:
        """The job of which a scheduler makes its occurrences."""
        return self.with_urn(urn)._with(template=True).build()

    def as_step(self) -> tuple[Job, list[Unfilled]]:
        """The job as a step of a flow, and the places for results of steps among its arguments. Raises InvalidJob for a
        unique, debounced or throttled job: a step runs once, in its place."""
        draft = self._draft
        if draft.options.unique is not None:
            raise InvalidJob(
                f"{draft.task}: a step of a flow cannot be unique, debounced or throttled: it runs once, in its place. "
                "Add the job with .unique_if(False), or enqueue it outside the flow"
            )
        places = list(unfilled_in(draft.args)) if type(draft.args) is WithResults else []
        return self._with(background=True, here=False, step=True).made(), places

    @property
    def delay(self) -> timedelta | None:
        """The delay given to `schedule_in`. For a step with dependencies it counts from the end of the last of them."""
        return self._draft.delay

    @property
    def _group(self) -> str:
        return self._draft.options.group

    def _producing(self) -> AbstractContextManager[Any]:
        draft, sender = self._draft, self._sender
        return sender.instruments.producing(lambda: SendStart(draft.task, 1, sender, self._group))

    def made(self) -> Job:
        """The job to store, in the current trace."""
        return self._sender.instruments.stamped(self.build())

    def build(self) -> Job:
        """The job to store."""
        draft, options, now = self._draft, self._draft.options, self._sender.clock.now()
        if draft.overlap is not None:
            raise InvalidJob(
                f"{draft.task}: a repeatable job needs a schedule: "
                'as_repeatable_job_of(…).repeat_with_policy(Cron("0 6 * * *")).create()'
            )
        id = draft.id if draft.id is not None else new_id()
        owner = Owner(id, draft.urn if draft.template else None)
        due = draft.at or (now if draft.delay is None else after(now, draft.delay))
        expires_in = None if draft.expires_at is not None else options.expires
        return Job(
            id=id,
            task=draft.task,
            args=self._sender.payload.seal_arguments(draft.task, draft.args, owner, step=draft.step),
            created_at=now,
            scheduled_at=due,
            method=draft.method,
            urn=draft.urn,
            expires_in=expires_in,
            expires_at=draft.expires_at if expires_in is None else expiry(due, expires_in),
            retry_policy=None if options.retry is None else self._sender.policies.dump(options.retry, options.only),
            **options.of_job(),
        )


class Executable(Protocol[R_co]):
    """A workable with a method `execute`, for type checkers: its job has a result of that type."""

    def execute(self) -> R_co: ...


class LastCall(Protocol):
    """The last call of a chain. It takes no arguments of the method: the data is in the workable."""

    def __call__(
        self, *, session: Session | None = None, server_timeout: DurationLike | None = None
    ) -> JobHandle[Any]: ...


class WorkableJob(JobBuilder[Any], Generic[W_co]):
    """A job of a workable. The last call of the chain is the method to run: `.execute()`, `.ping()`, …

    Unless it has `in_background` or a time, it runs here and now, and only its retries go to the background.
    `enqueue` always makes it in the background.
    """

    _optimistic = True

    def with_method(self, method: str) -> WorkableJob[Any]:
        """The method to run, if it is not the last call of the chain: `.with_method("ping").aexecute()`. Raises
        InvalidArguments if there is no such method."""
        self._sender.registry.get(self._draft.task).check_method(method)
        return self._with(method=method)

    # -- for extensions ------------------------------------------------------------------------------------------

    def repeated_as(self, urn: str, unique: bool) -> Self:
        """For `as_repeatable_job_of`: the urn of the scheduler, and whether its occurrences may overlap."""
        return self.with_urn(urn)._with(overlap=Overlap.UNIQUE if unique else Overlap.ALLOW)

    if TYPE_CHECKING:

        @overload
        def execute(
            self: WorkableJob[Executable[Coroutine[Any, Any, R]]],
            *,
            session: Session | None = None,
            server_timeout: DurationLike | None = None,
        ) -> JobHandle[R]: ...
        @overload
        def execute(
            self: WorkableJob[Executable[R]],
            *,
            session: Session | None = None,
            server_timeout: DurationLike | None = None,
        ) -> JobHandle[R]: ...
        def execute(self, **options: Any) -> JobHandle[Any]: ...

    def __getattr__(self, method: str) -> LastCall:
        if method.startswith("_"):
            raise AttributeError(method)
        execute = self.with_method(method).execute

        def last_word(*args: Any, **kwargs: Any) -> JobHandle[Any]:
            if args or kwargs.keys() - {"session", "server_timeout"}:
                raise InvalidArguments(f"{method}() takes no arguments as a job: give its data to the workable")
            return execute(**kwargs)

        return last_word

    def build(self) -> Job:
        self._sender.registry.get(self._draft.task).check_method(self._draft.method)
        return super().build()


def job_by_name(producer: Producer, task: str, data: Mapping[str, Any] | Sequence[Any]) -> JobBuilder[Any]:
    """A job of a task whose code this process may not have. Raises InvalidName, InvalidArguments, UnsupportedValue."""
    definition = producer.registry.find(check_name("task", task))
    if isinstance(data, str | bytes) or not isinstance(data, Mapping | Sequence):
        raise InvalidArguments(f"{task}: data is a mapping of named arguments or a list of them, not {shown(data)}")
    if definition is None:
        plain = dict(data) if isinstance(data, Mapping) else list(data)
        if contains_results(plain):
            raise InvalidArguments(
                f"{task}: only a task whose code is imported here takes results of steps; import its module first"
            )
        return JobBuilder(producer, JobDraft(task, to_bson(plain, "data")))
    return JobBuilder(producer, JobDraft(definition.name, definition.store(data), definition.options))


def job_of_workable(producer: Producer, workable: W) -> WorkableJob[W]:
    """A job of a workable, where no method of it is the last call of the chain."""
    cls, args = type(workable), stored(workable)
    tags = (*cls.task_options.tags, *tags_of(workable))
    return WorkableJob(producer, JobDraft(cls.task_name, args, cls.task_options.changed(tags=tags)))


class GuardedJob:
    """A `WorkableJob` of a class with methods whose names are also words of the builder. Such a word is refused, for it
    would not run the method. All others go to the builder, and after `with_method` every word is the builder's."""

    def __init__(self, job: WorkableJob[Any], clashes: frozenset[str]) -> None:
        self._job = job
        self._clashes = clashes

    def __getattr__(self, word: str) -> Any:
        if word in self._clashes:
            task = self._job._draft.task
            raise InvalidArguments(
                f"{task} has a method {word!r}, which is also a word of the builder: write "
                f".with_method({word!r}).execute() to run it, or .with_method('execute').{word}(…) for the builder's"
            )
        found = getattr(self._job, word)
        return found if word == "with_method" or not callable(found) else partial(self._go_on, found)

    def _go_on(self, found: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        answer = found(*args, **kwargs)
        return GuardedJob(answer, self._clashes) if isinstance(answer, WorkableJob) else answer


@lru_cache(maxsize=1000)
def words_that_are_methods(workable: type[Workable]) -> frozenset[str]:
    """The methods of the builder that are also methods of this workable."""
    task = WorkableTask(workable)
    words = {word for word in dir(WorkableJob) if not word.startswith("_")} - {DEFAULT_METHOD, "with_method"}
    found = set()
    for word in words:
        with suppress(InvalidArguments):
            task.check_method(word)
            found.add(word)
    return frozenset(found)
