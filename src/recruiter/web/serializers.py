"""From what is stored to what is shown: pure functions that make the values of schemas.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from recruiter.domain.duration import humanize
from recruiter.domain.job import ArchivedJob, Job, JobId
from recruiter.domain.lane import Lane
from recruiter.domain.planning.limits import AtLimit
from recruiter.domain.planning.reasons import NeverFits, Unserved
from recruiter.domain.planning.why_waiting import Circumstances
from recruiter.domain.schedule.scheduler import Pause, Scheduler
from recruiter.domain.search.filter import Count, JobSummary
from recruiter.domain.state import State
from recruiter.domain.statistics import Analytics, Depth, Flow, Times
from recruiter.domain.text import mask
from recruiter.instruments import trace_id_of
from recruiter.views.flows import FlowReport, StepReport
from recruiter.web import drawings, schemas, sentences
from recruiter.web.schemas import Amount, FlowRow, FlowStepRow, Percentiles

if TYPE_CHECKING:
    from recruiter.store.collections.limits import Rules
    from recruiter.store.roster_fields import RosterEntry
    from recruiter.views.resources import LimitUse

_TREND = 24
_SEEN_AT_LEAST = timedelta(minutes=11)
"""The cleaner looks at an idle fleet every ten minutes."""
_HOLDERS = 5


def amount_of(counted: Count) -> Amount:
    return Amount(counted.number, counted.exact)


def shown_state(state: State, due: datetime | None, now: datetime) -> str:
    return "postponed" if state is State.WAITING and due is not None and due > now else state.value


_AS_STORED = (
    *(
        "task",
        "method",
        "group",
        "priority",
        "owner",
        "urn",
        "limited_by",
        "timeout",
        "at_most_once",
        "attempts",
        "crashes",
        "worker_deaths",
    ),
    *("snoozes", "conflicts", "created_at", "locked_by", "locked_at", "stage", "progress", "log_cut", "expires_at"),
)
"""The fields of a job that are shown as they are."""


def job_view(
    job: Job, now: datetime, sentence: str, plain: Callable[[Any], Any], document: dict[str, Any]
) -> schemas.JobView:
    """Everything about a job. `plain` hides what must not be shown."""
    ended = job if isinstance(job, ArchivedJob) else None
    due = job.scheduled_at if isinstance(job.scheduled_at, datetime) else None
    cancel = job.cancel
    return schemas.JobView(
        at=now,
        id=str(job.id),
        key=str(job.key),
        sentence=sentence,
        state=shown_state(job.state, due, now),
        tags=[str(tag) for tag in job.tags],
        needs=job.needs.described() if job.needs else None,
        retry=policy(job.retry_policy),
        scheduled_at=due,
        ended_at=ended.archived_at if ended else None,
        why=ended.why if ended else None,
        reason=ended.reason if ended else None,
        cancel=None if cancel is None else schemas.PauseView(cancel.at, cancel.by, cancel.reason),
        args=plain(job.args),
        result=plain(ended.result) if ended else None,
        executions=attempts(job),
        stages=[schemas.Stage(e.state, e.stage, e.progress, e.error, e.date) for e in job.status],
        log=[schemas.Line(line.at, mask(line.text)) for line in job.log],
        recovered_from=None if job.recovered_from is None else str(job.recovered_from),
        recovered_as=None if ended is None or ended.recovered_as is None else str(ended.recovered_as),
        flow=None if job.flow is None else str(job.flow.flow),
        signal=None if job.waits_for is None else job.waits_for.signal,
        history=[
            schemas.Happening(e.at, e.what, e.by, mask(e.reason or "") or None, mask(str(e))) for e in job.history
        ],
        done=[schemas.Checkpoint(each.name, each.at, each.problem) for each in job.checkpoints],
        trace=trace_id_of(job.trace_context),
        timeline=drawings.life_of(job, now),
        document=document,
        **{name: getattr(job, name) for name in _AS_STORED},
    )


def policy(stored: Mapping[str, Any] | None) -> str | None:
    if stored is None:
        return None
    parameters = stored.get("parameters")
    values = parameters.values() if isinstance(parameters, Mapping) else ()
    only = stored.get("only")
    told = f" only {', '.join(map(str, only))}" if isinstance(only, list) and only else ""
    return f"{stored.get('class')}({', '.join(map(str, values))}){told}"


def attempts(job: Job) -> list[schemas.Attempt]:
    first = max(0, job.attempts - len(job.executions)) + 1
    return [
        schemas.Attempt(
            number=number,
            started_at=each.started_at,
            ended_at=each.ended_at,
            worker=each.worker,
            crashed=each.crashed,
            error=each.exception,
            message=None if each.message is None else mask(each.message),
            trace=None if each.trace is None else mask(each.trace),
            notes=list(map(mask, each.notes)),
        )
        for number, each in enumerate(job.executions, first)
    ]


def worker(entry: RosterEntry, said: Mapping[JobId, Job], now: datetime) -> schemas.Worker:
    worker, drained = entry.registration, entry.drained
    return schemas.Worker(
        id=entry.id,
        host=entry.host,
        pid=entry.pid,
        state=entry.state(now),
        slots=worker.slots,
        holds=worker.holds,
        groups=None if worker.groups is None else sorted(worker.groups),
        tasks=sorted(worker.tasks),
        runs=[run_of(run, said) for run in sorted(entry.running, key=lambda run: run["since"])],
        resources={name: float(value) for name, value in worker.resources.amounts().items()},
        joined_at=entry.joined_at,
        seen_at=entry.seen_at,
        drained=None
        if drained is None
        else schemas.PauseView(drained.get("at"), drained.get("by"), drained.get("reason")),
        clock_offset=entry.clock_offset,
    )


def run_of(run: Mapping[str, Any], said: Mapping[JobId, Job]) -> schemas.Run:
    job = said.get(run["job"])
    return schemas.Run(
        str(run["job"]), str(run["task"]), run["since"], job.stage if job else None, job.progress if job else 0.0
    )


def percentiles(times: Times) -> Percentiles:
    return Percentiles(times.median, times.p95, times.p99)


def point(at: datetime, flow: Flow, told: Analytics) -> schemas.Point:
    seconds = (min(at + told.step, told.until) - at).total_seconds()
    return schemas.Point(
        at, max(1.0, seconds), dict(flow.ended), percentiles(flow.latency), percentiles(flow.execution_time)
    )


def trend(depths: Sequence[Depth], steps: Sequence[datetime], step: timedelta) -> list[Depth | None]:
    """What was seen last by the end of each step. An idle fleet is looked at seldom, so that may be a while ago."""
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
    """Jobs made a minute: what went out of a group, and by how much it has grown."""
    return max(0.0, out + (jobs - then) / minutes)


def failed(ended: Mapping[str, int]) -> int:
    return ended.get(State.FAILED, 0) + ended.get(State.LOST, 0)


def frequent_error(
    name: str, jobs: Sequence[JobSummary], begin: datetime, span: float, complete: bool
) -> schemas.FrequentError:
    trend = [0] * _TREND
    ends = [job.ended_at for job in jobs if job.ended_at is not None]
    for end in ends:
        trend[min(_TREND - 1, max(0, int((end - begin).total_seconds() / span * _TREND)))] += 1
    by = "error" if any(job.error for job in jobs) else "why"
    return schemas.FrequentError(
        name, by, Amount(len(jobs), complete), trend, max(ends), sorted({job.task for job in jobs})[:5]
    )


def reason_of(facts: Circumstances, rules: Rules, group: str, task: str) -> tuple[str | None, bool]:
    """Why due jobs of this kind do not start, and whether they will not as things are."""
    pause = rules.pauses(group)
    if pause is not None:
        what = "all starts are blocked" if rules.blocked else "the group is paused"
        return f"{what} {sentences.since(pause)}", True
    reason = facts.why_waiting(Lane(group, task))
    if reason is None:
        return None, False
    stuck = isinstance(reason, Unserved | NeverFits) or (isinstance(reason, AtLimit) and not reason.held)
    return str(reason), stuck


def pause_view(pause: Pause, what: str) -> schemas.PauseView:
    return schemas.PauseView(pause.at, pause.by, pause.reason, what)


def pauses(rules: Rules) -> list[schemas.PauseView]:
    return [pause_view(pause, name.removeprefix("group:")) for name, pause in sorted(rules.paused.items())]


def limit_use(use: LimitUse) -> schemas.LimitUse:
    limit = use.limit
    return schemas.LimitUse(
        subject=limit.subject,
        at_once=limit.at_once,
        used=use.used,
        rate=None if limit.rate is None else str(limit.rate),
        started=use.started,
        rate_count=None if limit.rate is None else limit.rate.count,
        floating=limit.floating,
        holders=[str(id) for id in use.holders[:_HOLDERS]],
    )


def schedule_text(scheduler: Scheduler) -> str:
    parameters = scheduler.schedule.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        return str(scheduler.schedule.get("class"))
    if scheduler.schedule.get("class") == "Cron":
        return str(parameters.get("expression"))
    interval = parameters.get("interval")
    if scheduler.schedule.get("class") == "Every" and isinstance(interval, int | float):
        return f"every {humanize(timedelta(seconds=interval))}"
    return f"{scheduler.schedule.get('class')}({', '.join(map(str, parameters.values()))})"


def late(scheduler: Scheduler, last: Sequence[schemas.Ended], now: datetime) -> str | None:
    if scheduler.paused is not None:
        return None
    if scheduler.next_at is not None and now - scheduler.next_at > timedelta(minutes=1):
        late = timedelta(seconds=int((now - scheduler.next_at).total_seconds()))
        return f"late: it should have run {humanize(late)} ago; a recruiter that leads makes its jobs"
    succeeded = next((each.at for each in last if each.state == State.SUCCEEDED), scheduler.succeeded_at)
    return scheduler.broken_promise(succeeded, now)


def place(target: str, database: str) -> str:
    """`shop@db1:27017`, of a URI that has its password masked."""
    hosts = target.rpartition("@")[2] if "@" in target else target.rpartition("://")[2]
    return f"{database}@{hosts.partition('/')[0] or 'mongodb'}"


def flow_row(flow: FlowReport) -> FlowRow:
    return FlowRow(
        str(flow.id),
        flow.name,
        flow.owner,
        flow.state.value,
        flow.total,
        flow.progress,
        dict(flow.counts),
        flow.note,
        flow.created_at,
        flow.ended_at,
    )


def flow_step(step: StepReport) -> FlowStepRow:
    return FlowStepRow(
        str(step.step),
        str(step.job),
        step.task,
        step.state,
        [str(other) for other in step.after],
        [str(other) for other in step.any],
        None if step.on is None else step.on.value,
        step.error,
        step.started_at,
        step.ended_at,
    )
