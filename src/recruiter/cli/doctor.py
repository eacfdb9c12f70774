"""`recruiter doctor` and `recruiter prepare`: check the fleet, and create the collections of the database."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from recruiter.cli.options import PATIENCE_SECONDS, ReportOptions, settings_from, target_for
from recruiter.cli.output import console, say, show, write
from recruiter.doctor import Thresholds, examine
from recruiter.doctor.findings import Code, Finding, Level
from recruiter.domain.duration import to_timedelta
from recruiter.store.database import Store

_COLOURS = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "bold red"}

_EVERY = "Name every document that cannot be read, not only the first 20 of each collection."
All = Annotated[bool, Parameter(name="--all", negative=(), help=_EVERY)]


def doctor(*, all_: All = False, late: str = "5m", common: ReportOptions = ReportOptions()) -> int:
    """`recruiter doctor`.

    Args:
        late: How long a due job may wait for a slot before it is a problem.
    """
    settings = settings_from(common)
    thresholds = Thresholds(silent=settings.considered_dead_after, late_job=to_timedelta(late))
    if all_:
        thresholds = replace(thresholds, unreadable_told=thresholds.unreadable_counted)
    with closing(Store(target_for(settings), patience=PATIENCE_SECONDS)) as store:
        findings = examine(store, thresholds)
    if common.output == "table":
        for finding in findings:
            _print(finding)
    else:
        rows = [asdict(finding) for finding in findings]
        show(rows, ("level", "about", "code", "text", "todo"), common.output, empty="There are no findings.")
    return 1 if any(finding.level is Level.PROBLEM for finding in findings) else 0


def _print(finding: Finding) -> None:
    page = console()
    level = (f"{finding.level:7} ", _COLOURS[finding.level])
    code = () if finding.code is Code.OK else ((f" [{finding.code}]", "dim"),)
    write(page, Text.assemble(level, _below(finding.text, 8), *code), soft_wrap=True)
    if finding.todo:
        write(page, Text(f"          → {_below(finding.todo, 12)}", style="dim"), soft_wrap=True)


def _below(text: str, blanks: int) -> str:
    """Indents further lines, so that none can look like another finding."""
    return f"\n{' ' * blanks}".join(text.splitlines())


def prepare(*, common: ReportOptions = ReportOptions()) -> None:
    """`recruiter prepare`."""
    with closing(Store(target_for(settings_from(common)), patience=PATIENCE_SECONDS)) as store:
        store.reach()
        made = store.prepare(insist=True)
        if common.output == "table":
            for difference in made:
                say(f"made: {difference}")
        text = f"database {store.target.database} {'is' if made else 'was'} prepared"
        common.report(text, {"database": store.target.database, "made": list(map(str, made))})
