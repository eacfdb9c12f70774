"""`recruiter worker …`: who works, and who is to be given nothing."""

from __future__ import annotations

import getpass
from datetime import datetime

from cyclopts import App

from recruiter.cli import options as given
from recruiter.cli.figures import seconds
from recruiter.cli.options import recruiter_on
from recruiter.cli.output import Output, show
from recruiter.domain.observation import SILENT
from recruiter.store.roster import RosterEntry

app = App(name="worker", help="List workers, keep them idle, let them work.")


@app.command(name="list")
def list_(*, common: given.TargetOptions = given.TargetOptions(), output: Output = "table") -> None:
    """The roster: who is there, what each serves, holds and runs, and when it was last seen."""
    with recruiter_on(common) as recruiter:
        now = recruiter.clock.now()
        rows = []
        for entry in recruiter.store.roster.entries():
            worker = entry.registration
            rows.append(
                {
                    "worker": entry.id,
                    "host": entry.host,
                    "pid": entry.pid,
                    "groups": "all" if worker.groups is None else sorted(worker.groups),
                    "slots": worker.slots,
                    "holds": worker.holds,
                    "runs": [
                        f"{run['task']} {run['job']} for {seconds((now - run['since']).total_seconds())}"
                        for run in entry.running
                    ],
                    "state": state_of(entry, now),
                    "seen": f"{max(0.0, (now - entry.seen_at).total_seconds()):.0f} s ago",
                    "resources": worker.resources.described(),
                    "tasks": sorted(worker.tasks),
                    "joined_at": entry.joined_at,
                }
            )
        columns = ("worker", "host", "pid", "groups", "slots", "holds", "state", "seen", "runs")
        least = ("pid", "host", "groups", "holds")
        show(rows, columns, output, empty="No worker is on the roster.", least=least)


def state_of(entry: RosterEntry, now: datetime) -> str:
    """How it is, in words."""
    if now - entry.seen_at > SILENT:
        return "silent"
    if entry.kept_idle is not None:
        by, reason = entry.kept_idle.get("by") or "somebody", entry.kept_idle.get("reason") or "no reason given"
        return f"kept idle by {by}: {reason}"
    return "leaving" if entry.leaving else "works" if entry.registration.ready else "joining"


@app.command
def drain(
    worker: str,
    /,
    *,
    reason: str | None = None,
    by: str | None = None,
    common: given.TargetOptions = given.TargetOptions(),
) -> None:
    """The worker finishes what it holds, and is given no more.

    Parameters
    ----------
    reason
        Why, for whoever wonders at night.
    by
        Who says so (default: you).
    """
    with recruiter_on(common) as recruiter:
        recruiter.controls.keep_idle(worker, by=by or getpass.getuser(), reason=reason)
        print(f"{worker} is given no more jobs. Let it work again with: recruiter worker resume {worker}")


@app.command
def resume(worker: str, /, *, common: given.TargetOptions = given.TargetOptions()) -> None:
    """The worker is given jobs again."""
    with recruiter_on(common) as recruiter:
        recruiter.controls.let_work(worker)
        print(f"{worker} is given jobs again")
