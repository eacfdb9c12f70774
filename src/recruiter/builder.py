"""Everything a job can have, said in one sentence and sent with its last word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from recruiter.domain.duration import DurationLike, to_timedelta
from recruiter.domain.job import Job, JobId
from recruiter.domain.names import DEFAULT_METHOD, check_name
from recruiter.domain.retry import RetryPolicy
from recruiter.errors import InvalidJob, InvalidName
from recruiter.registry import Defaults, WorkableTask
from recruiter.results import JobHandle
from recruiter.store.codec import is_job_id, new_id
from recruiter.workable import Workable

if TYPE_CHECKING:
    from pymongo.client_session import ClientSession

    from recruiter.app import Recruiter

R = TypeVar("R")
W = TypeVar("W", bound=Workable)


@dataclass(frozen=True)
class _Wishes:
    """What has been said of the job so far."""

    task: str
    args: Mapping[str, Any]
    defaults: Defaults
    returns: Any = Any
    id: JobId | None = None
    at: datetime | None = None
    background: bool = False
    group: str | None = None
    priority: int | float | None = None
    tags: tuple[str, ...] = ()
    urn: str | None = None
    username: str | None = None
    retry: RetryPolicy | None = None
    only: tuple[type[BaseException], ...] = ()
    at_most_once: bool | None = None


class JobBuilder(Generic[R]):
    """A job to be. Each method returns a new builder; `execute` makes the job.

    Without `in_background` (or a time) the job runs here and now, and only its retries go to the background.
    """

    def __init__(self, recruiter: Recruiter, wishes: _Wishes) -> None:
        self._recruiter = recruiter
        self._wishes = wishes

    def _with(self, **wishes: Any) -> Self:
        return type(self)(self._recruiter, replace(self._wishes, **wishes))

    def in_background(self) -> Self:
        """Let a worker run it, as soon as possible or at the time given."""
        return self._with(background=True)

    def schedule_at(self, moment: datetime) -> Self:
        """Not before this moment; implies the background."""
        if moment.tzinfo is None:
            raise InvalidJob(f"schedule_at needs a datetime with a time zone, not {moment!r}; add tzinfo=UTC or yours")
        return self._with(at=moment.astimezone(UTC), background=True)

    def schedule_in(self, delay: DurationLike) -> Self:
        """Not before this long from now; implies the background."""
        return self._with(at=self._recruiter.clock.now() + to_timedelta(delay), background=True)

    def in_group(self, group: str) -> Self:
        """Only workers of this group, or of all groups, will run it. At most one group a job."""
        return self._with(group=check_name("group", group))

    def tagged_as(self, *tags: str) -> Self:
        for tag in tags:
            if not isinstance(tag, str) or not tag:
                raise InvalidName(f"a tag must be a text, not {tag!r}")
        return self._with(tags=(*self._wishes.tags, *tags))

    def with_priority(self, priority: int | float) -> Self:
        """Higher goes first inside its group; ties by age."""
        if isinstance(priority, bool) or not isinstance(priority, int | float) or priority != priority:
            raise InvalidJob(f"a priority is a number, not {priority!r}")
        return self._with(priority=priority)

    def with_id(self, id: JobId) -> Self:
        """An id of your own; a second job with it is refused with JobExists."""
        if not is_job_id(id):
            raise InvalidJob(f"a job id is an ObjectId, text, integer or UUID, not {id!r}")
        return self._with(id=id)

    def with_urn(self, urn: str) -> Self:
        return self._with(urn=urn)

    def owned_by(self, username: str) -> Self:
        return self._with(username=username)

    def retry_with_policy(self, policy: RetryPolicy, only: Iterable[type[BaseException]] = ()) -> Self:
        """How to try again after a failure; `only` on these exceptions and their subclasses."""
        return self._with(retry=policy, only=tuple(only))

    def at_most_once(self) -> Self:
        """Never started twice, even if that means that it is lost when its worker dies."""
        return self._with(at_most_once=True)

    def execute(self, *, session: ClientSession | None = None) -> JobHandle[R]:
        """Makes the job. With a `session` it is part of the caller's own transaction."""
        return self._send(DEFAULT_METHOD, session)

    def build(self, method: str = DEFAULT_METHOD) -> Job:
        """The job as it would be stored."""
        wishes, defaults, now = self._wishes, self._wishes.defaults, self._recruiter.clock.now()
        policy, only = (wishes.retry, wishes.only) if wishes.retry is not None else (defaults.retry, defaults.only)
        return Job(
            id=wishes.id if wishes.id is not None else new_id(),
            task=wishes.task,
            args=wishes.args,
            created_at=now,
            scheduled_at=wishes.at or now,
            method=method,
            group=wishes.group or defaults.group,
            priority=wishes.priority if wishes.priority is not None else defaults.priority,
            tags=tuple(dict.fromkeys((*defaults.tags, *wishes.tags))),
            urn=wishes.urn,
            username=wishes.username,
            at_most_once=wishes.at_most_once if wishes.at_most_once is not None else defaults.at_most_once,
            retry_policy=self._recruiter.policies.dump(policy, only) if policy is not None else None,
        )

    def _send(self, method: str, session: ClientSession | None) -> JobHandle[R]:
        job = self.build(method)
        if self._wishes.id is not None and session is None:
            self._recruiter.check_unused(job.id)
        if self._wishes.background or session is not None:
            return self._recruiter.send(job, self._wishes.returns, session)
        return self._recruiter.run_here(job, self._wishes.returns)


class WorkableJob(JobBuilder[Any], Generic[W]):
    """A job of a workable; its last word is the name of any method: `.execute()`, `.ping()`, …"""

    def __getattr__(self, method: str) -> Callable[..., JobHandle[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        task = self._recruiter.registry.get(self._wishes.task)
        assert isinstance(task, WorkableTask)
        task.check_method(method)
        return lambda session=None: self._send(method, session)

    def execute(self, *, session: ClientSession | None = None) -> JobHandle[Any]:
        task = self._recruiter.registry.get(self._wishes.task)
        assert isinstance(task, WorkableTask)
        task.check_method(DEFAULT_METHOD)
        return self._send(DEFAULT_METHOD, session)
