"""Flows: jobs that wait for other jobs, created and stored together.

flow = recruiter.flow("thumbnails", owner="ada")
image = flow.add(fetch, url)
parts = [flow.add(resize, image.result, width) for width in (64, 128, 256)]
flow.add(send_mail, "done", after=parts)
handle = flow.start()
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import combinations
from typing import (
    Any,
    Generic,
    NamedTuple,
    ParamSpec,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    overload,
)

from bson import ObjectId

from recruiter.async_face import async_face
from recruiter.builder import JobBuilder, job_by_name, job_of_workable
from recruiter.domain.arguments.results import HasResult, StepResult, SubFlowResults
from recruiter.domain.duration import DurationLike, brief, to_seconds
from recruiter.domain.flow import FlowStep, On, conditional_steps, in_order
from recruiter.domain.job import Job, JobId, check_checkpoint
from recruiter.domain.names import check_remark, check_text, id_told
from recruiter.domain.text import shown
from recruiter.errors import InvalidArguments, InvalidFilter, InvalidFlow, JobExists, ResultTimeout
from recruiter.instruments import SendStart
from recruiter.many import Call, CallOrJob
from recruiter.producer import Producer
from recruiter.results import JobHandle
from recruiter.steps.control_flow import cancel_flow, pause_flow, resume_flow, retry_flow
from recruiter.store.codec import Document, flow_of, job_document, new_id
from recruiter.store.collections import flows
from recruiter.store.connection import answered_within
from recruiter.store.in_session import Session
from recruiter.store.payload import Owner
from recruiter.task import Task
from recruiter.views.find import find
from recruiter.views.flows import (
    FlowReport,
    StepReport,
    SubFlowReport,
    flow_id,
    flow_report,
    flow_reports,
    found,
    step_reports,
    sub_flow_reports,
)
from recruiter.workable import Workable

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Ts = TypeVarTuple("Ts")

AsyncCall: TypeAlias = Callable[[Unpack[Ts]], Coroutine[Any, Any, R]]
TaskOrJob: TypeAlias = "Task[..., Any, R] | JobBuilder[R] | Workable | str"
"""A task, whose arguments `add` takes; a job with its own options; a workable; or the name of a task."""


_FIRST_LOOK, _LONGEST_BETWEEN_LOOKS = 0.02, 0.5
_TRIES_FOR_A_NAME = 3
_MAX_NAMES_TOLD = 10


class Step(HasResult, Generic[R_co]):
    """A step of a flow. Others wait for it (`after=step`), or take its result as an argument (`step.result`)."""

    def __init__(self, flow: ObjectId, id: JobId, task: str, returns: Any = Any, name: str | None = None) -> None:
        self.flow = flow
        self.id = id
        """The id of its job; if the step is recovered, of its first job."""
        self.task = task
        """The name of its task."""
        self.name = name
        """Its own name in the flow, if it was given one."""
        self._returns = returns

    @property
    def result(self) -> R_co:
        """A placeholder for its result, as an argument of another step of the same flow. When that step runs, it
        receives the value."""
        result: Any = StepResult(self.id, self._returns, self.flow, name=self.name or self.task)
        return result  # type: ignore[no-any-return]

    def _waits(self, *, any: bool = False) -> _Options:
        """How a step stands that waits for this one."""
        return _Options(any=(self.id,)) if any else _Options((self.id,))

    def __repr__(self) -> str:
        return f"Step({self.name or self.task!r}, {id_told(self.id)})"


class SubFlow(HasResult):
    """A flow that was added to another flow. Other steps wait for it, or take its result, as if it were one step: it
    succeeds when all its steps have succeeded, except those that run only after a failure."""

    def __init__(
        self,
        name: str,
        steps: Sequence[Step[Any]],
        at_end: Sequence[Step[Any]],
        conditional: Collection[Step[Any]],
        result: _FlowResult,
        options: _Options,
    ) -> None:
        self.name = name
        """Its name in the flow, after the names of the flows around it: `"outer/inner"`."""
        self.steps = tuple(steps)
        """Its steps, in the order in which they were added."""
        self._at_end = at_end
        """The steps that were its `on_…` jobs."""
        self._conditional = conditional
        """These run only after a failure, or need a step that does. The flow succeeds without them."""
        self._result = result
        self._options = options

    @property
    def result(self) -> Any:
        """The result of its last step; the list of their results if it has several last steps. A fan-out without `then`
        has a list, for any number of steps. A step that takes it waits for the whole sub-flow."""
        last, is_list = self._result
        results = [StepResult(step.id, step._returns, step.flow, self, step.name or step.task) for step in last]
        return SubFlowResults(results, self) if is_list else results[0]

    @property
    def _all(self) -> tuple[Step[Any], ...]:
        return (*self.steps, *self._at_end)

    def _waits(self, *, any: bool = False) -> _Options:
        """How a step stands that waits for it. A flow without steps lets it wait for the same steps as itself."""
        if not self._all:
            return _Options(any=self._options.waits) if any else self._options
        optional = tuple(step.id for step in self._all if any or step in self._conditional)
        return _Options(tuple(step.id for step in self._all if step.id not in optional), optional)

    def __repr__(self) -> str:
        return f"SubFlow({self.name!r}, {len(self.steps)} steps)"


class _FlowResult(NamedTuple):
    """The steps whose results are the result of a flow."""

    last: Sequence[Step[Any]]
    """The steps for which no other step waits: it is their result. An id would not do: a step that the flow around it
    has already keeps the id that it has there."""
    is_list: bool


Steps: TypeAlias = "Step[Any] | SubFlow | Iterable[Step[Any] | SubFlow] | None"


@dataclass(frozen=True)
class _Options:
    """The dependencies and the name of a step."""

    after: tuple[JobId, ...] = ()
    any: tuple[JobId, ...] = ()
    failed: tuple[JobId, ...] = ()
    name: str | None = None
    before_dependents: bool = False

    @property
    def waits(self) -> tuple[JobId, ...]:
        return (*self.after, *self.any, *self.failed)

    def with_the_rest_of(self, sub_flow: SubFlow) -> _Options:
        """Waits for the whole of a sub-flow whose result it takes, unless it waits for it in another way."""
        other, mine = sub_flow._waits(), set(self.waits)
        return replace(
            self,
            after=(*self.after, *(id for id in other.after if id not in mine)),
            any=(*self.any, *(id for id in other.any if id not in mine)),
            failed=(*self.failed, *(id for id in other.failed if id not in mine)),
        )


_TAKEN_WITH_A_JOB = "Only after=, after_any=, after_failure=, name= and before_dependents= are taken with it"
_MEANS = {
    "after": "which must succeed",
    "after_any": "where any end will do",
    "after_failure": "which must fail",
}


@dataclass(frozen=True)
class _Draft:
    """A step that has not been stored."""

    job: Job
    place: FlowStep
    step: Step[Any]
    """The object that the user holds. It has the name and the flow of the step."""
    needs: frozenset[JobId] = frozenset()
    """The steps whose results it takes where None does not fit."""

    def waiting(self, options: _Options, told: Callable[[JobId], str]) -> _Draft:
        """The step waits for these too. Raises InvalidFlow when it would wait for a step in two ways, or take a result
        that may be missing."""
        place, task = self.place, self.job.task
        required = set(place.after).difference(place.any, place.failed, place.takes).union(options.after)
        any, failed = place.any.union(options.any), place.failed.union(options.failed)
        named = {"after": required, "after_any": any, "after_failure": failed}
        for (one, first), (other, second) in combinations(named.items(), 2):
            for id in first & second:
                raise InvalidFlow(
                    f"{task} waits for step {told(id)} in `{one}`, {_MEANS[one]}, and in `{other}`, "
                    f"{_MEANS[other]}; use one of them"
                )
        for id in place.takes:
            if failed == {id}:
                raise InvalidFlow(
                    f"{task} takes the result of step {told(id)}, which must fail and then has none; pass it other data"
                )
            if id in self.needs and (id in any or id in failed):
                raise InvalidFlow(
                    f"{task} takes the result of step {told(id)}, which is None if that step fails, and the parameter "
                    "takes no None: annotate it `… | None`"
                )
        return replace(self, place=place.waiting_for(options.waits, options.any, options.failed))

    def placed(self, age: datetime, now: datetime, owner: str | None, *, blocked: bool, on: On | None = None) -> Job:
        """The job to store. A step without its own start time is due since the start of the flow (`age`). The expiry of
        a job that waits counts from its release."""
        waits = blocked or on is not None
        job, delay = self.job, self.place.delay if waits else None
        at_once = job.scheduled_at <= job.created_at or delay is not None
        return replace(
            job,
            flow=replace(self.place, flow=self.step.flow, name=self.step.name, on=on, delay=delay),
            blocked=blocked,
            owner=job.owner or owner,
            created_at=now,
            scheduled_at=age if at_once else job.scheduled_at,
            expires_at=None if waits and job.expires_in is not None else job.expires_at,
        )


class _Adding:
    """Adds steps: the base of new and started flows."""

    id: ObjectId
    _recruiter: Producer
    _part: tuple[str, ...] = ()
    """The sub-flow that steps are added to."""
    _adder: JobId | None = None
    """The running step that adds steps."""
    _sub_flows: list[SubFlow]

    # The last overload but one has positional arguments only: types cannot add `after` to named arguments of a task.
    @overload
    def add(self, task: Task[P, Any, R], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def add(self, task: JobBuilder[R], /, **options: Unpack[StepOptions]) -> Step[R]: ...
    @overload
    def add(self, task: Workable, /, **options: Unpack[StepOptions]) -> Step[Any]: ...
    @overload
    def add(self, task: Flow, /, **options: Unpack[StepOptions]) -> SubFlow: ...
    @overload
    def add(self, task: AsyncCall[*Ts, R], /, *args: *Ts, **options: Unpack[StepOptions]) -> Step[R]: ...
    @overload
    def add(self, task: Callable[[Unpack[Ts]], R], /, *args: *Ts, **options: Unpack[StepOptions]) -> Step[R]: ...
    @overload
    def add(self, task: str, /, *args: Any, **kwargs: Any) -> Step[Any]: ...
    def add(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]  # mypy and *Ts
        """Adds a step: a task with its arguments, checked like in `enqueue`, or a job with options
        (`task.job(…).with_priority(5)`), or a workable, or another flow that has not been started.

        It starts when all steps in `after`, and all whose `.result` is an argument, have succeeded; if one of them
        fails for good, it is archived as `dependency-failed`. For the steps in `after_any` an end of any kind will do,
        and the result of a step without success is None. With `after_failure` it starts only if one of these steps
        has failed, when all of them have ended; otherwise it is archived as `not-needed`.

        The `name` is unique in the flow: `handle["small"].result()`. In a started flow, an existing step of this name
        is left unchanged. With `before_dependents`, in a running step, the steps that wait for the running step wait
        for the new one too.

        A task with a parameter `after` or `name` is added as `task.job(…)` with options.
        Raises InvalidFlow, InvalidArguments, UnsupportedValue; nothing is stored then.
        """
        signature = self._signature(task)
        options = self._options(kwargs, () if signature is None else signature.names)
        if task is self:
            raise InvalidFlow(f"{task!r} cannot be a part of itself")
        if isinstance(task, Flow):
            if args or kwargs:
                raise InvalidArguments(f"{task!r} has its steps already and takes no arguments")
            return self._add_flow(task, options)
        (step,) = self._add([self._draft(self._builder(task, args, kwargs), options)], options)
        return step

    @overload
    def add_many(
        self, task: Task[..., Any, R], calls: Iterable[Call | JobBuilder[R]], /, **options: Unpack[StepOptions]
    ) -> list[Step[R]]: ...
    @overload
    def add_many(self, task: str, calls: Iterable[CallOrJob], /, **options: Unpack[StepOptions]) -> list[Step[Any]]: ...
    def add_many(self, task: Any, calls: Iterable[CallOrJob], /, **options: Unpack[StepOptions]) -> list[Step[Any]]:
        """Adds a step for each call: a tuple of arguments, a mapping of named ones, or a job of the task, whose
        arguments mypy and pyright check. With a `name`, the steps are named "page 1", "page 2" and so on."""
        others = dict[str, Any](options)
        given = self._options(others, ())
        if others:
            unknown = ", ".join(f"{name}=" for name in others)
            raise InvalidArguments(f"add_many() takes no {unknown}: the arguments of a task are in its calls")
        drafts = []
        for number, call in enumerate(calls, 1):
            if not isinstance(call, tuple | Mapping | JobBuilder):
                raise InvalidArguments(
                    f"each call is a tuple of arguments, a mapping of named ones or a job, not {shown(call)}"
                )
            if isinstance(call, JobBuilder):
                builder = call
            else:
                builder = self._builder(task, *(((), call) if isinstance(call, Mapping) else (call, {})))
            name = None if given.name is None else f"{given.name} {number}"
            drafts.append(self._draft(builder, replace(given, name=name)))
            if builder is call and drafts[-1].job.task != getattr(task, "name", task):
                raise InvalidArguments(f"{call!r} is no job of {task!r}")
        return self._add(drafts, given)

    def _add(self, drafts: Sequence[_Draft], options: _Options) -> list[Step[Any]]:
        raise NotImplementedError

    def _add_flow(self, other: Flow, options: _Options) -> SubFlow:
        """Adds all steps of another flow. Its first steps wait according to the options. Every step has a name, so
        that a running step that is tried again does not add them twice."""
        name, drafts = options.name or other.name, other._taken_over()
        result, conditional = other._result(), conditional_steps(draft.place for draft in drafts)
        part = (*self._part, name)
        prefix, names = "/".join(part), [draft.step.name for draft in drafts]
        if isinstance(self, Flow) and any(sub.name == prefix for sub in self._sub_flows):
            raise InvalidFlow(f"two sub-flows have the name {prefix!r}; give one another name: add(flow, name=…)")
        ids = {draft.job.id for draft in drafts}
        try:
            for number, draft in enumerate(drafts):
                place = draft.place.inside(part, result=draft.step in result.last, is_list=result.is_list)
                draft.step.flow, draft.step.name = self.id, f"{prefix}/{draft.step.name or number + 1}"
                drafts[number] = replace(draft, place=replace(place, adder=self._adder))
                if ids.isdisjoint(place.after):  # one of its first steps
                    drafts[number] = drafts[number].waiting(options, self._told)
            self._add(drafts, options)
        except BaseException:
            for draft, old_name in zip(drafts, names, strict=True):
                draft.step.flow, draft.step.name = other.id, old_name
            raise
        other._used = f"is a part of another flow; add steps to it before other_flow.add({other.name!r})"
        at_end = [draft.step for draft in drafts[len(other.steps) :]]
        optional = frozenset(draft.step for draft in drafts if draft.job.id in conditional)
        added = SubFlow(prefix, other.steps, at_end, optional, result, options)
        for sub in other._sub_flows:
            sub.name = f"{prefix}/{sub.name}"
        self._sub_flows += [added, *other._sub_flows]
        return added

    def _signature(self, task: Any) -> Any:
        """Of a task, or of the task with this name; None if it is unknown here."""
        name = task.name if isinstance(task, Task) else task
        return getattr(self._recruiter.registry.find(name) if isinstance(name, str) else None, "signature", None)

    def _options(self, kwargs: dict[str, Any], parameters: Collection[str]) -> _Options:
        """Takes the options of a step out of the arguments. A parameter `name` of the task comes first."""
        name = None if "name" in parameters else kwargs.pop("name", None)
        succeeding = [step._waits() for step in self._each(kwargs.pop("after", None))]
        ending = [step._waits(any=True) for step in self._each(kwargs.pop("after_any", None))]
        after_failure = kwargs.pop("after_failure", None)
        failing = list(self._each(after_failure))
        if after_failure is not None and not failing:
            raise InvalidFlow("after_failure names no step, so nothing can fail; leave it out, or do not add the step")
        for sub in failing:
            if isinstance(sub, SubFlow) and not sub._all:
                raise InvalidFlow(f"{sub!r} has no steps and cannot fail; no step can wait for its failure")
        every = (*succeeding, *ending)
        return _Options(
            tuple(dict.fromkeys(id for waits in every for id in waits.after)),
            tuple(id for waits in every for id in waits.any),
            (*self._ids(failing), *(id for waits in every for id in waits.failed)),
            None if name is None else check_checkpoint("the name of a step", name),
            bool(kwargs.pop("before_dependents", False)),
        )

    def _builder(
        self, task: TaskOrJob[R], args: tuple[Any, ...], kwargs: Mapping[str, Any], takes: str = _TAKEN_WITH_A_JOB
    ) -> JobBuilder[R]:
        if isinstance(task, Task):
            return task.job(*args, **kwargs)
        if isinstance(task, str):
            return job_by_name(self._recruiter, task, dict(kwargs) if kwargs else list(args))
        given: Any = task
        if not isinstance(given, Workable | JobBuilder):
            hint = "; make it a task with @recruiter.task" if callable(given) else ""
            if isinstance(given, type) and issubclass(given, Workable):
                hint = f"; give it its data: {given.__name__}(…)"
            if isinstance(given, Flow):
                raise InvalidFlow(f"{given!r} cannot be a job for the end of a flow; add() it as a part of the flow")
            raise InvalidFlow(f"a step is a task, a job, a workable or another flow, not {shown(given)}{hint}")
        if args or kwargs:
            more = ", ".join([*map(shown, args), *(f"{name}=" for name in kwargs)])
            raise InvalidArguments(
                f"{type(given).__name__} has its arguments already, and {more} was given next to it. {takes}"
            )
        return task if isinstance(task, JobBuilder) else job_of_workable(self._recruiter, task)

    def _draft(self, builder: JobBuilder[Any], options: _Options) -> _Draft:
        (job, results), delay = builder.as_step(), builder.delay
        for result in results:
            if isinstance(result.sub_flow, SubFlow):
                options = options.with_the_rest_of(result.sub_flow)
        taken = [(result.step, result.may_be_none) for result in results if result.step is not None]
        takes = tuple(dict.fromkeys(step for step, _ in taken))
        place = FlowStep(
            self.id,
            job.id,
            after=takes,
            takes=takes,
            added=None if isinstance(job.id, ObjectId) else new_id(),
            delay=None if delay is None else delay.total_seconds(),
            part=self._part,
            adder=self._adder,
        )
        name = None if options.name is None else "/".join((*self._part, options.name))
        added: Step[Any] = Step(self.id, job.id, job.task, self._returns(job.task), name)
        needs = frozenset(step for step, may_be_none in taken if not may_be_none)
        return _Draft(job, place, added, needs).waiting(options, self._told)

    def _told(self, id: JobId) -> str:
        """The step with this id, in a message."""
        return id_told(id)

    def _returns(self, task: str) -> Any:
        """The annotation of the task's result; Any if it is unknown."""
        signature = self._signature(task)
        return Any if signature is None else signature.returns

    def _each(self, steps: Steps) -> Iterator[Step[Any] | SubFlow]:
        """Raises InvalidFlow for a step of another flow."""
        given: Any = () if steps is None else steps
        several = isinstance(given, Iterable) and not isinstance(given, str | bytes)
        for step in given if several else (given,):
            if not isinstance(step, Step | SubFlow):
                raise InvalidFlow(f"a step is given as `add` returned it, not as {shown(step)}")
            for one in step._all if isinstance(step, SubFlow) else (step,):
                if one.flow != self.id:
                    raise InvalidFlow(f"{step!r} is a step of another flow")
            yield step

    def _ids(self, steps: Steps) -> list[JobId]:
        each = self._each(steps)
        return [one.id for step in each for one in (step._all if isinstance(step, SubFlow) else (step,))]


class StepOptions(TypedDict, total=False):
    """The dependencies and the name of a step: see `add`."""

    after: Steps
    after_any: Steps
    after_failure: Steps
    name: str | None
    before_dependents: bool


class Flow(_Adding):
    """A new flow. `add` its steps, then `start` it: nothing is stored before that."""

    def __init__(self, recruiter: Producer, name: str, owner: str | None = None) -> None:
        self._recruiter = recruiter
        self.id = new_id()
        """The id of the flow."""
        self.name = check_text("the name of a flow", name)
        self.owner = None if owner is None else check_text("an owner", owner)
        self.steps: list[Step[Any]] = []
        """Its steps, in the order in which they were added."""
        self._drafts: dict[JobId, _Draft] = {}
        self._names: set[str | None] = set()
        self._at_end: list[tuple[On, _Draft]] = []
        self._sub_flows = []
        self._is_fan_out = False
        """Whether its result is a list, whatever the number of its steps."""
        self._used: str | None = None
        """The reason why it is closed; None as long as it takes steps."""

    def _add(self, drafts: Sequence[_Draft], options: _Options) -> list[Step[Any]]:
        self._check_not_started()
        if options.before_dependents:
            raise InvalidFlow("before_dependents is for a running step, which adds steps with current_job.flow.add(…)")
        steps = [draft.step for draft in drafts]
        self._check_new(drafts)
        self._drafts.update((draft.job.id, draft) for draft in drafts)
        self._names.update(step.name for step in steps)
        self.steps += steps
        return steps

    def let_wait(
        self, step: Step[Any], *, after: Steps = None, after_any: Steps = None, after_failure: Steps = None
    ) -> None:
        """Adds dependencies to a step of this flow. Raises InvalidFlow."""
        self._check_not_started()
        more = self._options({"after": after, "after_any": after_any, "after_failure": after_failure}, ())
        for id in self._ids(step):
            self._drafts[id] = self._drafts[id].waiting(more, self._told)

    def _result(self) -> _FlowResult:
        conditional = conditional_steps(draft.place for draft in self._drafts.values())
        certain = [draft for id, draft in self._drafts.items() if id not in conditional]
        waited_for = {id for draft in certain for id in draft.place.after}
        last = [draft.step for draft in certain if draft.job.id not in waited_for]
        return _FlowResult(last, self._is_fan_out or len(last) != 1)

    def _taken_over(self) -> list[_Draft]:
        """The drafts of its steps, for another flow. Its `on_…` jobs become steps that wait for all other steps."""
        self._check_not_started()
        if not self._drafts and not self._is_fan_out:
            raise InvalidFlow(f"flow {self.name!r} has no steps; add() them before you add the flow to another one")
        drafts, all = [*self._drafts.values()], frozenset(self._drafts)
        conditional = conditional_steps(draft.place for draft in drafts)
        any = {On.SUCCESS: conditional, On.FAILURE: frozenset[JobId](), On.END: all}
        numbers = Counter[On]()
        for on, draft in self._at_end:
            numbers[on] += 1
            draft.step.name = f"on {on.value}" if numbers[on] == 1 else f"on {on.value} {numbers[on]}"
            place = draft.place.waiting_for(self._drafts, any[on], all if on is On.FAILURE else ())
            drafts.append(replace(draft, place=place))
        return [
            replace(
                draft,
                job=replace(draft.job, owner=draft.job.owner or self.owner),
                place=replace(draft.place, added=new_id()),
            )
            for draft in drafts
        ]

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
        """Runs this once, when all steps have ended, with or without success."""
        return self._at_the_end(On.END, task, args, kwargs)

    def _at_the_end(self, on: On, task: TaskOrJob[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Self:
        self._check_not_started()
        draft = self._draft(self._builder(task, args, kwargs, "A job for the end takes no options"), _Options())
        if draft.place.takes:
            raise InvalidFlow(f"{draft.job.task}: a step that waits for the end of the flow cannot take results")
        self._check_new([draft])
        self._at_end.append((on, draft))
        return self

    def _check_new(self, drafts: Sequence[_Draft]) -> None:
        """Raises InvalidFlow for an id or a name that is there already, or twice among these steps."""
        ids, names = {end.job.id for _, end in self._at_end}, set[str | None]()
        for draft in drafts:
            id, name = draft.job.id, draft.step.name
            if id in self._drafts or id in ids:
                raise InvalidFlow(f"two steps of flow {self.name!r} have the id {id_told(id)}")
            if name is not None and (name in self._names or name in names):
                raise InvalidFlow(f"two steps of flow {self.name!r} have the name {name!r}")
            ids.add(id)
            names.add(name)

    def start(self, *, session: Session | None = None, server_timeout: DurationLike | None = None) -> FlowHandle:
        """Stores the flow and all its steps, or nothing. Returns when they are durable.

        With a `session` it is part of the caller's own transaction. Raises InvalidFlow for a cycle, JobExists,
        JobTooLarge, InvalidSession, StoreUnreachable.
        """
        jobs = [draft.job for draft in (*self._drafts.values(), *(draft for _, draft in self._at_end))]
        groups = {job.group for job in jobs}
        group = groups.pop() if len(groups) == 1 else None
        sending = SendStart(self.name, len(jobs), self._recruiter, group, is_flow=True)
        with answered_within(server_timeout), self._recruiter.instruments.producing(lambda: sending):
            flow, steps = self._built()
            own_ids = any(not isinstance(job.id, ObjectId) for job in jobs)
            self._recruiter.produce(lambda here: here.start_flow(flow, steps, own_ids=own_ids), session)
        if session is None:  # the transaction of a caller may be rolled back, and begun again
            self._used = "was started already; add steps to the handle that start() returned"
        return FlowHandle(self._recruiter, self.id)

    astart = async_face(start)

    def _built(self) -> tuple[flows.StoredFlow, list[Job]]:
        self._check_not_started()
        if not self._drafts:
            raise InvalidFlow(f"flow {self.name!r} has no steps; add() them before start()")
        for id, draft in self._drafts.items():
            for other in draft.place.after:
                if other not in self._drafts:
                    raise InvalidFlow(
                        f"{self._told(id)} takes the result of step {self._told(other)}, which is not a step of flow "
                        f"{self.name!r}. Add this flow to the flow of that step: other_flow.add(flow)"
                    )
        in_order({id: draft.place.after for id, draft in self._drafts.items()}, self._told)
        now = self._recruiter.clock.now()
        stamped = self._recruiter.instruments.stamped
        place = partial(_Draft.placed, age=now, now=now, owner=self.owner)
        jobs = [stamped(place(draft, blocked=bool(draft.place.after))) for draft in self._drafts.values()]
        ends = tuple((on, job_document(stamped(place(draft, blocked=False, on=on)))) for on, draft in self._at_end)
        return flows.StoredFlow(self.id, self.name, now, self.owner, ends), jobs

    def _told(self, id: JobId) -> str:
        draft = self._drafts.get(id)
        return super()._told(id) if draft is None else f"{draft.step.name or draft.job.task} ({id})"

    def _check_not_started(self) -> None:
        if self._used is not None:
            raise InvalidFlow(f"flow {self.name!r} {self._used}")

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {id_told(self.id)}, {len(self._drafts)} steps)"


class FlowHandle(_Adding):
    """A started flow: reports on it, controls it and adds steps."""

    def __init__(
        self,
        recruiter: Producer,
        id: ObjectId,
        current: Step[Any] | None = None,
        part: tuple[str, ...] = (),
        hold: Callable[[], Document | None] = lambda: None,
    ) -> None:
        self._recruiter, self._part, self._sub_flows, self._hold = recruiter, part, [], hold
        self.id = id
        """The id of the flow."""
        self.current = current
        """The step that runs here; None outside of a step."""
        self._adder = None if current is None else current.id

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

        def ended() -> FlowReport | None:
            flow = found(self._recruiter.store, self.id)
            return report if flow.state.ended and (report := self.report()).state.ended else None

        return _waited_for(ended, f"flow {self.id}", timeout, lambda: self.report().note)

    await_ = async_face(wait, runs_user_code=True)

    def __getitem__(self, name: str) -> JobHandle[Any]:
        """The last job of the step with this name: `handle["small"].result()`. In a step of a sub-flow, the steps of
        this sub-flow come first. Raises InvalidFlow."""
        steps = self._recruiter.store.flow_steps
        names = ["/".join((*self._part[:depth], str(name))) for depth in range(len(self._part), -1, -1)]
        found = steps.named(self.id, names)
        job = next((found[name] for name in names if name in found), None)
        if job is None:
            others = list(steps.named(self.id))
            known = f"its named steps are {', '.join(map(repr, others[:_MAX_NAMES_TOLD]))}"
            if any(other.startswith(f"{name}/") for other in others):
                known = f"a sub-flow has this name: flow.sub_flow({name!r})"
            known = known if others else "none of its steps has a name"
            raise InvalidFlow(f"flow {self.id} has no step named {shown(name)}; {known}")
        return self._recruiter.handle(job["_id"], self._returns(job["task"]))

    @overload
    def results(self, steps: SubFlow | Iterable[SubFlow], timeout: DurationLike | None = None) -> list[Any]: ...
    @overload
    def results(self, steps: Iterable[Step[R]], timeout: DurationLike | None = None) -> list[R]: ...
    def results(self, steps: Any, timeout: DurationLike | None = None) -> list[Any]:
        """The results of these steps, in the same order, as soon as all have ended. A sub-flow has no result for
        steps that run only after a failure. Raises JobFailed when one has not succeeded, and ResultTimeout."""
        certain = [
            step.id
            for each in self._each(steps)
            for step in ((each,) if isinstance(each, Step) else each.steps)
            if isinstance(each, Step) or step not in each._conditional
        ]
        return self._results(certain, timeout)

    def _results(self, ids: Sequence[JobId], timeout: DurationLike | None) -> list[Any]:
        until = None if timeout is None else time.monotonic() + to_seconds(timeout)
        last = self._recruiter.store.flow_steps.last_jobs(self.id, ids)
        handles = [self._recruiter.handle(job["_id"], self._returns(job["task"])) for job in map(last.__getitem__, ids)]
        return [handle.result(None if until is None else max(0.0, until - time.monotonic())) for handle in handles]

    aresults = async_face(results, runs_user_code=True)

    def job(self, step: Step[R]) -> JobHandle[R]:
        """The handle of the step's last job, to wait for its result. After a recovery, this is not the first job."""
        if not isinstance(step, Step):
            raise InvalidFlow(f"{shown(step)} is no single step; a flow that was added is flow.sub_flow(…)")
        (id,) = self._ids(step)
        last = self._recruiter.store.flow_steps.last_jobs(self.id, [id]).get(id)
        return self._recruiter.handle(id if last is None else last["_id"], step._returns)

    def sub_flows(self) -> list[SubFlowReport]:
        """The states of the flows that were added to it, each after the flow that it is in. Raises FlowNotFound."""
        found(self._recruiter.store, self.id)
        return sub_flow_reports(self._recruiter.store, self.id)

    asub_flows = async_face(sub_flows)

    def sub_flow(self, sub_flow: SubFlow | str) -> SubFlowHandle:
        """A flow that was added to it, or the sub-flow with this name: `"outer/inner"` for an inner one."""
        return SubFlowHandle(self, sub_flow.name if isinstance(sub_flow, SubFlow) else sub_flow)

    # -- control ---------------------------------------------------------------------------------------------------

    def cancel(self, *, by: str | None = None, reason: str | None = None) -> int:
        """Cancels every step that has not ended; returns how many. Raises FlowNotFound, and InvalidFlow when all have
        ended."""
        check_remark(by, reason)
        return cancel_flow(self._recruiter.store, self.id, self._recruiter.clock.now(), by, reason)

    acancel = async_face(cancel)

    def pause(self, *, by: str | None = None, reason: str | None = None) -> None:
        """Starts no further step. Running steps continue, and assigned steps may still start until the next heartbeat
        of their worker. Raises FlowNotFound, and InvalidFlow when all steps have succeeded."""
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

    def _add(self, drafts: Sequence[_Draft], options: _Options) -> list[Step[Any]]:
        """Stores them immediately. Their dependencies may have ended: the leader decides when they start. A step that
        the flow has already, by its name or by an id of the user, is left unchanged: an earlier attempt may have added
        it."""
        if options.before_dependents and self.current is None:
            raise InvalidFlow("before_dependents is for a running step, which adds steps with current_job.flow.add(…)")
        before = self._adder if options.before_dependents else None
        for tries in range(_TRIES_FOR_A_NAME, 0, -1):
            known = self._known(drafts)
            new = [draft for draft in drafts if draft.job.id not in known]
            try:
                self._store(new, before, list(known.values()))
            except JobExists:
                if tries == 1 or not any(draft.step.name for draft in new):
                    raise
                continue  # another process has added a step of the same name since
            for draft in drafts:
                draft.step.id = known.get(draft.job.id, draft.job.id)
            return [draft.step for draft in drafts]
        raise AssertionError("unreachable")

    def _known(self, drafts: Sequence[_Draft]) -> dict[JobId, JobId]:
        """The drafts, by id, that are steps of the flow already, and the ids of these steps. Raises InvalidFlow."""
        names = {draft.step.name: draft for draft in drafts if draft.step.name is not None}
        own = [draft.job.id for draft in drafts if not isinstance(draft.job.id, ObjectId)]
        steps = self._recruiter.store.flow_steps
        known = {id: id for id in steps.known(self.id, own)} if own else {}
        named = steps.named(self.id, list(names)) if names else {}
        for name, job in named.items():
            draft = names[name]
            if job["task"] != draft.job.task:
                raise InvalidFlow(f"step {name!r} of flow {self.id} is of task {job['task']}, not {draft.job.task}")
            if job["flow"].get("adder") != self._adder and not self._has_arguments_of(job["_id"], draft):
                raise InvalidFlow(
                    f"flow {self.id} has a step {name!r} already, with other arguments; another step added it. Give "
                    "this one, or the flow that you add, another name"
                )
            known[draft.job.id] = job["flow"]["step"]
        left_out = {id for id in known if known[id] != id}
        for draft in drafts:
            if draft.job.id not in known and not left_out.isdisjoint(draft.place.after):
                raise InvalidFlow(
                    f"flow {self.id} has some steps of these names already, and {draft.step.name!r} is new and waits "
                    "for one of them. Give the flow that you add another name"
                )
        return known

    def _has_arguments_of(self, id: JobId, draft: _Draft) -> bool:
        """Whether this job has the arguments of the draft."""
        job, opened = find(self._recruiter.store, id), partial(self._recruiter.payload.open_arguments, draft.job.task)
        return job is not None and opened(job.args, Owner(job.key)) == opened(draft.job.args, Owner(draft.job.id))

    def _store(self, drafts: Sequence[_Draft], before: JobId | None, known: Sequence[JobId]) -> None:
        """Stores new steps. The steps that wait for `before` wait for them and for the known ones."""
        if not drafts and (before is None or not known):
            return
        flow = found(self._recruiter.store, self.id)
        start = partial(SendStart, flow.name, len(drafts), self._recruiter, None, is_flow=True)
        with self._recruiter.instruments.producing(start):
            self._check_known(drafts)
            now, stamped = self._recruiter.clock.now(), self._recruiter.instruments.stamped
            jobs = [stamped(draft.placed(flow.created_at, now, flow.owner, blocked=True)) for draft in drafts]
            own = any(not isinstance(draft.job.id, ObjectId) for draft in drafts)
            holder = self._hold()
            self._recruiter.produce(
                lambda here: here.add_steps(self.id, jobs, known, own_ids=own, before=before, holder=holder)
            )

    def _check_known(self, drafts: Sequence[_Draft]) -> None:
        ids = {draft.job.id for draft in drafts}
        wanted = list(dict.fromkeys(id for draft in drafts for id in draft.place.after if id not in ids))
        known = self._recruiter.store.flow_steps.known(self.id, wanted) if wanted else set()
        for id in wanted:
            if id not in known:
                raise InvalidFlow(f"{id_told(id)} is not a step of flow {self.id}")

    def __repr__(self) -> str:
        return f"FlowHandle({id_told(self.id)})"


class SubFlowHandle:
    """A flow that was added to a started flow: reports on it as on one step."""

    def __init__(self, flow: FlowHandle, name: str) -> None:
        self._flow = flow
        self.name = name
        """Its name in the flow."""

    def report(self) -> SubFlowReport:
        """Its state, and how many of its steps are in which state. Raises FlowNotFound, and InvalidFlow when there is
        no such sub-flow."""
        reports = self._flow.sub_flows()
        for report in reports:
            if report.name == self.name:
                return report
        names = ", ".join(repr(report.name) for report in reports[:_MAX_NAMES_TOLD]) or "none"
        raise InvalidFlow(f"flow {self._flow.id} has no sub-flow {self.name!r}; its sub-flows: {names}")

    areport = async_face(report)

    def steps(self) -> list[StepReport]:
        """Its steps, in the order in which they were added; with the steps that its own steps have added."""
        return [step for step in self._flow.steps() if self._has(step.part)]

    asteps = async_face(steps)

    def wait(self, timeout: DurationLike | None = None) -> SubFlowReport:
        """Returns when all its steps have ended, with or without success. Raises ResultTimeout, FlowNotFound and
        InvalidFlow."""

        def ended() -> SubFlowReport | None:
            report = self.report()
            return report if report.ended else None

        return _waited_for(ended, f"sub-flow {self.name!r}", timeout, lambda: self._flow.report().note)

    await_ = async_face(wait, runs_user_code=True)

    def result(self, timeout: DurationLike | None = None) -> Any:
        """Waits for its result: see `SubFlow.result`. Raises JobFailed, ResultTimeout, FlowNotFound and
        InvalidFlow."""
        self.report()
        recruiter = self._flow._recruiter
        rows = recruiter.store.flow_steps.rows(self._flow.id, {"flow": 1})
        single, items = dict[JobId, ObjectId | None](), dict[JobId, ObjectId | None]()
        for place in map(flow_of, rows):
            if place is not None and (depth := self._has(place.part)):
                for kind, depths in ((single, place.result_of), (items, place.item_of)):
                    if depth in depths:
                        kind[place.step] = place.added
        results = self._flow._results([*single, *sorted(items, key=lambda step: str(items[step]))], timeout)
        return results[0] if single else results

    aresult = async_face(result, runs_user_code=True)

    def _has(self, part: Sequence[str]) -> int:
        """The number of sub-flows around a step of it, itself included; 0 for a step that is not of it."""
        depths = range(1, len(part) + 1)
        return next((depth for depth in depths if "/".join(part[:depth]) == self.name), 0)

    def __repr__(self) -> str:
        return f"SubFlowHandle({self.name!r})"


def _waited_for(
    ended: Callable[[], R | None], name: str, timeout: DurationLike | None, note: Callable[[], str | None]
) -> R:
    """The first answer. Raises ResultTimeout, with a note."""
    until = None if timeout is None else time.monotonic() + to_seconds(timeout)
    pause = _FIRST_LOOK
    while True:
        if (report := ended()) is not None:
            return report
        if until is not None and time.monotonic() >= until:
            state = f"it was {text}" if (text := note()) else "it continues, and you can wait again"
            raise ResultTimeout(f"{name} has not ended within {brief(to_seconds(timeout or 0))}; {state}")
        time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))
        pause = min(1.2 * pause, _LONGEST_BETWEEN_LOOKS)


def chain(recruiter: Producer, name: str, first: TaskOrJob[Any] | Flow, *others: TaskOrJob[Any] | Flow) -> Flow:
    """One step after the other. A task takes the result of the step before it as its argument; a job that has its
    arguments already only waits for it."""
    flow = Flow(recruiter, name)
    step: Step[Any] | SubFlow = flow.add(first)
    for other in others:
        step = flow.add(other, step.result) if isinstance(other, Task | str) else flow.add(other, after=step)
    return flow


def fan_out(
    recruiter: Producer,
    name: str,
    task: Task[..., Any, Any] | str,
    calls: Iterable[CallOrJob],
    then: TaskOrJob[Any] | None,
) -> Flow:
    """One step for each call, side by side; `then` takes the list of their results, or only waits for them if it has
    its arguments already."""
    flow = Flow(recruiter, name)
    parts = flow.add_many(task, calls)
    flow._is_fan_out = then is None
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

    def of_step(self, place: FlowStep, task: str, hold: Callable[[], Document | None]) -> FlowHandle:
        """The flow of a step that runs here, for `current_job.flow`."""
        current: Step[Any] = Step(place.flow, place.step, task, name=place.name)
        return FlowHandle(self._recruiter, place.flow, current, place.part, hold)

    def latest(self, *, limit: int = 50, owner: str | None = None, running: bool | None = None) -> list[FlowReport]:
        """The newest flows, up to `limit`; all flows with 0. `owner` selects the flows of one owner. `running` selects
        flows that have not ended (True) or have ended (False). Raises InvalidFilter."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise InvalidFilter(f"limit is {shown(limit)}; give a number of flows, or 0 for all of them")
        return flow_reports(self._recruiter.store, limit, owner, running)

    alatest = async_face(latest)
