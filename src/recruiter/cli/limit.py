"""`recruiter limit …`: how many may run at once, or start in a time."""

from __future__ import annotations

import getpass
from contextlib import nullcontext
from typing import Any

from cyclopts import App

from recruiter.cli import options as given
from recruiter.cli.columns import Column
from recruiter.cli.filters import noting_new_names
from recruiter.cli.options import recruiter_on
from recruiter.cli.output import Output, show
from recruiter.domain.limits import Limit

_COLUMNS = (Column("subject", fair=30, whole=True), Column("at_once", right=True), Column("rate", right=True))
_RESOURCES = (
    Column("resource", fair=20, whole=True),
    Column("host", fair=24, whole=True),
    *(Column(name, right=True) for name in ("limit", "used", "available")),
)

app = App(name="limit", help="Limit how many jobs run at once, or start in a time.")


@app.command(name="list")
def list_(*, common: given.TargetOptions = given.TargetOptions(), output: Output = "table") -> None:
    """All limits. How much of each resource is in use says `recruiter limit resources`."""
    with recruiter_on(common) as recruiter:
        rows = [_row(limit) for limit in recruiter.controls.limits()]
        show(rows, _COLUMNS, output, empty="There are no limits.")


@app.command(name="set")
def set_(
    subject: str,
    at_once: str | None = None,
    /,
    *,
    count: int | None = None,
    per: str | None = None,
    floating: bool = False,
    common: given.TargetOptions = given.TargetOptions(),
) -> None:
    """Sets a limit, or changes it: `recruiter limit set task:resize 2`.

    Parameters
    ----------
    subject
        task:NAME, group:NAME, key:KIND (each key separately) or resource:NAME (the whole fleet).
    at_once
        How many jobs at once; of a resource, how much of it.
    count
        How many may start in the time that --per says.
    per
        For --count: 1m, "1 hour", …
    floating
        The resource belongs to the fleet and not to hosts, as a licence does.
    """
    with recruiter_on(common) as recruiter:
        by = getpass.getuser()
        kind, _, name = subject.partition(":")
        with noting_new_names(recruiter, kind, name) if kind in ("group", "task") else nullcontext():
            limit = recruiter.controls.set_limit(subject, at_once, count=count, per=per, floating=floating, by=by)
            row = _row(limit)
            told = [name for name in ("subject", "at_once", "rate") if row[name] is not None]
            print(", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in told))


@app.command
def remove(subject: str, /, *, common: given.TargetOptions = given.TargetOptions()) -> None:
    """Removes a limit."""
    with recruiter_on(common) as recruiter:
        recruiter.controls.remove_limit(subject)
        print(f"{subject} is not limited any more")


@app.command
def resources(*, common: given.TargetOptions = given.TargetOptions(), output: Output = "table") -> None:
    """What there is of each resource, and how much of it is in use."""
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
        show(rows, _RESOURCES, output, empty="No worker has any resources.")


def _row(limit: Limit) -> dict[str, Any]:
    rate = str(limit.rate) if limit.rate is not None else None
    return {"subject": limit.subject, "at_once": limit.at_once, "rate": rate, "floating": limit.floating}
