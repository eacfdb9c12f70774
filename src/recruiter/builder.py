"""Everything a job can have, said in one sentence and sent with its last word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from recruiter.async_face import in_a_thread, in_its_own_thread
from recruiter.domain.defaults import Defaults, seconds_of, seconds_to_run
from recruiter.domain.duration import DurationLike, to_timedelta
from recruiter.domain.job import Job, JobId, expiry
from recruiter.domain.names import DEFAULT_METHOD, check_name, check_priority, check_tags, check_text, one_by_one
from recruiter.domain.planning.needs import AmountLike, Needs
from recruiter.domain.retry.decision import RetryPolicy, after, check_max_crashes
from recruiter.domain.schedule.occurrences import SchedulePolicy
from recruiter.domain.schedule.scheduler import Overlap
from recruiter.domain.text import shown
from recruiter.errors import InvalidArguments, InvalidJob, RecruiterError
from recruiter.repeatable import RepeatableJob
from recruiter.results import JobHandle
from recruiter.store.codec import new_id
from recruiter.store.collections.creations import content_id
from recruiter.store.connection import answered_within
from recruiter.store.in_session import Creation, InSession, Session, Steps, aperform, is_async, perform
from recruiter.views.find import check_id
from recruiter.workable import Workable

if TYPE_CHECKING:
    from recruiter.app import Recruiter

R = TypeVar("R")
W = TypeVar("W", bound=Workable)


@dataclass(frozen=True)
class JobOptions:
    """What has been said of the job so far."""

    task: str
    args: Mapping[str, Any] | Sequence[Any]
    defaults: Defaults
    returns: Any = Any
    id: JobId | None = None
    at: datetime | None = None
    delay: timedelta | None = None
    here: bool = False
    background: bool = False
    method: str = DEFAULT_METHOD
    group: str | None = None
    priority: int | float | None = None
    tags: tuple[str, ...] = ()
    urn: str | None = None
    owner: str | None = None
    retry: RetryPolicy | None = None
    only: tuple[type[BaseException], ...] = ()
    at_most_once: bool | None = None
    timeout: float | None = None
    expires_in: float | None = None
    expires_at: datetime | None = None
    keep_failed: float | None = None
    needs: Needs | None = None
    max_crashes: int | None = None
    key: str | None = None
    unique: bool = False
    """For repeatable jobs only."""


class JobBuilder(Generic[R]):
    """A job to be. Each method returns a new builder; `enqueue` or `create` makes the job.

    It runs in the background. Only after `here` it runs in this process, now, and `execute` makes it.
    """

    _optimistic = False
    """Whether `execute` runs it here unless told otherwise: so it is with workables."""

    def __init__(self, recruiter: Recruiter, options: JobOptions) -> None:
        self._recruiter = recruiter
        self._options = options

    def _with(self, **options: Any) -> Self:
        return type(self)(self._recruiter, replace(self._options, **options))

    def in_background(self) -> Self:
        """Let a worker run it, as soon as possible or at the time given."""
        return self._with(background=True, here=False)

    def here(self) -> Self:
        """Run it in this process, now, when `execute` is called; only its retries go to the background. It is stored
        when it has ended, so it is lost if this process dies meanwhile."""
        return self._with(here=True, background=False, at=None, delay=None)

    def schedule_at(self, moment: datetime) -> Self:
        """Not before this moment, a datetime with a time zone; implies the background. Raises InvalidJob."""
        if not isinstance(moment, datetime) or moment.utcoffset() is None:
            raise InvalidJob(
                f"schedule_at needs a datetime with a time zone, not {shown(moment)}; add tzinfo=UTC or yours"
            )
        return self._with(at=moment.astimezone(UTC), delay=None, background=True, here=False)

    def schedule_in(self, delay: DurationLike) -> Self:
        """Not before this long from now; implies the background. Raises InvalidDuration."""
        return self._with(at=None, delay=to_timedelta(delay), background=True, here=False)

    def in_group(self, group: str) -> Self:
        """Only workers of this group, or of all groups, will run it. At most one group a job. Raises InvalidName."""
        return self._with(group=check_name("group", group))

    def tagged_as(self, *tags: str | Iterable[str]) -> Self:
        """With these tags, beside those it has: `tagged_as("a", "b")`, or `tagged_as(["a", "b"])`. Raises
        InvalidName."""
        return self._with(tags=(*self._options.tags, *check_tags(one_by_one(tags))))

    def with_priority(self, priority: int | float) -> Self:
        """Higher goes first inside its group; ties by age. Raises InvalidJob."""
        return self._with(priority=check_priority(priority))

    def with_id(self, id: JobId) -> Self:
        """An id of your own; a second job with it is refused with JobExists, as long as the first is known. Raises
        InvalidJob for what is no ObjectId, text of up to 1,000 characters, integer or UUID."""
        return self._with(id=check_id(id))

    def with_urn(self, urn: str) -> Self:
        """Where it comes from, in words of your own."""
        return self._with(urn=check_text("urn", urn))

    def owned_by(self, owner: str) -> Self:
        """Whose job it is."""
        return self._with(owner=check_text("an owner", owner))

    def retry_with_policy(self, policy: RetryPolicy, only: Iterable[type[BaseException]] = ()) -> Self:
        """How to try again after a failure; `only` on these exceptions and their subclasses. Raises InvalidJob for a
        policy that cannot be stored."""
        if not isinstance(policy, RetryPolicy):
            raise InvalidJob(f"a retry policy is needed, as in RetryManyTimes(3, '1 minute'), not {shown(policy)}")
        classes = only if isinstance(only, str | type) else tuple(only)
        self._recruiter.policies.dump(policy, classes)  # what cannot be stored is refused here, where it is said
        return self._with(retry=policy, only=classes)

    def at_most_once(self) -> Self:
        """Never started twice, even if that means that it is lost when its worker dies."""
        return self._with(at_most_once=True)

    def timeout(self, duration: DurationLike) -> Self:
        """How long one attempt may take: then JobTimedOut is raised in it, and soon after its process is ended. Raises
        InvalidDuration."""
        return self._with(timeout=seconds_to_run(duration))

    def max_crashes(self, count: int) -> Self:
        """How often its process may die under it before it is set aside (3 unless it is given). Raises InvalidJob."""
        return self._with(max_crashes=check_max_crashes(count))

    def expires_in(self, duration: DurationLike) -> Self:
        """Not started any more when this long has passed since the time it is scheduled for; then it is archived as
        `expired`. An attempt that has begun goes on. Raises InvalidDuration."""
        return self._with(expires_in=seconds_of("expires_in", duration), expires_at=None)

    def expires_at(self, moment: datetime) -> Self:
        """The same, at this moment, a datetime with a time zone. Raises InvalidJob."""
        if not isinstance(moment, datetime) or moment.utcoffset() is None:
            raise InvalidJob(
                f"expires_at needs a datetime with a time zone, not {shown(moment)}; add tzinfo=UTC or yours"
            )
        return self._with(expires_at=moment.astimezone(UTC), expires_in=None)

    def keep_failed(self, duration: DurationLike) -> Self:
        """How long to keep it in the archive if it does not succeed, instead of as long as the cleaner says. Raises
        InvalidDuration."""
        return self._with(keep_failed=seconds_of("keep_failed", duration))

    def needing(self, **resources: AmountLike) -> Self:
        """What it takes while it runs: `.needing(proc=2, mem="4GiB", gpu=1)`. It waits for a host that has it free.
        Raises InvalidJob."""
        return self._with(needs=Needs.of(resources))

    def limited_by(self, key: str) -> Self:
        """Counts it by a key of your own, such as "customer:42", which a limit on `key:customer` is about."""
        return self._with(key=check_name("key", key))

    def enqueue(self, *, session: Session | None = None, server_timeout: DurationLike | None = None) -> JobHandle[R]:
        """Makes the job in the background. Returns when it is durable.

        With a `session` it is part of the caller's own transaction. `server_timeout` is how long to wait for MongoDB.
        Raises JobExists, JobTooLarge, InvalidSession, StoreUnreachable.
        """
        with answered_within(server_timeout):
            job, options = self._in_the_background().build(), self._options
            if session is not None:
                return self._handle(job, perform(self._recruiter.store, session, self._enqueued(job)))
            if options.id is not None:
                return self._recruiter.send_unused(job, options.returns)
            return self._recruiter.send(job, options.returns)

    async def aenqueue(
        self, *, session: Session | None = None, server_timeout: DurationLike | None = None
    ) -> JobHandle[R]:
        """Like `enqueue`, without blocking the event loop. The session may be of an AsyncMongoClient."""
        if session is None or not is_async(session):
            return await in_a_thread(self.enqueue, session=session, server_timeout=server_timeout)
        with answered_within(server_timeout):
            job = await in_a_thread(self._in_the_background().build)
            return self._handle(job, await aperform(self._recruiter.store, session, self._enqueued(job)))

    def execute(self, *, session: Session | None = None, server_timeout: DurationLike | None = None) -> JobHandle[R]:
        """The same as `enqueue`. After `here`, and for a workable unless `in_background` or a time was said: runs the
        job in this process and returns when it has ended, or waits for its next attempt."""
        if session is not None or not self._runs_here:
            return self.enqueue(session=session, server_timeout=server_timeout)
        options = self._options
        with answered_within(server_timeout):
            job = self.build()
        return self._recruiter.run_here(job, options.returns, check_id=options.id is not None)

    async def aexecute(
        self, *, session: Session | None = None, server_timeout: DurationLike | None = None
    ) -> JobHandle[R]:
        """Like `execute`, without blocking the event loop. The session may be of an AsyncMongoClient."""
        if session is not None or not self._runs_here:
            return await self.aenqueue(session=session, server_timeout=server_timeout)
        return await in_its_own_thread(self.execute, server_timeout=server_timeout)

    def create(self, *, session: Session | None = None, server_timeout: DurationLike | None = None) -> JobHandle[R]:
        """Makes the job in the background, once, ever: its id is made of what it is, its task and its arguments, unless
        `with_id` says otherwise. The handle's `created` says whether there was one already; then nothing is stored."""
        with answered_within(server_timeout):
            creation = self.creation()
            if session is None:
                return self._recruiter.send_once(creation, self._options.returns)
            return self._created(perform(self._recruiter.store, session, lambda here: here.create([creation])))

    async def acreate(
        self, *, session: Session | None = None, server_timeout: DurationLike | None = None
    ) -> JobHandle[R]:
        """Like `create`, without blocking the event loop. The session may be of an AsyncMongoClient."""
        if session is None or not is_async(session):
            return await in_a_thread(self.create, session=session, server_timeout=server_timeout)
        with answered_within(server_timeout):
            creation = await in_a_thread(self.creation)
            store = self._recruiter.store
            return self._created(await aperform(store, session, lambda here: here.create([creation])))

    @property
    def _runs_here(self) -> bool:
        options = self._options
        return options.here or (self._optimistic and not options.background)

    def _in_the_background(self) -> Self:
        if self._options.here:
            raise InvalidJob("a job that was told to run here() is made by execute(); enqueue() is for the background")
        return self.in_background()

    def _enqueued(self, job: Job) -> Callable[[InSession], Steps[list[RecruiterError | None]]]:
        return lambda here: here.enqueue([job], own_ids=self._options.id is not None)

    def _handle(self, job: Job, errors: list[RecruiterError | None]) -> JobHandle[R]:
        for error in errors:
            if error is not None:
                raise error
        return self._recruiter.handle(job.id, self._options.returns)

    def _created(self, answers: list[tuple[JobId, bool]]) -> JobHandle[R]:
        ((id, created),) = answers
        return self._recruiter.handle(id, self._options.returns, created=created)

    def creation(self) -> Creation:
        """The job as `create` would store it, and the ids it would have had under former names of its task."""
        options = self._options
        if options.id is not None:
            return Creation(self._in_the_background().build())
        definition = self._recruiter.registry.find(options.task)
        names = (options.task, *(definition.aliases if definition is not None else ()))
        id, *formerly = (content_id(name, options.args, options.method) for name in names)
        return Creation(self._in_the_background()._with(id=id).build(), tuple(formerly))

    def repeat_with_policy(self, policy: SchedulePolicy) -> RepeatableJob:
        """This job again and again: `.repeat_with_policy(Cron("0 6 * * *", tz="Europe/Rome")).create()`. Raises
        InvalidJob for one that expires at a moment: its occurrences do so some time after theirs (`expires_in`)."""
        options = self._options
        if options.expires_at is not None:
            raise InvalidJob(f"{options.task}: a job that repeats cannot expire at one moment; say expires_in instead")
        overlap = Overlap.UNIQUE if options.unique else Overlap.ALLOW
        return RepeatableJob(self._recruiter, self, policy, options.urn or options.task, overlap)

    def build(self) -> Job:
        """The job as it would be stored. Nothing is."""
        options, defaults, now = self._options, self._options.defaults, self._recruiter.clock.now()
        policy, only = (options.retry, options.only) if options.retry is not None else (defaults.retry, defaults.only)
        due = options.at or (now if options.delay is None else after(now, options.delay))
        seconds = options.expires_in if options.expires_in is not None else defaults.expires
        expires_in = None if options.expires_at is not None else seconds
        return Job(
            id=options.id if options.id is not None else new_id(),
            task=options.task,
            args=options.args,
            created_at=now,
            scheduled_at=due,
            method=options.method,
            group=options.group or defaults.group,
            priority=options.priority if options.priority is not None else defaults.priority,
            tags=tuple(dict.fromkeys((*defaults.tags, *options.tags))),
            urn=options.urn,
            owner=options.owner,
            at_most_once=options.at_most_once if options.at_most_once is not None else defaults.at_most_once,
            timeout=options.timeout if options.timeout is not None else defaults.timeout,
            expires_in=expires_in,
            expires_at=options.expires_at if expires_in is None else expiry(due, expires_in),
            keep_failed=options.keep_failed if options.keep_failed is not None else defaults.keep_failed,
            needs=options.needs if options.needs is not None else defaults.needs,
            max_crashes=options.max_crashes if options.max_crashes is not None else defaults.max_crashes,
            key=options.key,
            retry_policy=self._recruiter.policies.dump(policy, only) if policy is not None else None,
        )


class WorkableJob(JobBuilder[Any], Generic[W]):
    """A job of a workable; its last word is the name of any method: `.execute()`, `.ping()`, …

    Unless it was told `in_background` or a time, it runs here and now, and only its retries go to the background.
    `enqueue` always makes it in the background.
    """

    _optimistic = True

    def with_method(self, method: str) -> Self:
        """The method to run, for those who cannot write it as the last word: `.with_method("ping").aexecute()`. Raises
        InvalidArguments if there is none of this name."""
        self._recruiter.registry.get(self._options.task).check_method(method)
        return self._with(method=method)

    # -- for those who build on it -------------------------------------------------------------------------------

    def repeated_as(self, urn: str, unique: bool) -> Self:
        """For `as_repeatable_job_of`: what the scheduler will be called, and whether its occurrences may overlap."""
        return self.with_urn(urn)._with(unique=unique)

    def __getattr__(self, method: str) -> Callable[..., JobHandle[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        execute = self.with_method(method).execute

        def last_word(*args: Any, **kwargs: Any) -> JobHandle[Any]:
            if args or kwargs.keys() - {"session", "server_timeout"}:
                raise InvalidArguments(f"{method}() takes no arguments as a job: what it needs belongs to the workable")
            return execute(**kwargs)

        return last_word

    def build(self) -> Job:
        self._recruiter.registry.get(self._options.task).check_method(self._options.method)
        return super().build()
