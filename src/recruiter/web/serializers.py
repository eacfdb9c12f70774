"""Pure functions from stored values to the values of schemas.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from recruiter.domain.duration import brief, elapsed, humanize
from recruiter.domain.job import ArchivedJob, Job, JobId
from recruiter.domain.schedule.scheduler import Scheduler
from recruiter.domain.search.conditions import BLOCKED, POSTPONED, QUEUED
from recruiter.domain.state import SKIPPED, WHY_SKIPPED, State
from recruiter.domain.statistics import Analytics, Depth, Kind, PeriodSummary, Queue
from recruiter.views.flows import FlowReport, StepReport
from recruiter.web import schemas
from recruiter.web.schemas import Amount, FlowRow, FlowStepRow, Level

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from recruiter.domain.planning.limits import Limit
    from recruiter.domain.planning.rules import Rules
    from recruiter.store.roster_fields import RosterEntry
    from recruiter.views.explain import WaitReason
    from recruiter.views.resources import LimitUse

R = TypeVar("R", bound="DataclassInstance")

_TREND = 24
_SEEN_AT_LEAST = timedelta(minutes=11)  # The cleaner samples an idle fleet every ten minutes
_HOLDERS = 5
_MEMORY_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_LABEL, _LABELLED_BY = 40, 2  # The longest part of a label, and the number of parts


def shown_state(job: Job, now: datetime) -> str:
    """The state with the words of tabs: a waiting job is queued, postponed or blocked, and a step that never ran is
    skipped."""
    if isinstance(job, ArchivedJob) and job.why in WHY_SKIPPED:
        return SKIPPED
    if job.state is not State.WAITING:
        return job.state.value
    if job.blocked:
        return BLOCKED
    return POSTPONED if job.scheduled_at is not None and job.scheduled_at > now else QUEUED


def waits(job: Job, reason: WaitReason | None, now: datetime) -> str | None:
    """Why a waiting job does not start, in a few words; None for other jobs."""
    if job.state is not State.WAITING:
        return None
    if job.cancel is not None:
        return "is being cancelled"
    if job.blocked:
        return "waits for other steps of its flow"
    if job.waits_for is not None and job.scheduled_at > now:
        return f"waits for the signal {job.waits_for.signal}"
    if job.scheduled_at > now:
        return "waits for its retry" if job.attempts else "its time has not come"
    return "waits its turn" if reason is None else reason.text


def slow(task: str, since: datetime | None, usual: Mapping[str, float], now: datetime) -> str | None:
    """A message if a job that runs since `since` takes longer than 99 of 100 jobs of its task took; otherwise None."""
    most = usual.get(task)
    if most is None or since is None or (now - since).total_seconds() <= most:
        return None
    return f"longer than 99 of 100 jobs of {task} took in the last day ({brief(most)})"


def copied(kind: type[R], *sources: object, **other: Any) -> R:
    """A row with the other values, and with the attributes of the sources that have the names of its fields. Ids and
    states become text, and every collection becomes a list or a dictionary."""
    for each in fields(kind):
        source = next((source for source in sources if hasattr(source, each.name)), None)
        if each.name not in other and source is not None:
            other[each.name] = _as_declared(str(each.type), getattr(source, each.name))
    return kind(**other)


def _as_declared(type: str, value: Any) -> Any:
    if type == "str":
        return str(value.value if isinstance(value, Enum) else value)
    if type == "list[str]":
        return [str(inner) for inner in value]
    return list(value) if type.startswith("list[") else dict(value) if type.startswith("dict[") else value


def worker(
    entry: RosterEntry, said: Mapping[JobId, Job], usual: Mapping[str, float], now: datetime
) -> schemas.WorkerRow:
    worker, drained = entry.registration, entry.drained
    return copied(
        schemas.WorkerRow,
        entry,
        worker,
        state=entry.state(now),
        groups=None if worker.groups is None else sorted(worker.groups),
        tasks=sorted(worker.tasks),
        runs=[run_of(run, said, usual, now) for run in sorted(entry.running, key=lambda run: run["since"])],
        resources={name: float(value) for name, value in worker.resources.amounts().items()},
        drained=None if drained is None else {name: drained.get(name) for name in ("at", "by", "reason")},
    )


def run_of(
    run: Mapping[str, Any], said: Mapping[JobId, Job], usual: Mapping[str, float], now: datetime
) -> schemas.RunningRow:
    job, task = said.get(run["job"]), str(run["task"])
    stage, progress = (job.stage, job.progress) if job else (None, 0.0)
    return schemas.RunningRow(
        str(run["job"]), task, run["since"], stage, progress, slow(task, run["since"], usual, now)
    )


def point(at: datetime, flow: PeriodSummary, told: Analytics) -> schemas.Point:
    seconds = (min(at + told.step, told.until) - at).total_seconds()
    return schemas.Point(at, max(1.0, seconds), dict(flow.ended), flow.latency, flow.execution_time)


def trend(depths: Sequence[Depth], steps: Sequence[datetime], step: timedelta) -> list[Depth | None]:
    """The last sample before the end of each step. Samples of an idle fleet are rare, so it may be old."""
    patience = max(step, _SEEN_AT_LEAST)
    found: list[Depth | None] = []
    place = 0
    for begin in steps:
        while place < len(depths) and depths[place].at < begin + step:
            place += 1
        last = depths[place - 1] if place else None
        found.append(last if last is not None and begin + step - last.at <= patience + step else None)
    return found


def arrivals(out: float, jobs: int, then: int, minutes: float) -> float:
    """New jobs per minute: the jobs that ended, plus the growth of the group."""
    return max(0.0, out + (jobs - then) / minutes)


def frequent_error(
    name: str, jobs: Sequence[Job], begin: datetime, span: float, complete: bool
) -> schemas.FrequentError:
    trend = [0] * _TREND
    ends = [job.ended_at for job in jobs if job.ended_at is not None]
    for end in ends:
        trend[min(_TREND - 1, max(0, int((end - begin).total_seconds() / span * _TREND)))] += 1
    by = "error" if any(job.error for job in jobs) else "why"
    return schemas.FrequentError(
        name, by, Amount(len(jobs), complete), trend, max(ends), sorted({job.task for job in jobs})[:5]
    )


def waiting(kind: Kind, queue: Queue, reason: WaitReason | None) -> schemas.Waiting:
    group, task = kind
    if reason is None:
        missing = {"reason": None, "level": Level.OK, "about": f"task {task}", "is_partial": False}
        return copied(schemas.Waiting, queue, group=group, task=task, **missing)
    return copied(schemas.Waiting, queue, reason, group=group, task=task, reason=reason.detail)


def shown_text(row: Mapping[str, Any]) -> str:
    """The searchable content of a row."""
    return " ".join(
        str(row[name] or "") for name in ("id", "task", "args", "error", "message", "owner", "tags", "why")
    ).casefold()


def limit_use(use: LimitUse, rules: Rules) -> schemas.LimitRow:
    rate = use.limit.rate
    return copied(
        schemas.LimitRow,
        use,
        use.limit,
        rate=None if rate is None else str(rate),
        rate_count=None if rate is None else rate.count,
        holders=[str(id) for id in use.holders[:_HOLDERS]],
        source=rules.source(use.limit.subject),
        is_set=use.limit.subject in rules.set_by,
        values=limit_values(use.limit),
    )


def limit_values(limit: Limit | None) -> dict[str, str]:
    """The limit as the action `set-limit` takes it."""
    values: dict[str, str] = {}
    if limit is not None and limit.at_once is not None:
        sizes = _MEMORY_UNITS.items() if limit.subject == "resource:mem" else ()
        unit, size = next(((unit, size) for unit, size in sizes if limit.at_once % size == 0), ("", 1))
        values["at_once"] = f"{limit.at_once / size:.15g}{unit}"
    if limit is not None and limit.rate is not None:
        values |= {"count": str(limit.rate.count), "per": humanize(limit.rate.window)}
    return values


def late(scheduler: Scheduler, last: Sequence[schemas.EndedRun], now: datetime) -> str | None:
    if scheduler.paused is not None:
        return None
    if late := scheduler.late_by(now):
        return f"late: it should have run {elapsed(late)} ago; a recruiter that leads makes its jobs"
    succeeded = next((each.at for each in last if each.state == State.SUCCEEDED), scheduler.succeeded_at)
    return scheduler.broken_promise(succeeded, now)


def place(target: str, database: str) -> str:
    """`shop@db1:27017`, of a URI that has its password masked."""
    hosts = target.rpartition("@")[2] if "@" in target else target.rpartition("://")[2]
    return f"{database}@{hosts.partition('/')[0] or 'mongodb'}"


def flow_row(flow: FlowReport, why: str | None) -> FlowRow:
    return copied(FlowRow, flow, steps=flow.total, why=why)


def flow_step(step: StepReport) -> FlowStepRow:
    return copied(FlowStepRow, step, on=None if step.on is None else step.on.value)


def labels(steps: Sequence[FlowStepRow], arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The names of steps. A step without a name is called by the arguments that differ most among the steps of its
    task."""
    values: dict[str, dict[str, set[str]]] = {}
    for step in steps:
        for key, value in arguments.get(step.step, {}).items():
            values.setdefault(step.task, {}).setdefault(key, set()).add(str(value))
    found, number = {}, Counter(step.task for step in steps)
    for step in steps:
        by_difference = sorted(values.get(step.task, {}).items(), key=lambda item: -len(item[1]))
        keys = [key for key, different in by_difference if len(different) > 1][:_LABELLED_BY]
        keys = keys[:1] if keys and len(by_difference[0][1]) == number[step.task] else keys
        given = arguments.get(step.step, {})
        label = step.name or ", ".join(str(given[key])[:_LABEL] for key in keys if key in given)
        if label:
            found[step.step] = label
    return found
