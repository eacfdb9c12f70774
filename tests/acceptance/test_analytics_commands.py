"""`recruiter analytics` and `recruiter top`: what a person sees and what a script can rely on."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from io import StringIO

import pytest
from rich.console import Console

from recruiter import Recruiter
from recruiter.cli.top import Screen
from recruiter.store.database import Store
from recruiter.views.analytics import overview
from tests.acceptance.test_command_line import run
from tests.conftest import Starter, eventually


@pytest.fixture
def recruiter(target: str, store: Store) -> Iterator[Recruiter]:
    """Two jobs have succeeded, one has failed, one waits in another group."""
    with Recruiter(target) as recruiter:

        @recruiter.task(group="mail", name="send_counted")
        def send(to: str) -> None:
            if "@" not in to:
                raise ValueError(f"{to} is no address")

        send.enqueue_many([("a@b.c",), ("b@c.d",), ("nobody",)])
        assert len(recruiter.run_all(send)) == 3
        recruiter.job("unheard_of").in_group("lost").in_background().execute()
        yield recruiter


def rows(said: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.strip()}


def test_top_shows_the_fleet(recruiter: Recruiter, target: str, fleet: Starter) -> None:
    """Given a fleet and jobs, when looked at once, then leader, workers and queues are there."""
    fleet("tests.applications.jobs")

    code, said = run("top", "--once", RECRUITER_TARGET=target)

    assert code == 0
    assert "led by" in said
    assert rows(said)["lost/unheard_of"][:2] == ["1", "0"]
    assert rows(said)["mail/send_counted"][4] == "1"  # failed
    assert re.search(r"^\S+:\d+:\w+ .* works$", said, re.MULTILINE)


def test_top_goes_on_until_q(recruiter: Recruiter, target: str) -> None:
    """Given a real terminal, when new jobs come, then the screen shows them; and q ends it."""
    ours, theirs = pty.openpty()
    top = subprocess.Popen(
        [sys.executable, "-m", "recruiter.cli.main", "top", "--every", "200ms"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "RECRUITER_TARGET": target, "COLUMNS": "100", "LINES": "30", "TERM": "xterm"},
    )
    os.close(theirs)
    seen = b""

    def said(word: bytes) -> bool:
        nonlocal seen
        with suppress(OSError):  # it has ended
            while select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 65536)
        return word in seen

    try:
        eventually(lambda: said(b"lost/unheard_of"), within=30)
        recruiter.job("latecomer").in_background().execute()
        eventually(lambda: said(b"generic/latecomer"), within=30)
        os.write(ours, b"q")
        until = time.monotonic() + 20
        while top.poll() is None and time.monotonic() < until:
            said(b"")
        assert top.returncode == 0
    finally:
        top.kill()
        top.wait()
        os.close(ours)


@pytest.mark.parametrize("height", [24, 30, 50])
def test_the_failures_leave_room_for_the_rest(recruiter: Recruiter, height: int) -> None:
    """Given more failures than lines, when drawn on a terminal, then no line is below its end."""
    (failed,) = recruiter.jobs.list(state="failed", minimal=True).jobs
    seen = overview(recruiter.store, jobs=100, within=timedelta(minutes=30))
    screen = Screen(seen, recruiter.analytics(), {}, [failed] * 100, None, plain=True, height=height)
    page = Console(width=120, height=height, file=StringIO())

    assert len(page.render_lines(screen)) <= height
