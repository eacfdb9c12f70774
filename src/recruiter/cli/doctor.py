"""`recruiter doctor`, `recruiter health` and `recruiter prepare`: check the fleet, and create what the database needs.

`health` is an answer for probes: quick, and no application is loaded.
"""

from __future__ import annotations

import socket
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from recruiter.cli.options import PATIENCE, TargetOptions, settings_from, target_for
from recruiter.cli.output import Output, console, say, show, write
from recruiter.doctor import Thresholds, examine
from recruiter.doctor.findings import Code, Finding, Level
from recruiter.domain.duration import to_timedelta
from recruiter.errors import InvalidTarget, StoreError
from recruiter.store.database import Store
from recruiter.views.health import Role, health

_SHOWN = {Level.OK: ("ok  ", "green"), Level.NOTE: ("note", "yellow"), Level.PROBLEM: ("look", "bold red")}

_EVERY = "Name every document that cannot be read, not only the first 20 of each collection."
All = Annotated[bool, Parameter(name="--all", negative=(), help=_EVERY)]


def doctor(
    *,
    all_: All = False,
    late: str = "5m",
    target: TargetOptions = TargetOptions(),
    output: Output = "table",
) -> int:
    """Checks MongoDB, the fleet and the jobs, and says what to do. Exit code 1 if a person must act now.

    Parameters
    ----------
    late
        How long a due job may wait for a slot before it is a problem.
    """
    settings = settings_from(target)
    store = Store(target_for(settings), patience=PATIENCE)
    try:
        findings = examine(store, _thresholds(settings.considered_dead_after, to_timedelta(late), all_))
    finally:
        store.close()
    if output == "table":
        for finding in findings:
            _print(finding)
    else:
        rows = [asdict(finding) for finding in findings]
        show(rows, ("level", "about", "code", "text", "todo"), output, empty="There are no findings.")
    return 1 if any(finding.level is Level.PROBLEM for finding in findings) else 0


def _thresholds(silent: timedelta, late: timedelta, all_: bool) -> Thresholds:
    usual = Thresholds(silent=silent, late_job=late)
    return replace(usual, unreadable_told=usual.unreadable_counted) if all_ else usual


def _print(finding: Finding) -> None:
    word, colour = _SHOWN[finding.level]
    page = console()
    code = () if finding.code is Code.OK else ((f" [{finding.code}]", "dim"),)
    write(page, Text.assemble((word, colour), " ", _below(finding.text, 5), *code), soft_wrap=True)
    if finding.todo:
        write(page, Text(f"       → {_below(finding.todo, 9)}", style="dim"), soft_wrap=True)


def _below(text: str, blanks: int) -> str:
    """With its further lines below the first, so that none can look like a finding of its own."""
    return f"\n{' ' * blanks}".join(text.splitlines())


def prepare(*, target: TargetOptions = TargetOptions()) -> None:
    """Creates the collections, indexes and validators. Processes do it too when they start, with enough rights."""
    store = Store(target_for(settings_from(target)), patience=PATIENCE)
    try:
        store.check()
        made = store.prepare(insist=True)
        for difference in made:
            say(f"made: {difference}")
        say(f"database {store.target.database} {'is' if made else 'was'} prepared")
    finally:
        store.close()


_PATIENCE = 2.0
"""Seconds to wait for MongoDB: a probe that is late has failed."""


def health_(
    *,
    role: Annotated[list[Role] | None, Parameter(negative=())] = None,
    host: str | None = None,
    pid: int | None = None,
    live: bool = False,
    considered_dead_after: str | None = None,
    target: TargetOptions = TargetOptions(),
) -> int:
    """Checks that MongoDB accepts writes and that processes of this host are alive. Exit code 0, 1, or 4 without
    MongoDB.

    Parameters
    ----------
    role
        Also check for a live process of this role; may be repeated.
    host
        The host of the processes (default: this host).
    pid
        Only the process with this id.
    live
        For liveness probes: exit code 0 also when MongoDB does not answer, or cannot be used.
    considered_dead_after
        How long a recruiter or a cleaner may be silent (default 15s). A worker declares its own time.
    """
    settings = settings_from(target, _HealthOptions(host, considered_dead_after))
    store = Store(target_for(settings), patience=_PATIENCE)
    try:
        facts = store.check()
        here = settings.host or socket.gethostname()
        answers = [health(store, each, here, pid, settings.considered_dead_after) for each in role or ()]
    except StoreError as error:
        if not live or isinstance(error, InvalidTarget):
            raise
        say(f"{error}. The state of the process is unknown, so it is taken to be alive", stderr=True)
        return 0
    finally:
        store.close()
    say(f"MongoDB {facts.version} at {facts.address} accepts writes")
    for answer in answers:
        say(answer.text, stderr=not answer.well)
    return 0 if all(answer.well for answer in answers) else 1


class _HealthOptions:
    def __init__(self, host: str | None, considered_dead_after: str | None) -> None:
        self.host = host
        self.considered_dead_after = considered_dead_after
