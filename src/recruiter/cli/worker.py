"""`recruiter worker …`: workers, listed, drained and resumed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from cyclopts import App

from recruiter.cli.options import ChangeOptions, ReportOptions, recruiter_on
from recruiter.cli.output import Column, show
from recruiter.cli.records import whole
from recruiter.domain.text import remark
from recruiter.store.roster_fields import RosterEntry

app = App(name="worker")

_COLUMNS = (
    Column("worker", fair=24, whole=True),
    Column("state", fair=20),
    Column("slots", right=True),
    Column("free", right=True),
    Column("runs", rank=1, fair=24),
    Column("holds", rank=4, right=True),
    Column("seen", rank=2),
    Column("groups", rank=3, fair=16),
    Column("host", rank=6, fair=16),
    Column("pid", rank=7, right=True),
    Column("joined_at", rank=8),
)


@app.command(name="list")
def list_(*, common: ReportOptions = ReportOptions()) -> None:
    """Lists the workers on the roster: their groups, slots and jobs, and when each was last seen."""
    with recruiter_on(common) as recruiter:
        now, entries = recruiter.clock.now(), recruiter.store.roster.entries()
        rows = [_record(entry, now) if common.output != "table" else _row(entry, now) for entry in entries]
        show(rows, _COLUMNS, common.output, empty="No worker is on the roster.")


def _record(entry: RosterEntry, now: datetime) -> dict[str, Any]:
    """A worker for scripts."""
    worker = entry.registration
    takes_jobs = worker.ready and not worker.draining
    return {
        "worker": entry.id,
        "host": entry.host,
        "pid": entry.pid,
        "state": entry.state(now),
        "groups": None if worker.groups is None else sorted(worker.groups),
        "tasks": sorted(worker.tasks),
        "slots": worker.slots,
        "free": max(0, worker.slots - worker.holds) if takes_jobs else 0,
        "holds": worker.holds,
        "runs": [{"job": run["job"], "task": run["task"], "since": run["since"]} for run in entry.running],
        "resources": worker.resources.amounts(),
        "drained": entry.drained,
        "joined_at": entry.joined_at,
        "seen_at": entry.seen_at,
    }


def _row(entry: RosterEntry, now: datetime) -> dict[str, Any]:
    """A worker for people: the record with groups, jobs and times in words."""
    groups, state, why = entry.registration.groups, entry.state(now), entry.drained
    runs = (f"{run['task']} for {whole(now - run['since'])}, {run['job']}" for run in entry.running)
    return {
        **_record(entry, now),
        "groups": "all" if groups is None else sorted(groups),
        "runs": "; ".join(runs),
        "seen": f"{whole(now - entry.seen_at)} ago",
        "state": f"drained by {remark(why.get('by'), why.get('reason'))}" if state == "drained" and why else state,
    }


@app.command
def drain(worker: str, /, *, common: ChangeOptions = ChangeOptions()) -> None:
    """Drains a worker: it finishes the jobs it holds and gets no new ones."""
    with recruiter_on(common) as recruiter:
        recruiter.controls.drain_worker(worker, by=common.author, reason=common.reason)
        text = f"worker {worker} gets no new jobs. Resume it with: recruiter worker resume {worker}"
        common.report(text, {"worker": worker, "drained": True})


@app.command
def resume(worker: str, /, *, common: ReportOptions = ReportOptions()) -> None:
    """Resumes a worker: it gets jobs again."""
    with recruiter_on(common) as recruiter:
        recruiter.controls.resume_worker(worker)
        common.report(f"worker {worker} gets jobs again", {"worker": worker, "drained": False})
