"""`recruiter top`: a live screen of throughput, queues, workers, running jobs and the last failures."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult  # noqa: TID251 (for a type)
from rich.live import Live
from rich.table import Table
from rich.text import Text

from recruiter.app import Recruiter
from recruiter.cli import options as given
from recruiter.cli.analytics import counted_before, figures
from recruiter.cli.options import Duration, recruiter_on
from recruiter.cli.output import Column, SafeConsole, bar, console, number, sparkline, table_of, write
from recruiter.domain.duration import brief, to_seconds
from recruiter.domain.job import Job
from recruiter.domain.planning.rules import FLEET
from recruiter.domain.state import State
from recruiter.domain.statistics import Analytics, Queue
from recruiter.domain.text import one_line, remark
from recruiter.errors import StoreUnreachable
from recruiter.store.roster_fields import RosterEntry
from recruiter.views.analytics import LiveView, Running, overview
from recruiter.views.explain import kinds_waiting

_MAX_ROWS, _MAX_FAILED = 100, 10


def top(*, every: Duration = "1s", once: bool = False, common: given.TargetOptions = given.TargetOptions()) -> None:
    """`recruiter top`.

    Args:
        every: How often to refresh.
        once: Print the screen once and end; this is the default when the output is not a terminal.
    """
    pause = max(0.1, to_seconds(every))
    page = console()
    with recruiter_on(common) as recruiter:
        if once or not page.is_terminal:
            write(page, _screen(recruiter, page, Pace(), height=None))
            return
        pace = Pace()
        with _keys() as key, Live(console=page, screen=True, auto_refresh=False) as live:
            while True:
                began = time.monotonic()
                live.update(_look_again(recruiter, page, pace), refresh=True)
                took = time.monotonic() - began
                if key(max(pause, 4 * took)) in ("q", "Q"):  # a screen must not keep MongoDB busy
                    return


def _screen(recruiter: Recruiter, page: SafeConsole, pace: Pace, height: int | None) -> Screen:
    seen, report = overview(recruiter.store, jobs=_MAX_ROWS, within=timedelta(minutes=30)), recruiter.analytics()
    due = [kind for kind, queue in report.queues.items() if queue.queued]
    reasons = kinds_waiting(recruiter.store, due[:_MAX_ROWS], seen.rules, seen.at)
    why = {kind: reason.text for kind, reason in reasons.items()}
    failed = _failed(recruiter, report)
    return Screen(seen, report, why, failed, pace.since_last(seen), page.options.ascii_only, height)


def _failed(recruiter: Recruiter, report: Analytics) -> Sequence[Job]:
    """The jobs that have failed in the time that the screen is about, the newest first."""
    states = [state for state in (State.FAILED, State.LOST) if report.ended.get(state)]
    if not states:
        return ()
    return recruiter.jobs.list(minimal=True, state=states, ended_since=report.since, limit=_MAX_FAILED).jobs


def _look_again(recruiter: Recruiter, page: SafeConsole, pace: Pace) -> RenderableType:
    """A screen that lives on while MongoDB is away."""
    try:
        return _screen(recruiter, page, pace, page.height)
    except StoreUnreachable as error:
        return Text(f"{error}\nTrying again. q ends.", style="red")


def _no_key(pause: float) -> str:
    time.sleep(pause)
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yields a function that waits for a key, for this number of seconds."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield lambda pause: sys.stdin.read(1) if select.select([sys.stdin], [], [], pause)[0] else ""
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


_HEAD_LINES = 6
_LINES_AROUND_A_TABLE = 3
"""An empty one, its title, and the number of omitted rows."""


class Pace:
    """Ended jobs per second between two refreshes."""

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._ended: dict[datetime, int] = {}

    def since_last(self, seen: LiveView) -> float | None:
        """None at the first look."""
        ended = {minute: sum(flow.ended.values()) for minute, flow in seen.minutes.items()}
        new = sum(max(0, count - self._ended.get(minute, 0)) for minute, count in ended.items())
        at, self._at, self._ended = self._at, seen.at, ended
        return None if at is None or seen.at <= at else new / (seen.at - at).total_seconds()


@dataclass(frozen=True)
class Screen:
    overview: LiveView
    analytics: Analytics
    why: Mapping[tuple[str, str], str]
    """Why jobs of a group and task wait, where something keeps them."""
    failed: Sequence[Job]
    """The last jobs that have failed."""
    pace: float | None
    """Ended jobs per second since the last refresh."""
    plain: bool
    height: int | None
    """Lines; None for as many as it takes."""

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        kinds = sorted({*self.analytics.queues, *self.analytics.flows}, key=self._load, reverse=True)
        workers, running = self.overview.workers, self.overview.running
        shown = _shares(self.height, [len(kinds), len(workers), len(running), *filter(None, [len(self.failed)])])
        yield from self._head()
        yield Text()
        yield self._queues(kinds[: shown[0]], width)
        yield from _left_out(len(kinds) - shown[0], "kinds of jobs")
        yield Text()
        yield self._workers(workers[: shown[1]], width)
        yield from _left_out(len(workers) - shown[1], "workers")
        yield Text()
        yield self._running(running[: shown[2]], width)
        yield from _left_out(sum(len(worker.running) for worker in workers) - shown[2], "running jobs")
        if self.failed:
            yield Text()
            yield self._failures(self.failed[: shown[3]], width)

    def _head(self) -> Iterable[Text]:
        overview, report = self.overview, self.analytics
        leader = overview.leader
        who = f"led by {leader.host} (pid {leader.pid}), term {leader.term}" if leader else "NO RECRUITER LEADS"
        yield _line(f"{overview.at:%Y-%m-%d %H:%M:%S} UTC  {who}", "" if leader else "bold red")
        jobs = report.jobs
        counts = (("queued", jobs.queued), ("running", jobs.running), ("postponed", jobs.postponed))
        text = "  ".join(f"{number(count)} {name}" for name, count in counts)
        zombies = f"  {number(jobs.zombies)} zombies" if jobs.zombies else ""
        yield _line(text + zombies + counted_before(report, overview.at), "bold")
        now = "" if self.pace is None else f"{number(self.pace)} a second now, "
        ended = ", ".join(f"{number(count)} {state}" for state, count in sorted(report.ended.items())) or "nothing"
        past = brief((report.until - report.since).total_seconds())
        yield _line(f"ended {now}{number(report.throughput.value)} a minute: {ended} in {past}", "")
        late, took = report.latency, report.execution_time
        yield _line(
            f"latency {brief(late.average)} (95 % {brief(late.p95)})   "
            f"execution time {brief(took.average)} (95 % {brief(took.p95)})",
            "",
        )
        series = [sum(flow.ended.values()) for flow in overview.minutes.values()]
        if any(series):
            line = sparkline(series, plain=self.plain)
            yield _line(f"{line}  {len(series)} minutes, at most {number(max(series))} a minute", "cyan")
        paused = overview.rules.paused
        if (blocked := paused.get(FLEET)) is not None:
            yield _line(f"ALL STARTS ARE BLOCKED by {remark(blocked.by, blocked.reason, blocked.at)}", "bold red")
        if groups := sorted(name.removeprefix("group:") for name in paused if name != FLEET):
            yield _line(f"paused: {', '.join(groups)}", "yellow")

    def _queues(self, kinds: Sequence[tuple[str, str]], width: int) -> Table:
        columns = [
            Column("group/task", fair=20),
            *_numbers("queued", "running"),
            Column("postponed", right=True, rank=2),
            *_numbers("a minute", "failed", "latency", "time"),
            Column("waits because", rank=1, fair=30),
        ]
        rows = []
        for kind in kinds:
            queue = self.analytics.queues.get(kind) or Queue(0, 0, 0, 0)
            counts = {name: number(getattr(queue, name)) for name in ("queued", "running", "postponed")}
            flow = figures(self.analytics.flows.get(kind))
            rows.append({"group/task": "/".join(kind), **counts, **flow, "waits because": self.why.get(kind)})
        return table_of(rows, columns, width)

    def _workers(self, workers: Sequence[RosterEntry], width: int) -> Table:
        columns = [
            Column("worker", fair=20),
            *_numbers("slots", "holds", "runs", "seen"),
            Column("groups", rank=1, fair=16),
            Column("state", fair=10),
        ]
        rows = []
        for entry in workers:
            worker = entry.registration
            counts = {"slots": worker.slots, "holds": worker.holds, "runs": len(entry.running)}
            rows.append(
                {
                    "worker": entry.id,
                    **{name: number(count) for name, count in counts.items()},
                    "seen": self._ago(entry.seen_at),
                    "groups": "all" if worker.groups is None else sorted(worker.groups),
                    "state": entry.state(self.overview.at),
                }
            )
        table = table_of(rows, columns, width)
        for place, row in enumerate(rows):
            table.rows[place].style = "red" if row["state"] == "silent" else None
        return table

    def _running(self, running: Sequence[Running], width: int) -> Table:
        columns = [
            Column("running", fair=24),
            *_numbers("for"),
            Column("task", fair=12),
            Column("worker", rank=1, fair=16),
            Column("progress", fair=20),
        ]
        rows = []
        for job in running:
            progress = f"{bar(job.progress, 12, plain=self.plain)} {job.progress:4.0%} {job.stage or ''}".rstrip()
            facts = {"running": str(job.id), "for": self._ago(job.since), "task": job.task, "worker": job.worker}
            rows.append({**facts, "progress": progress if job.stage or job.progress else None})
        return table_of(rows, columns, width)

    def _failures(self, failed: Sequence[Job], width: int) -> Table:
        columns = [Column("failed", fair=24), *_numbers("ago"), Column("task", fair=12), Column("error", fair=20)]
        rows = []
        for job in failed:
            error = ": ".join(filter(None, (job.error, job.message))) or job.why
            ago = self._ago(job.ended_at or self.overview.at)
            rows.append({"failed": str(job.id), "ago": ago, "task": job.task, "error": error})
        return table_of(rows, columns, width)

    def _ago(self, moment: datetime) -> str:
        return brief(max(0.0, (self.overview.at - moment).total_seconds()))

    def _load(self, kind: tuple[str, str]) -> tuple[float, ...]:
        queue, flow = self.analytics.queues.get(kind), self.analytics.flows.get(kind)
        return (flow.throughput.value if flow else 0.0, queue.queued + queue.running if queue else 0)


def _numbers(*names: str) -> list[Column]:
    return [Column(name, right=True) for name in names]


def _line(text: str, style: str) -> Text:
    return Text(one_line(text), style=style, overflow="ellipsis", no_wrap=True)


def _left_out(count: int, what: str) -> Iterable[Text]:
    if count > 0:
        yield _line(f"… and {number(count)} more {what}", "dim")


def _shares(height: int | None, wanted: list[int]) -> list[int]:
    """Rows for each table: an equal share at least; unused rows go to the next table."""
    if height is None:
        return wanted
    left, shares = max(len(wanted), height - _HEAD_LINES - _LINES_AROUND_A_TABLE * len(wanted)), []
    for place, want in enumerate(wanted):
        later = wanted[place + 1 :]
        fair = left // (len(later) + 1)
        share = min(want, max(fair, left - sum(later)))
        shares.append(share)
        left -= share
    return shares
