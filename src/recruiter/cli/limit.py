"""`recruiter limit …`: limits how many jobs run concurrently, or start in a period."""

from __future__ import annotations

import getpass
from contextlib import nullcontext
from typing import Any

from cyclopts import App

from recruiter.cli.options import ReportOptions, noting_new_names, recruiter_on
from recruiter.cli.output import Column, show
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.rules import Rules

_COLUMNS = (
    Column("subject", fair=30, whole=True),
    Column("at_once", right=True),
    Column("rate", right=True),
    Column("source", fair=24),
)
_RESOURCES = (
    Column("resource", fair=20, whole=True),
    Column("host", fair=24, whole=True),
    *(Column(name, right=True) for name in ("limit", "used", "available")),
)

app = App(name="limit")


@app.command(name="list")
def list_(*, common: ReportOptions = ReportOptions()) -> None:
    """Lists all limits, and whether the application declares them or a person has set them.

    `recruiter limit resources` shows how much of each resource is in use.
    """
    with recruiter_on(common) as recruiter:
        rules = recruiter.controls.rules()
        rows = [_row(limit) | _source(limit.subject, rules) for limit in rules.limits]
        show(rows, _COLUMNS, common.output, empty="There are no limits.")


@app.command(name="set")
def set_(
    subject: str,
    at_once: str | None = None,
    /,
    *,
    count: int | None = None,
    per: str | None = None,
    floating: bool = False,
    common: ReportOptions = ReportOptions(),
) -> None:
    """Sets a limit, or changes it: `recruiter limit set task:resize 2`.

    Args:
        subject: task:NAME, group:NAME, key:KIND or key:TASK/KIND (each key separately), or resource:NAME (the whole
            fleet).
        at_once: Maximum number of running jobs; for a resource, the amount of it that may be in use.
        count: Maximum number of starts in the period --per.
        per: For --count: 1m, "1 hour", …
        floating: The resource belongs to the whole fleet and not to a host, like a licence.
    """
    with recruiter_on(common) as recruiter:
        by = getpass.getuser()
        kind, _, name = subject.partition(":")
        with noting_new_names(recruiter, kind, name) if kind in ("group", "task") else nullcontext():
            limit = recruiter.controls.set_limit(subject, at_once, count=count, per=per, floating=floating, by=by)
            row = _row(limit)
            names = [name for name in ("subject", "at_once", "rate") if row[name] is not None]
            common.report(", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in names), row)


@app.command
def remove(subject: str, /, *, common: ReportOptions = ReportOptions()) -> None:
    """Removes a limit."""
    with recruiter_on(common) as recruiter:
        recruiter.controls.remove_limit(subject)
        declared = recruiter.controls.rules().declared.get(subject)
        again = f"has the limit of the application again: {declared}" if declared is not None else ""
        facts = {"removed": subject, "declared": None if declared is None else _row(declared)}
        common.report(f"{subject} {again or 'has no limit now'}", facts)


@app.command
def resources(*, common: ReportOptions = ReportOptions()) -> None:
    """Shows how much of each resource there is, and how much is in use."""
    with recruiter_on(common) as recruiter:
        rows = [
            {
                "resource": use.resource,
                "host": use.host or "(fleet)",
                "limit": use.limit,
                "used": use.used,
                "available": use.available,
            }
            for use in recruiter.controls.resources()
        ]
        show(rows, _RESOURCES, common.output, empty="No worker has any resources.")


def _source(subject: str, rules: Rules) -> dict[str, Any]:
    """Whether the application declares the limit or a person has set it; then also the declared limit."""
    declared = rules.declared.get(subject)
    described = None if declared is None else str(declared)
    return {"source": rules.source(subject), "set_by": rules.set_by.get(subject), "declared": described}


def _row(limit: Limit) -> dict[str, Any]:
    rate = str(limit.rate) if limit.rate is not None else None
    return {"subject": limit.subject, "at_once": limit.at_once, "rate": rate, "floating": limit.floating}
