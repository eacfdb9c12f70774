"""`recruiter scheduler …`: the repeatable jobs, listed and controlled."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from cyclopts import App

from recruiter.cli.options import ApplicationChangeOptions, ApplicationReportOptions, Count, Yes, application_recruiter
from recruiter.cli.output import Column, ask, choose, show
from recruiter.domain.policy_registry import policy_text
from recruiter.domain.schedule.scheduler import Scheduler
from recruiter.domain.text import plural, remark
from recruiter.errors import UnreadableDocument

app = App(name="scheduler")

_COLUMNS = (
    Column("urn", fair=20, whole=True),
    Column("schedule", rank=1, fair=24),
    Column("next"),
    Column("state", fair=10),
    Column("task", rank=2, fair=16),
    Column("last", rank=3),
    Column("made", rank=4, right=True),
    Column("skipped", rank=5, right=True),
)


@app.command(name="list")
def list_(*, common: ApplicationReportOptions = ApplicationReportOptions()) -> None:
    """Lists all schedulers, with their schedule, their next and their last run."""
    with application_recruiter(common) as recruiter:
        found = recruiter.store.schedulers.all()
        rows = [_row(scheduler) for scheduler in found]
        rows += [{"urn": document.id, "state": f"unreadable: {document.reason}"} for document in found.unreadable]
        show(rows, _COLUMNS, common.output, empty="There are no schedulers.")


@app.command(name="next")
def next_(urn: str, /, *, count: Count = 5, common: ApplicationReportOptions = ApplicationReportOptions()) -> None:
    """Shows the next runs of a scheduler, in the time zone of its schedule or of this computer.

    Args:
        count: How many runs to show.
    """
    with application_recruiter(common) as recruiter:
        handle = recruiter.scheduler(urn)
        moments, zone = handle.next_runs(count), _zone(handle.find())
        if common.output == "table":
            runs = [{"run": _local(moment, zone), "UTC": moment} for moment in moments]
        else:
            runs = [{"urn": urn, "run": moment, "local": moment.astimezone(zone).isoformat()} for moment in moments]
        show(runs, ("run", "UTC"), common.output, empty=f"Scheduler {urn} will not run again.")


@app.command
def pause(urn: str, /, *, common: ApplicationChangeOptions = ApplicationChangeOptions()) -> None:
    """Pauses a scheduler: it creates no jobs until it is resumed."""
    with application_recruiter(common) as recruiter:
        recruiter.scheduler(urn).pause(by=common.author, reason=common.reason)
        text = f"scheduler {urn} is paused. Resume it with: recruiter scheduler resume {urn}"
        common.report(text, {"urn": urn, "paused": True})


@app.command
def resume(urn: str, /, *, common: ApplicationReportOptions = ApplicationReportOptions()) -> None:
    """Resumes a scheduler with its next occurrence."""
    with application_recruiter(common) as recruiter:
        scheduler = recruiter.scheduler(urn)
        scheduler.resume()
        runs = scheduler.next_runs(1)
        next_run = f"; it runs next at {_local(runs[0], _zone(scheduler.find()))}" if runs else ""
        facts = {"urn": urn, "paused": False, "next_run": runs[0] if runs else None}
        common.report(f"scheduler {urn} is resumed{next_run}", facts)


@app.command
def run(urn: str, /, *, common: ApplicationReportOptions = ApplicationReportOptions()) -> None:
    """Creates an extra job of a scheduler now."""
    with application_recruiter(common) as recruiter:
        made = recruiter.scheduler(urn).run_now().id
        common.report(f"job {made} will run as soon as a worker is free", {"urn": urn, "id": made})


@app.command
def remove(
    urn: str | None = None,
    /,
    *,
    yes: Yes = False,
    common: ApplicationReportOptions = ApplicationReportOptions(),
) -> int:
    """Removes a scheduler, and cancels its jobs that have not ended.

    Args:
        urn: The urn of the scheduler; without it you choose from a list.
    """
    with application_recruiter(common) as recruiter:
        urns = [scheduler.urn for scheduler in recruiter.schedulers()] if urn is None else []
        if urn is None and not urns:
            common.report("There are no schedulers.", {"removed": None})
            return 0
        urn = choose("Which scheduler do you want to remove?", urns) if urn is None else urn
        if urn is None:
            common.report("Nothing was removed.", {"removed": None})
            return 1
        scheduler = recruiter.scheduler(urn)
        try:
            row = _row(scheduler.find())
            what = f"task {row['task']}, {row['schedule']}"
        except UnreadableDocument as error:
            what = str(error)
        waiting = len(scheduler.waiting())
        cancelled = f"{plural(waiting, 'waiting or running job')} will be cancelled"
        if not ask(f"{urn}: {what}; {cancelled}. Remove it?", yes):
            common.report("Nothing was removed.", {"removed": None})
            return 1
        scheduler.remove()
        common.report(f"scheduler {urn} is removed.", {"removed": urn, "cancelled": waiting})
        return 0


def _zone(scheduler: Scheduler) -> ZoneInfo | None:
    """The time zone of its schedule; None for this computer's."""
    parameters = scheduler.schedule.get("parameters")
    name = parameters.get("tz") if isinstance(parameters, dict) else None
    try:
        return ZoneInfo(name) if isinstance(name, str) else None
    except (ValueError, OSError):  # there is no such zone
        return None


def _local(moment: datetime, zone: ZoneInfo | None) -> str:
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def _row(scheduler: Scheduler) -> dict[str, Any]:
    paused = scheduler.paused
    state = f"paused by {remark(paused.by, paused.reason)}" if paused else "active"
    if scheduler.broken:
        state = f"broken: {scheduler.broken}"
    return {
        "urn": scheduler.urn,
        "task": scheduler.template.task,
        "schedule": policy_text(scheduler.schedule),
        "next": None if paused else scheduler.next_at,
        "last": scheduler.last_at,
        "made": scheduler.made,
        "skipped": scheduler.skipped,
        "state": state,
        "group": scheduler.template.group,
        "overlap": scheduler.overlap.value,
        "late": scheduler.late.value,
        "window": scheduler.window,
        "must_succeed_within": scheduler.must_succeed_within,
        "succeeded_at": scheduler.succeeded_at,
    }
