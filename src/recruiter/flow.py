"""Flows: jobs that wait for others, made together and stored together.

flow = recruiter.flow("thumbnails", owner="ada")
image = flow.add(fetch, url)
parts = [flow.add(resize, image.result, width) for width in (64, 128, 256)]
flow.add(send_mail, "done", after=parts)
handle = flow.start()
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, ParamSpec, Self, TypeAlias, TypeVar, overload

from bson import ObjectId

from recruiter.async_face import async_face, in_a_thread
from recruiter.builder import JobBuilder, job_by_name, job_of_workable
from recruiter.domain.arguments.results import HasResult, StepResult
from recruiter.domain.duration import DurationLike, to_seconds
from recruiter.domain.flow import FlowStep, On, in_order
from recruiter.domain.job import Job, JobId
from recruiter.domain.names import check_remark, check_text, id_told
from recruiter.domain.text import shown
from recruiter.errors import InvalidArguments, InvalidFilter, InvalidFlow, ResultTimeout
from recruiter.instruments import SendStart
from recruiter.many import Call
from recruiter.producer import Producer
from recruiter.results import JobHandle
from recruiter.steps.control_flow import cancel_flow, pause_flow, resume_flow, retry_flow
from recruiter.store.codec import job_document, new_id
from recruiter.store.collections import flows
from recruiter.store.connection import answered_within
from recruiter.store.in_session import Session, aperform, is_async
from recruiter.task import Task
from recruiter.views.flows import FlowReport, StepReport, flow_id, flow_report, flow_reports, found, step_reports
from recruiter.workable import Workable

P = ParamSpec("P")
R = TypeVar("R")

TaskOrJob: TypeAlias = "Task[..., Any, R] | JobBuilder[R] | Workable | str"
"""The task of a step, which is given its arguments; a job with its own options; a workable; or a task by its name."""


_FIRST_LOOK, _LONGEST_BETWEEN_LOOKS = 0.02, 0.5


class Step(HasResult, Generic[R]):
    """A step of a flow. Others wait for it (`after=step`), or take its result as an argument (`step.result`)."""

    def __init__(self, flow: ObjectId, id: JobId, task: str, returns: Any = Any) -> None:
        self.flow = flow
        self.id = id
        """The id of its job; if the step is recovered, of its first job."""
        self.task = task
        """The name of its task."""
        self._returns = returns

    @property
    def result(self) -> R:
        """Its result, as an argument of another step of the same flow. It stands in for the value, which is there when
        that step runs."""
        result: Any = StepResult(self.id, self._returns)
        return result  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Step({self.task!r}, {id_told(self.id)})"


Steps: TypeAlias = "Step[Any] | Iterable[Step[Any]] | None"


@dataclass(frozen=True)
class _Draft:
    """A step that has not been stored."""

    job: Job
    delay: float | None
    after: tuple[JobId, ...]
    any: frozenset[JobId]
    takes: tuple[JobId, ...]
    added: ObjectId | None
    """The order in which a step with an id of the user was added."""

    def placed(self, flow: ObjectId, now: datetime, owner: str | None, *, blocked: bool, on: On | None = None) -> Job:
        """The job to store. The expiry of a blocked job counts from its release."""
        job, delay = self.job, self.delay if blocked else None
        at_once = job.scheduled_at <= job.created_at or delay is not None
        place = FlowStep(flow, job.id, self.after, self.any, self.takes, on, self.added, delay)
        return replace(
            job,
            flow=place,
            blocked=blocked,
            owner=job.owner or owner,
            created_at=now,
            scheduled_at=now if at_once else job.scheduled_at,
            expires_at=None if blocked and job.expires_in is not None else job.expires_at,
        )


class _Adding:
    """Adds steps: the base of new and started flows."""

    id: ObjectId
    _recruiter: Producer

    # Types cannot say "the task's own arguments, and `after`": with `after`, only `task.job(…)` is checked by editors.
    @overload
    def add(self, task: Task[P, Any, R], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def add(
        self, task: Task[..., Any, R], /, *args: Any, after: Steps, after_any: Steps = None, **kwargs: Any
    ) -> Step[R]: ...
    @overload
    def add(self, task: Task[..., Any, R], /, *args: Any, after_any: Steps, **kwargs: Any) -> Step[R]: ...
    @overload
    def add(self, task: JobBuilder[R], /, *, after: Steps = None, after_any: Steps = None) -> Step[R]: ...
    @overload
    def add(self, task: Workable, /, *, after: Steps = None, after_any: Steps = None) -> Step[Any]: ...
    @overload
    def add(
        self, task: str, /, *args: Any, after: Steps = None, after_any: Steps = None, **kwargs: Any
    ) -> Step[Any]: ...
    def add(self, task: Any, /, *args: Any, **kwargs: Any) -> Step[Any]:
        """Adds a step: a task with its arguments, checked like in `enqueue`, or a job with options
        (`task.job(…).with_priority(5)`), or a workable.

        It starts when all steps in `after`, and all whose `.result` is an argument, have succeeded; if one of them
        fails for good, it is archived as `dependency-failed`. For the steps in `after_any` an end of any kind will do,
        and the result of one that did not succeed is None. A task with a parameter `after` is added as
        `task.job(…)`. Raises InvalidFlow, InvalidArguments, UnsupportedValue; nothing is stored then.
        """
        after, after_any = kwargs.pop("after", None), kwargs.pop("after_any", None)
        (step,) = self._add([self._builder(task, args, kwargs)], after, after_any)
        return step

    @overload
    def add_many(
        self, task: Task[..., Any, R], calls: Iterable[Call], /, *, after: Steps = None, after_any: Steps = None
    ) -> list[Step[R]]: ...
    @overload
    def add_many(
        self, task: str, calls: Iterable[Call], /, *, after: Steps = None, after_any: Steps = None
    ) -> list[Step[Any]]: ...
    def add_many(
        self, task: Any, calls: Iterable[Call], /, *, after: Steps = None, after_any: Steps = None
    ) -> list[Step[Any]]:
        """Adds a step for each call, a tuple of arguments or a mapping of named ones."""
        builders = []
        for call in calls:
            if not isinstance(call, tuple | Mapping):
                raise InvalidArguments(
                    f"each call is a tuple of arguments or a mapping of named ones, not {shown(call)}"
                )
            builders.append(self._builder(task, *(((), call) if isinstance(call, Mapping) else (call, {}))))
        return self._add(builders, after, after_any)

    def _add(self, builders: Sequence[JobBuilder[R]], after: Steps, after_any: Steps) -> list[Step[R]]:
        raise NotImplementedError

    def _builder(self, task: TaskOrJob[R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobBuilder[R]:
        if isinstance(task, Task):
            return task.job(*args, **kwargs)
        if isinstance(task, str):
            return job_by_name(self._recruiter, task, dict(kwargs) if kwargs else list(args))
        given: Any = task
        if not isinstance(given, Workable | JobBuilder):
            hint = "; make it a task with @recruiter.task" if callable(given) else ""
            raise InvalidFlow(f"a step is a task, a job or a workable, not {shown(given)}{hint}")
        if args or kwargs:
            raise InvalidArguments(f"{shown(task)} has its arguments already")
        return task if isinstance(task, JobBuilder) else job_of_workable(self._recruiter, task)

    def _draft(self, builder: JobBuilder[R], after: Steps, after_any: Steps) -> tuple[_Draft, Step[R]]:
        (job, takes), delay = builder.as_step(), builder.delay
        before, ended = tuple(self._ids(after)), frozenset(self._ids(after_any))
        _check_apart(job.task, before, ended)
        waits = tuple(dict.fromkeys((*takes, *before, *ended)))
        seconds = None if delay is None else delay.total_seconds()
        definition = self._recruiter.registry.find(job.task)
        signature = getattr(definition, "signature", None)
        step: Step[R] = Step(self.id, job.id, job.task, Any if signature is None else signature.returns)
        added = None if isinstance(job.id, ObjectId) else new_id()
        return _Draft(job, seconds, waits, ended, takes, added), step

    def _ids(self, steps: Steps) -> Iterator[JobId]:
        if steps is None:
            return
        given: Any = steps
        several = isinstance(given, Iterable) and not isinstance(given, str | bytes)
        for step in given if several else (given,):
            if not isinstance(step, Step):
                raise InvalidFlow(f"a step waits for steps that `add` returned, not for {shown(step)}")
            if step.flow != self.id:
                raise InvalidFlow(f"{step!r} is a step of another flow")
            yield step.id


def _check_apart(task: str, after: Iterable[JobId], after_any: Collection[JobId]) -> None:
    """Raises InvalidFlow when a step must succeed and need not."""
    for id in after:
        if id in after_any:
            raise InvalidFlow(
                f"{task} waits for step {id_told(id)} in `after`, which must succeed, and in `after_any`, where any "
                "end will do; use one of them"
            )


class Flow(_Adding):
    """A new flow. `add` its steps, then `start` it: nothing is stored before that."""

    def __init__(self, recruiter: Producer, name: str, owner: str | None = None) -> None:
        self._recruiter = recruiter
        self.id = new_id()
        """The id of the flow."""
        self.name = check_text("the name of a flow", name)
        self.owner = None if owner is None else check_text("an owner", owner)
        self._drafts: dict[JobId, _Draft] = {}
        self._ends: list[tuple[On, _Draft]] = []
        self._started = False

    def _add(self, builders: Sequence[JobBuilder[R]], after: Steps, after_any: Steps) -> list[Step[R]]:
        self._check_not_started()
        steps = []
        for builder in builders:
            draft, step = self._draft(builder, after, after_any)
            self._check_new(step.id)
            self._drafts[step.id] = draft
            steps.append(step)
        return steps

    def let_wait(self, step: Step[Any], *, after: Steps = None, after_any: Steps = None) -> None:
        """Lets a step that was added wait for others too. Raises InvalidFlow."""
        self._check_not_started()
        (id,) = self._ids(step)
        draft, before, ended = self._drafts[id], tuple(self._ids(after)), frozenset(self._ids(after_any))
        _check_apart(draft.job.task, before, ended | draft.any)
        _check_apart(draft.job.task, set(draft.after).difference(draft.any, draft.takes), ended)
        waits = tuple(dict.fromkeys((*draft.after, *before, *ended)))
        self._drafts[id] = replace(draft, after=waits, any=draft.any | ended)

    @overload
    def on_success(self, task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> Self: ...
    @overload
    def on_success(self, task: JobBuilder[Any] | Workable, /) -> Self: ...
    @overload
    def on_success(self, task: str, /, *args: Any, **kwargs: Any) -> Self: ...
    def on_success(self, task: Any, /, *args: Any, **kwargs: Any) -> Self:
        """Runs this once, when all steps have succeeded."""
        return self._at_the_end(On.SUCCESS, task, args, kwargs)

    @overload
    def on_failure(self, task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> Self: ...
    @overload
    def on_failure(self, task: JobBuilder[Any] | Workable, /) -> Self: ...
    @overload
    def on_failure(self, task: str, /, *args: Any, **kwargs: Any) -> Self: ...
    def on_failure(self, task: Any, /, *args: Any, **kwargs: Any) -> Self:
        """Runs this once, when all steps have ended and not all have succeeded."""
        return self._at_the_end(On.FAILURE, task, args, kwargs)

    @overload
    def on_end(self, task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> Self: ...
    @overload
    def on_end(self, task: JobBuilder[Any] | Workable, /) -> Self: ...
    @overload
    def on_end(self, task: str, /, *args: Any, **kwargs: Any) -> Self: ...
    def on_end(self, task: Any, /, *args: Any, **kwargs: Any) -> Self:
        """Runs this once, when all steps have ended, well or not."""
        return self._at_the_end(On.END, task, args, kwargs)

    def _at_the_end(self, on: On, task: TaskOrJob[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Self:
        self._check_not_started()
        draft, _ = self._draft(self._builder(task, args, kwargs), None, None)
        if draft.takes:
            raise InvalidFlow(f"{draft.job.task}: a step that waits for the end of the flow cannot take results")
        self._check_new(draft.job.id)
        self._ends.append((on, draft))
        return self

    def _check_new(self, id: JobId) -> None:
        if id in self._drafts or any(draft.job.id == id for _, draft in self._ends):
            raise InvalidFlow(f"two steps of flow {self.name!r} have the id {id_told(id)}")

    def start(self, *, session: Session | None = None, server_timeout: DurationLike | None = None) -> FlowHandle:
        """Stores the flow and all its steps, or nothing. Returns when they are durable.

        With a `session` it is part of the caller's own transaction. Raises InvalidFlow for a cycle, JobExists,
        JobTooLarge, InvalidSession, StoreUnreachable.
        """
        with answered_within(server_timeout), self._producing():
            flow, jobs = self._built()
            own_ids = self._own_ids
            self._recruiter.produce(lambda here: here.start_flow(flow, jobs, own_ids=own_ids), session)
        return self._handle()

    async def astart(self, *, session: Session | None = None, server_timeout: DurationLike | None = None) -> FlowHandle:
        """Like `start`, without blocking the event loop. The session may be of an AsyncMongoClient."""
        if session is None or not is_async(session):
            return await in_a_thread(self.start, session=session, server_timeout=server_timeout)
        with answered_within(server_timeout), self._producing():
            flow, jobs = await in_a_thread(self._built)
            store, own_ids = self._recruiter.store, self._own_ids
            await aperform(store, session, lambda here: here.start_flow(flow, jobs, own_ids=own_ids))
        return self._handle()

    @property
    def _own_ids(self) -> bool:
        return any(not isinstance(id, ObjectId) for id in (*self._drafts, *(draft.job.id for _, draft in self._ends)))

    def _handle(self) -> FlowHandle:
        self._started = True
        return FlowHandle(self._recruiter, self.id)

    def _built(self) -> tuple[flows.StoredFlow, list[Job]]:
        self._check_not_started()
        if not self._drafts:
            raise InvalidFlow(f"flow {self.name!r} has no steps; add() them before start()")
        in_order({id: draft.after for id, draft in self._drafts.items()}, self._told)
        now = self._recruiter.clock.now()
        stamped = self._recruiter.instruments.stamped
        jobs = [
            stamped(draft.placed(self.id, now, self.owner, blocked=bool(draft.after)))
            for draft in self._drafts.values()
        ]
        ends = tuple(
            (on, job_document(stamped(draft.placed(self.id, now, self.owner, blocked=False, on=on))))
            for on, draft in self._ends
        )
        return flows.StoredFlow(self.id, self.name, now, self.owner, ends), jobs

    def _producing(self) -> AbstractContextManager[Any]:
        def start() -> SendStart:
            jobs = [draft.job for draft in (*self._drafts.values(), *(draft for _, draft in self._ends))]
            groups = {job.group for job in jobs}
            group = groups.pop() if len(groups) == 1 else None
            return SendStart(self.name, len(jobs), self._recruiter, group, is_flow=True)

        return self._recruiter.instruments.producing(start)

    def _told(self, id: JobId) -> str:
        return f"{self._drafts[id].job.task} ({id})"

    def _check_not_started(self) -> None:
        if self._started:
            raise InvalidFlow(f"flow {self.name!r} was started already; add steps to the handle that start() returned")

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {id_told(self.id)}, {len(self._drafts)} steps)"


class FlowHandle(_Adding):
    """A started flow: reports on it, controls it and adds steps."""

    def __init__(self, recruiter: Producer, id: ObjectId, current: Step[Any] | None = None) -> None:
        self._recruiter = recruiter
        self.id = id
        """The id of the flow."""
        self.current = current
        """The step that runs here; None outside of one."""

    # -- state and results -----------------------------------------------------------------------------------------

    def report(self) -> FlowReport:
        """The state of the flow, and how many of its steps are in which state. Raises FlowNotFound."""
        return flow_report(self._recruiter.store, self.id)

    areport = async_face(report)

    def steps(self) -> list[StepReport]:
        """All its steps, in the order in which they were added. Raises FlowNotFound."""
        found(self._recruiter.store, self.id)
        return step_reports(self._recruiter.store, self.id)

    asteps = async_face(steps)

    def wait(self, timeout: DurationLike | None = None) -> FlowReport:
        """Returns when all steps have ended, with or without success, including steps that were added, recovered or
        retried before this call. Raises ResultTimeout and FlowNotFound."""
        until = None if timeout is None else time.monotonic() + to_seconds(timeout)
        pause = _FIRST_LOOK
        while True:
            flow = found(self._recruiter.store, self.id)
            if flow.state.ended and (report := self.report()).state.ended:
                return report
            if until is not None and time.monotonic() >= until:
                raise ResultTimeout(
                    f"flow {flow.name!r} ({self.id}) has not ended in time; it continues, and you can wait again"
                )
            time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))
            pause = min(1.2 * pause, _LONGEST_BETWEEN_LOOKS)

    await_ = async_face(wait, runs_user_code=True)

    def job(self, step: Step[R]) -> JobHandle[R]:
        """The handle of the step's last job, to wait for its result: another one than the first if it was recovered."""
        (id,) = self._ids(step)
        last = next((report.job for report in step_reports(self._recruiter.store, self.id) if report.step == id), id)
        return self._recruiter.handle(last, step._returns)

    # -- control ---------------------------------------------------------------------------------------------------

    def cancel(self, *, by: str | None = None, reason: str | None = None) -> int:
        """Cancels every step that has not ended; returns how many. Raises FlowNotFound, and InvalidFlow when all have
        ended."""
        check_remark(by, reason)
        return cancel_flow(self._recruiter.store, self.id, self._recruiter.clock.now(), by, reason)

    acancel = async_face(cancel)

    def pause(self, *, by: str | None = None, reason: str | None = None) -> None:
        """Starts no further step. Running steps continue, and assigned steps may still start until the next heartbeat
        of their worker. Raises FlowNotFound."""
        check_remark(by, reason)
        pause_flow(self._recruiter.store, self.id, self._recruiter.clock.now(), by, reason)

    apause = async_face(pause)

    def resume(self) -> None:
        """Resumes a paused flow. Raises FlowNotFound."""
        resume_flow(self._recruiter.store, self.id)
        self._recruiter.after_send()

    aresume = async_face(resume)

    def retry(self, *, lost: bool = False) -> int:
        """Recovers every step that has failed or was cancelled, and the flow continues where it stopped; returns how
        many were recovered. A paused flow stays paused. A lost step must not run twice, and may have done its work: it
        is recovered only with `lost=True`, or by its id (`recruiter.recover`). Raises FlowNotFound, and
        InvalidFlow while a cancelled flow has steps that have not ended: `wait` for it first."""
        recovered = retry_flow(self._recruiter.store, self.id, self._recruiter.clock.now(), lost=lost)
        self._recruiter.after_send()
        return recovered

    aretry = async_face(retry)
    recover, arecover = retry, aretry

    aadd = async_face(_Adding.add)
    aadd_many = async_face(_Adding.add_many)

    def _add(self, builders: Sequence[JobBuilder[R]], after: Steps, after_any: Steps) -> list[Step[R]]:
        """Stores them immediately. Their dependencies may have ended: the leader decides when they start. A step with
        an id of the user that the flow already has is left unchanged: an earlier attempt may have added it."""
        store = self._recruiter.store
        flow = found(store, self.id)
        start = partial(SendStart, flow.name, len(builders), self._recruiter, None, is_flow=True)
        with self._recruiter.instruments.producing(start):
            drafts = [self._draft(builder, after, after_any) for builder in builders]
            self._check_known([draft for draft, _ in drafts])
            now = self._recruiter.clock.now()
            own = [step.id for _, step in drafts if not isinstance(step.id, ObjectId)]
            there = store.flow_steps.known(self.id, own) if own else set()
            jobs = [
                draft.placed(self.id, now, flow.owner, blocked=True) for draft, step in drafts if step.id not in there
            ]
            if jobs:
                self._recruiter.produce(lambda here: here.add_steps(self.id, jobs, own_ids=bool(own)))
        return [step for _, step in drafts]

    def _check_known(self, drafts: Sequence[_Draft]) -> None:
        wanted = list(dict.fromkeys(id for draft in drafts for id in draft.after))
        known = self._recruiter.store.flow_steps.known(self.id, wanted) if wanted else set()
        for id in wanted:
            if id not in known:
                raise InvalidFlow(f"{id_told(id)} is not a step of flow {self.id}")

    def __repr__(self) -> str:
        return f"FlowHandle({id_told(self.id)})"


def chain(recruiter: Producer, name: str, first: TaskOrJob[Any], *others: TaskOrJob[Any]) -> Flow:
    """One step after the other. A task takes the result of the step before it as its argument; a job that has its
    arguments already only waits for it."""
    flow = Flow(recruiter, name)
    step = flow.add(first)
    for other in others:
        step = flow.add(other, step.result) if isinstance(other, Task | str) else flow.add(other, after=step)
    return flow


def fan_out(
    recruiter: Producer,
    name: str,
    task: Task[..., Any, Any] | str,
    calls: Iterable[Call],
    then: TaskOrJob[Any] | None,
) -> Flow:
    """One step for each call, side by side; `then` takes the list of their results, or only waits for them if it has
    its arguments already."""
    flow = Flow(recruiter, name)
    parts = flow.add_many(task, calls)
    if isinstance(then, Task | str):
        flow.add(then, [part.result for part in parts])
    elif then is not None:
        flow.add(then, after=parts)
    return flow


class Flows:
    """`recruiter.flows`: flows that were started."""

    def __init__(self, recruiter: Producer) -> None:
        self._recruiter = recruiter

    def find(self, id: ObjectId | str) -> FlowHandle:
        """The flow with this id. Raises FlowNotFound."""
        meant = flow_id(id)
        found(self._recruiter.store, meant)
        return FlowHandle(self._recruiter, meant)

    afind = async_face(find)

    def of_step(self, place: FlowStep, task: str) -> FlowHandle:
        """The flow of a step that runs here; what `current_job.flow` calls."""
        return FlowHandle(self._recruiter, place.flow, Step(place.flow, place.step, task))

    def latest(self, *, limit: int = 50, owner: str | None = None, running: bool | None = None) -> list[FlowReport]:
        """The newest flows, up to `limit`, or all with 0; only the flows of an `owner`, or with `running` only flows
        that have not ended (True) or have ended (False). Raises InvalidFilter."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise InvalidFilter(f"limit is {shown(limit)}; give a number of flows, or 0 for all of them")
        return flow_reports(self._recruiter.store, limit, owner, running)

    alatest = async_face(latest)
