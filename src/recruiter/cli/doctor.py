"""`recruiter doctor` and `recruiter prepare`: check the database and the fleet, and create what the database needs."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from recruiter.cli.options import PATIENCE, TargetOptions, settings_from
from recruiter.cli.output import Output, console, say, show, write
from recruiter.doctor import Thresholds, examine
from recruiter.doctor.findings import Finding, Level
from recruiter.store.database import Store
from recruiter.store.target import Target

_SHOWN = {Level.OK: ("ok  ", "green"), Level.NOTE: ("note", "yellow"), Level.PROBLEM: ("look", "bold red")}

_EVERY = "Name every document that cannot be read, not only the first 20 of each collection."
All = Annotated[bool, Parameter(name="--all", negative=(), help=_EVERY)]


def doctor(*, all_: All = False, target: TargetOptions = TargetOptions(), output: Output = "table") -> int:
    """Checks MongoDB, the fleet and the waiting jobs, and says what to do. Exit code 1 if there is a problem."""
    settings = settings_from(target)
    store = Store(Target.parse(settings.target), patience=PATIENCE)
    try:
        findings = examine(store, _thresholds(settings.considered_dead_after, all_))
    finally:
        store.close()
    if output == "table":
        for finding in findings:
            _print(finding)
    else:
        rows = [asdict(finding) for finding in findings]
        show(rows, ("level", "about", "text", "todo"), output, empty="There are no findings.")
    return 1 if any(finding.level is Level.PROBLEM for finding in findings) else 0


def _thresholds(silent: timedelta, all_: bool) -> Thresholds:
    usual = Thresholds(silent=silent)
    return replace(usual, unreadable_told=usual.unreadable_counted) if all_ else usual


def _print(finding: Finding) -> None:
    word, colour = _SHOWN[finding.level]
    page = console()
    write(page, Text.assemble((word, colour), " ", _below(finding.text, 5)), soft_wrap=True)
    if finding.todo:
        write(page, Text(f"       → {_below(finding.todo, 9)}", style="dim"), soft_wrap=True)


def _below(text: str, blanks: int) -> str:
    """With its further lines below the first, so that none can look like a finding of its own."""
    return f"\n{' ' * blanks}".join(text.splitlines())


def prepare(*, target: TargetOptions = TargetOptions()) -> None:
    """Creates the collections, indexes and validators. Processes do it too when they start, with enough rights."""
    store = Store(Target.parse(settings_from(target).target), patience=PATIENCE)
    try:
        store.check()
        made = store.prepare(insist=True)
        for difference in made:
            say(f"made: {difference}")
        say(f"database {store.target.database} {'is' if made else 'was'} prepared")
    finally:
        store.close()
