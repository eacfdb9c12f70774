"""`recruiter top`: a live screen of throughput, queues, workers, running jobs and the last failures."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from recruiter.app import Recruiter
from recruiter.cli import options as given
from recruiter.cli.options import recruiter_on
from recruiter.cli.output import Page, console, write
from recruiter.cli.screen import Pace, Screen
from recruiter.domain.duration import to_seconds
from recruiter.domain.lane import Lane
from recruiter.domain.search.pages import JobSummary
from recruiter.domain.state import State
from recruiter.domain.statistics import Analytics
from recruiter.errors import StoreUnreachable
from recruiter.views.explain import waiting_reasons
from recruiter.views.overview import overview

_SERIES = timedelta(minutes=30)
_MOST_RUNNING, _MOST_EXPLAINED, _MOST_FAILED = 100, 100, 10
_REST = 4
"""Where a look takes long, so many times as long is waited for the next one: a screen must not keep MongoDB busy."""


def top(*, every: str = "1s", once: bool = False, common: given.TargetOptions = given.TargetOptions()) -> None:
    """Shows throughput, queues, workers, running jobs and the last failures, live. Press q or Ctrl-C to end.

    Parameters
    ----------
    every
        How often to refresh.
    once
        Print the screen once and end; this is the default when the output is no terminal.
    """
    pause = max(0.1, to_seconds(every))
    page = console()
    with recruiter_on(common) as recruiter:
        if once or not page.is_terminal:
            write(page, _look(recruiter, page, Pace(), height=None))
            return
        pace = Pace()
        with _keys() as key, Live(console=page, screen=True, auto_refresh=False) as live:
            while True:
                began = time.monotonic()
                live.update(_look_again(recruiter, page, pace), refresh=True)
                took = time.monotonic() - began
                if key(max(pause, _REST * took)) in ("q", "Q"):
                    return


def _look(recruiter: Recruiter, page: Page, pace: Pace, height: int | None) -> Screen:
    seen, told = overview(recruiter.store, jobs=_MOST_RUNNING, within=_SERIES), recruiter.analytics()
    due = [Lane(*kind) for kind, queue in told.queues.items() if queue.queued]
    reasons = waiting_reasons(recruiter.store, due[:_MOST_EXPLAINED], seen.at)
    why = {(lane.group, lane.task): reason for lane, reason in reasons.items()}
    failed = _failed(recruiter, told)
    return Screen(seen, told, why, failed, pace.since_last(seen), page.options.ascii_only, height)


def _failed(recruiter: Recruiter, told: Analytics) -> Sequence[JobSummary]:
    """The jobs that have failed in the time that the screen is about, the newest first."""
    states = [state for state in (State.FAILED, State.LOST) if told.ended.get(state)]
    if not states:
        return ()
    return recruiter.jobs.list(minimal=True, state=states, ended_since=told.since, limit=_MOST_FAILED).jobs


def _look_again(recruiter: Recruiter, page: Page, pace: Pace) -> RenderableType:
    """A screen that lives on while MongoDB is away."""
    try:
        return _look(recruiter, page, pace, page.height)
    except StoreUnreachable as error:
        return Text(f"{error}\nTrying again. q ends.", style="red")


def _no_key(pause: float) -> str:
    time.sleep(pause)
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Keys as they are pressed, each waited for so many seconds."""
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
