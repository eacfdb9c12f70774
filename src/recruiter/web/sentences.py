"""The sentence at the top of each page: the most urgent problem. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from recruiter.domain.duration import brief
from recruiter.domain.schedule.scheduler import Pause
from recruiter.domain.text import remark
from recruiter.web import schemas
from recruiter.web.formats import count
from recruiter.web.schemas import Finding, FlowRow, GroupRow, Level, LimitRow, Performance, Sentence, Waiting

NO_LEADER = "No recruiter leads, so no job is given to a worker. Start one: recruiter start recruiter."
_ok, _note, _problem = (partial(Sentence, level) for level in (Level.OK, Level.NOTE, Level.PROBLEM))
EXAMINING = _ok("The doctor is looking. With very many jobs it takes a few seconds.")
_MANY_FAIL = 0.2
_FEW = 5
_NAMED = 3
_LATE = 60.0


def plural(number: float, thing: str) -> str:
    return f"{count(number)} {thing}" + ("" if number == 1 else "s")


def jobs(number: float) -> str:
    return plural(number, "job")


def failed(ended: Mapping[str, int]) -> int:
    """The number of jobs that failed or were lost, of the numbers of jobs by state."""
    return ended.get("failed", 0) + ended.get("lost", 0)


def of_overview(seen: schemas.OverviewPage, waiting: Sequence[Waiting]) -> Sentence:
    """The most urgent thing; or that all is quiet. `waiting` has every group and task, the most serious first."""
    return next(_matters(seen, waiting))


def _matters(seen: schemas.OverviewPage, waiting: Sequence[Waiting]) -> Iterator[Sentence]:
    if seen.leader is None:
        yield _problem(NO_LEADER)
    if not seen.workers:
        wait = f"{jobs(seen.queued)} wait and none runs" if seen.queued else "No job runs"
        yield _problem(f"{wait}: no worker is on the roster. Start one: recruiter start worker.")
    blocked = seen.paused.get("fleet")
    if blocked is not None:
        yield _blocked(blocked)
    if waiting and waiting[0].queued and waiting[0].level is not Level.OK:
        yield of_waiting(waiting[0], waiting)
    yield from _pace(seen)


def _blocked(pause: Pause) -> Sentence:
    return _problem(f"No job starts anywhere: all starts are blocked by {remark(pause.by, pause.reason, pause.at)}.")


def of_waiting(first: Waiting, waiting: Sequence[Waiting]) -> Sentence:
    """The due jobs that wait for the same reason: of one task, or of all tasks of a group."""
    same = [each for each in waiting if each.about == first.about and each.reason == first.reason]
    number = sum(each.queued for each in same)
    which = f"{jobs(number)}{f' of {first.about}' if first.about else ''}"
    which = f"Some of the {which}" if first.is_partial and number > 1 else which
    return Sentence(first.level, f"{which} {'waits' if number == 1 else 'wait'}: {first.reason}.")


def _pace(seen: schemas.OverviewPage) -> Iterator[Sentence]:
    ended = sum(seen.ended.values())
    number = failed(seen.ended)
    if number >= _FEW and number > ended * _MANY_FAIL:
        most = f"; most with {seen.errors[0].error}" if seen.errors else ""
        yield _problem(f"{count(number)} of {jobs(ended)} failed in the last {seen.within}{most}.")
    workers, pace = plural(seen.workers, "worker"), f"{count(round(seen.per_second, 2))} jobs a second"
    late = seen.latency.p95 or 0.0
    if seen.queued > seen.slots and late > _LATE:
        text = f"Behind: {jobs(seen.queued)} wait for {plural(seen.slots, 'slot')}, and start {brief(late)} late."
        yield _note(text)
    if seen.queued > seen.slots:
        yield _ok(f"Busy: {workers}, {pace}, {jobs(seen.queued)} wait their turn.")
    if not seen.per_second and not seen.running and not seen.queued:
        yield _ok(f"All quiet: {workers}, nothing to do.")
    yield _ok(f"All quiet: {workers}, {pace}, nothing late.")


def of_fleet(leader: schemas.Leader | None, workers: Sequence[schemas.WorkerRow]) -> Sentence:
    if leader is None:
        return _problem(NO_LEADER)
    if not workers:
        return _problem("No worker is on the roster: no job runs. Start one: recruiter start worker.")
    silent = [worker for worker in workers if worker.state == "silent"]
    if silent:
        who = silent[0].id if len(silent) == 1 else plural(len(silent), "worker")
        return _problem(f"{who}: silent. The leader retires silent workers and frees their jobs.")
    drained = [worker for worker in workers if worker.state == "drained"]
    slots = sum(worker.slots for worker in workers if worker.state == "works")
    busy = sum(min(worker.slots, worker.holds) for worker in workers)
    hosts = plural(len({worker.host for worker in workers}), "host")
    text = f"{plural(len(workers), 'worker')} on {hosts}: {count(busy)} of {plural(slots, 'slot')} busy"
    if drained:
        return _note(f"{text}; {count(len(drained))} drained.")
    return _ok(f"{text}.")


def of_groups(
    blocked: Pause | None,
    groups: Sequence[GroupRow],
    limits: Sequence[LimitRow],
    waiting: Sequence[Waiting],
) -> Sentence:
    """`waiting` has every group and task, the most serious first, as the overview does."""
    if blocked is not None:
        return _blocked(blocked)
    paused = [group for group in groups if group.paused]
    more = f" {plural(len(paused) - 1, 'more group')} paused." if len(paused) > 1 else ""
    if waiting and waiting[0].queued and waiting[0].level is not Level.OK:
        sentence = of_waiting(waiting[0], waiting)
        return replace(sentence, text=sentence.text + more)
    if paused and paused[0].paused is not None:
        pause = paused[0].paused
        who = remark(pause.by, pause.reason, pause.at)
        return _note(f"Group {paused[0].name} is paused by {who}; none of its jobs is due.{more}")
    full = [limit for limit in limits if limit.at_once is not None and limit.used >= limit.at_once]
    if full:
        return _note(f"{full[0].subject} is at its limit of {count(full[0].at_once or 0)}.")
    if not groups:
        return _ok("No jobs yet: a group appears with its first job.")
    due = sum(group.queued for group in groups)
    return _ok(f"{plural(len(groups), 'group')}, none paused; {jobs(due)} due.")


def of_tasks(by: str, rows: Sequence[Performance], within: str) -> Sentence:
    """The row that fails most, if one fails often; else the row that takes most of the time."""
    if not rows:
        return _ok(f"No job ended in the last {within}.")
    often = [row for row in rows if row.failed >= _FEW and row.share > _MANY_FAIL]
    if often:
        worst = max(often, key=lambda row: row.failed)
        share = f"{count(worst.failed)} of {jobs(worst.ended)} of {by} {worst.name} failed"
        return _note(f"{share} in the last {within} ({worst.share:.0%}).")
    total = sum(row.total_seconds for row in rows)
    most = max(rows, key=lambda row: row.total_seconds)
    share = f"{most.total_seconds / total:.0%} of the time" if total else "most of the time"
    text = f"{jobs(sum(row.ended for row in rows))} of {plural(len(rows), by)} ended in the last {within}"
    return _ok(f"{text}; {by} {most.name} took {share} ({brief(most.total_seconds)}).")


def of_schedules(schedules: Sequence[schemas.ScheduleRow], more: int, now: datetime) -> Sentence:
    if not schedules:
        return _ok("No schedules: @recruiter.every repeats a job.")
    trouble = next((each for each in schedules if each.trouble), None)
    if trouble is not None:
        return _problem(f"{trouble.urn}: {trouble.trouble}.")
    paused = [each for each in schedules if each.paused]
    told = f"; {count(len(paused))} paused" if paused else ""
    coming = sorted((each.next_runs[0], each.urn) for each in schedules if each.next_runs)
    if not coming:
        return _note(f"{plural(len(schedules) + more, 'schedule')}{told}; none will run again.")
    moment, urn = coming[0]
    when = f"in {brief((moment - now).total_seconds())}" if moment > now else "now"
    return _ok(f"{plural(len(schedules) + more, 'schedule')}{told}. Next is {urn}, {when}.")


def of_flows(flows: Sequence[FlowRow]) -> Sentence:
    if not flows:
        return _ok("No flows.")
    bad = [flow for flow in flows if flow.state == "failed"]
    stuck = [flow for flow in flows if flow.state == "running" and flow.why]
    running = sum(flow.state in ("running", "paused") for flow in flows)
    text = f"{plural(len(flows), 'flow')} on this page; {count(running)} {'has' if running == 1 else 'have'} not ended."
    if stuck:
        text += f" Flow {stuck[0].name} is at {stuck[0].why}."
    if bad:
        text += f" {count(len(bad))} failed; the last is {bad[0].name}."
    return Sentence(Level.NOTE if bad or stuck else Level.OK, text)


def of_flow(flow: FlowRow, steps: Sequence[schemas.FlowStepRow] = ()) -> Sentence:
    told = ", ".join(f"{count(steps)} {state}" for state, steps in flow.counts.items())
    text = f"{plural(flow.steps, 'step')}: {told}.{f' It is {flow.note}.' if flow.note else ''}{_at_work(flow, steps)}"
    is_stuck = flow.state == "running" and flow.why
    return Sentence(Level.NOTE if flow.note or is_stuck or flow.state == "failed" else Level.OK, text)


def _at_work(flow: FlowRow, steps: Sequence[schemas.FlowStepRow]) -> str:
    """The steps that the flow waits for, or the step that failed."""
    bad = [step for step in steps if step.state in ("failed", "lost")]
    if bad:
        more = f", and {count(len(bad) - 1)} more" if len(bad) > 1 else ""
        return f" {bad[0].task} failed{f' with {bad[0].error}' if bad[0].error else ''}{more}."
    running = sorted({step.task for step in steps if step.state == "running"})
    if flow.state == "running" and flow.why:
        return f" It is at {flow.why}."
    if flow.ended_at is None and running:
        return f" It waits for {', '.join(running[:_NAMED])}{' and others' if len(running) > _NAMED else ''}."
    return ""


def of_jobs(found: schemas.JobList, filter: str, *, further: bool) -> Sentence:
    told = f"Jobs: {filter}" if filter else "All jobs: running ones first, then waiting ones, then ended ones"
    if not found.jobs:
        return _ok(f"No {'more ' if further else ''}jobs{f': {filter}' if filter else ''}.")
    return _ok(f"{told}{', further on' if further else ''}. {_of_rows(found.jobs)}.")


def _of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    states = Counter(row["state"] for row in rows)
    errors = Counter(row["error"] for row in rows if row["error"] and row["state"] in ("failed", "lost"))
    here = f"Of the {count(len(rows))} on this page"
    if errors:
        error, times = errors.most_common(1)[0]
        return f"{here}, {count(times)} failed with {error}"
    if len(states) > 1:
        return f"{here}, " + ", ".join(f"{count(number)} {state}" for state, number in states.items())
    first = rows[0]
    if first["state"] == "running" and first["started_at"] is not None:
        since = min(row["started_at"] for row in rows if row["started_at"])
        return f"The longest on this page has run since {since:%Y-%m-%d %H:%M:%S} UTC"
    if first["state"] in ("waiting", "queued"):
        return f"The first of them has been due since {first['scheduled_at']:%Y-%m-%d %H:%M:%S} UTC"
    if first["ended_at"] is not None:
        return f"The first of them ended at {first['ended_at']:%Y-%m-%d %H:%M:%S} UTC"
    return f"{count(len(rows))} on this page"


def of_problems(findings: Sequence[Finding]) -> Sentence:
    bad = [each for each in findings if each.level is Level.PROBLEM]
    if bad:
        return _problem(f"{plural(len(bad), 'problem')}. The most urgent: {bad[0].text}.")
    if findings:
        return _note(f"No problems; {plural(len(findings), 'note')}.")
    return _ok("No problems: all checks passed.")
