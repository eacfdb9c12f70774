"""`recruiter analytics`: numbers of waiting and ended jobs, their latency and their duration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from recruiter.cli import options as given
from recruiter.cli.options import Duration, recruiter_on
from recruiter.cli.output import Column, Output, as_iso, console, number, say_json, sparkline, table_of, write
from recruiter.domain.duration import brief, elapsed
from recruiter.domain.search.filter import filter_from_words
from recruiter.domain.state import State
from recruiter.domain.statistics import MINUTE, Analytics, PeriodSummary, Queue, Times

By = Literal["group", "task", "owner", "tag", "time"]


def analytics(
    *,
    group: str | None = None,
    task: str | None = None,
    at: str | None = None,
    within: Duration = "1m",
    by: By = "group",
    common: given.TargetOptions = given.TargetOptions(),
    output: Output = "table",
) -> None:
    """`recruiter analytics`.

    Args:
        group: Only jobs of this group.
        task: Only jobs of this task.
        at: Count at this time instead of now: 2030-12-01T22:18:00Z, or 2h for two hours ago.
        within: How far back to count, in whole minutes.
        by: What to list below the totals. `time` lists minutes, or hours for more than three hours. `owner` and `tag`
            count all jobs that have not ended, and recently ended ones.
    """
    with recruiter_on(common) as recruiter:
        report = recruiter.analytics(group, task=task, at=at, within=within)
        counts = recruiter.counts(by, within=within) if by == "owner" or by == "tag" else None
        if not report.ended and not report.queues and (group or task):
            named = {"group": group, "task": task}
            recruiter.jobs.recognize(filter_from_words({name: [value] for name, value in named.items() if value}))
        if output == "table":
            _print(report, by, counts, recruiter.clock.now())
        else:
            say_json(as_document(report) | ({} if counts is None else {f"{by}s": counts}), output)


def as_document(report: Analytics) -> dict[str, Any]:
    """The whole report for scripts: times as text, the step in seconds, groups and tasks by name."""
    document = asdict(report)
    document["step"] = report.step.total_seconds()
    document["series"] = {as_iso(at): asdict(flow) for at, flow in report.series.items()}
    document["queues"] = [
        {"group": group, "task": task, **asdict(entry)} for (group, task), entry in report.queues.items()
    ]
    document["flows"] = [
        {"group": group, "task": task, **asdict(entry)} for (group, task), entry in report.flows.items()
    ]
    return document


def _print(report: Analytics, by: By, counts: Mapping[str, Mapping[str, int]] | None, now: datetime) -> None:
    page, rate = console(), report.throughput
    ended = ", ".join(f"{number(count)} {state}" for state, count in sorted(report.ended.items())) or "nothing"
    span = elapsed(report.until - report.since)
    states = ("queued", "running", "postponed", "zombies")
    jobs = ", ".join(f"{number(getattr(report.jobs, state))} {state}" for state in states)
    facts = {
        "jobs": jobs + counted_before(report, now),
        "from": f"{report.since:%Y-%m-%d %H:%M:%S} to {report.until:%H:%M:%S} UTC ({span})",
        "ended": ended,
        "throughput": f"{number(rate.value)} a minute, {number(rate.value_per_second)} a second",
        "latency": _times(report.latency),
        "execution time": _times(report.execution_time),
    }
    parts = [] if counts is not None else _parts(report, by)
    if parts and by == "time":
        values = [flow.throughput.value for flow in report.series.values()]
        facts["by minute" if report.step == MINUTE else "by hour"] = sparkline(values, plain=page.options.ascii_only)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="bold", min_width=14)
    grid.add_column()
    for name, text in facts.items():
        grid.add_row(Text(name), Text(text))
    write(page, grid)
    if counts is not None:
        rows = [{by: name, **{state.value: number(of.get(state, 0)) for state in State}} for name, of in counts.items()]
        columns = [Column(by, fair=14), *(Column(state.value, right=True) for state in State)]
        write(page, "", table_of(rows, columns, page.width))
    elif parts:
        write(page, "", _table(parts, by, page.width))


def _parts(report: Analytics, by: By) -> list[tuple[str, Queue | None, PeriodSummary | None]]:
    """The name, the waiting and the ended jobs of each part. By time, only ended jobs: none waits in the past."""
    if by == "time":
        days = report.until - report.since > timedelta(days=1)
        return [(f"{at:%m-%d %H:%M}" if days else f"{at:%H:%M}", None, ended) for at, ended in report.series.items()]
    place, ended_by_name = (0, report.groups) if by == "group" else (1, report.tasks)
    queues: dict[str, Queue] = {}
    for kind, queue in report.queues.items():
        name = kind[place]
        queues[name] = queues[name] + queue if name in queues else queue
    return [(name, queues.get(name), ended_by_name.get(name)) for name in sorted({*queues, *ended_by_name})]


def _table(parts: list[tuple[str, Queue | None, PeriodSummary | None]], by: By, width: int) -> Table:
    waiting = () if by == "time" else ("queued", "running", "postponed")
    columns = [
        Column("name", fair=16, title=by),
        *(Column(name, right=True, rank=1 if name == "postponed" else 0) for name in waiting),
        *(Column(name, right=True) for name in ("a minute", "failed", "latency")),
        Column("latency_p95", right=True, rank=2, title="p95"),
        Column("time", right=True),
        Column("time_p95", right=True, rank=2, title="p95"),
    ]
    rows = []
    for name, queue, ended in parts:
        counts = {state: number(getattr(queue, state)) if queue else "0" for state in waiting}
        rows.append({"name": name, **counts, **figures(ended)})
    return table_of(rows, columns, width)


def figures(ended: PeriodSummary | None) -> dict[str, str]:
    """The cells of a table row about ended jobs, by column."""
    if ended is None:
        return {"a minute": "0", "failed": "0", **dict.fromkeys(("latency", "latency_p95", "time", "time_p95"), "–")}
    late, took = ended.latency, ended.execution_time
    return {
        "a minute": number(ended.throughput.value),
        "failed": number(sum(ended.ended.get(state, 0) for state in (State.FAILED, State.LOST))),
        "latency": brief(late.average),
        "latency_p95": brief(late.p95),
        "time": brief(took.average),
        "time_p95": brief(took.p95),
    }


def counted_before(report: Analytics, now: datetime) -> str:
    """The age of the count of waiting jobs, unless it is new."""
    age = now - report.counted_at
    return f" (counted {elapsed(age)} ago)" if age >= timedelta(seconds=2) else ""


def _times(times: Times) -> str:
    if times.longest is None:
        return "–"
    others = (("median", times.median), ("95 %", times.p95), ("99 %", times.p99), ("longest", times.longest))
    return f"{brief(times.average)} on average; " + ", ".join(f"{name} {brief(value)}" for name, value in others)
