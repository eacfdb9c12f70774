"""`recruiter doctor`: looks at everything, and says what is wrong and what to do."""

from __future__ import annotations

from datetime import timedelta

from rich.console import Console

from recruiter.cli.options import TargetOptions, settings_from
from recruiter.domain.assignment import Registration
from recruiter.domain.duration import humanize
from recruiter.domain.names import CANCELLED_LANE, group_and_task
from recruiter.steps.overdue import overdue
from recruiter.store.database import Store
from recruiter.store.target import Target

_SILENT = timedelta(seconds=15)
_CLOCK = timedelta(seconds=2)


def doctor(*, target: TargetOptions = TargetOptions()) -> int:
    """Checks MongoDB, the leader, the workers and what waits. Exit code 1 when something is wrong."""
    settings = settings_from(target)
    store = Store(Target.parse(settings.target), patience=5.0)
    try:
        findings = _server(store)
        if store.is_prepared():
            findings += [*_leader(store), *_workers(store), *_jobs(store), *_schedulers(store)]
        else:
            findings.append((False, "no process has ever run on this database. Start one: recruiter start all"))
    finally:
        store.close()
    console = Console(highlight=False)
    for well, text in findings:
        console.print(f"[green]ok  [/green] {text}" if well else f"[red]look[/red] {text}", soft_wrap=True)
    return 0 if all(well for well, _ in findings) else 1


Finding = tuple[bool, str]


def _server(store: Store) -> list[Finding]:
    facts = store.check()
    where = (
        f"MongoDB {facts.version} at {facts.address}, replica set {facts.replica_set}, database {store.target.database}"
    )
    offset = abs(facts.clock_offset)
    clock = f"this host's clock is {humanize(offset)} off the server's"
    advice = "" if offset < _CLOCK else "; jobs are not affected, but set the clock (NTP)"
    return [(True, where), (offset < _CLOCK, clock + advice)]


def _leader(store: Store) -> list[Finding]:
    lease = store.leases.read()
    if lease is None or lease.holder is None:
        return [(False, "no recruiter leads: nothing is assigned. Start one: recruiter start recruiter")]
    silent = store.clock.now() - (lease.renewed_at or store.clock.now())
    who = f"the recruiter on {lease.host} (pid {lease.pid}) leads, term {lease.term}, seen {humanize(silent)} ago"
    if silent > _SILENT:
        return [(False, f"{who}: it is gone, and nobody takes over. Start one: recruiter start recruiter")]
    return [(True, who)]


def _workers(store: Store) -> list[Finding]:
    entries = store.roster.entries()
    if not entries:
        return [(False, "no worker is on the roster. Start one: recruiter start worker --bootstrap YOUR_APP")]
    findings = []
    for entry in entries:
        silent = store.clock.now() - entry.seen_at
        worker = entry.registration
        on = "every group" if worker.groups is None else ", ".join(sorted(worker.groups))
        text = (
            f"worker {entry.id}: {worker.slots} slots on {on}, {len(worker.tasks)} tasks, seen {humanize(silent)} ago"
        )
        findings.append((silent < _SILENT, text if silent < _SILENT else f"{text}: silent, will be retired"))
    return findings


def _jobs(store: Store) -> list[Finding]:
    findings: list[Finding] = []
    workers = [entry.registration for entry in store.roster.entries()]
    for lane, count in sorted(store.scheduled.count_by_lane().items()):
        if lane == CANCELLED_LANE:
            continue
        group, task = group_and_task(lane)
        served = any(worker.serves(lane) for worker in workers)
        text = f"{count} jobs of task {task} in group {group}"
        findings.append((served, text if served else f"{text} wait, and {_why_not(workers, group, task)}"))
    for job in store.archived.set_aside(10):
        findings.append((False, f"document {job.id!r} was set aside: {job.reason}"))
    return findings


def _schedulers(store: Store) -> list[Finding]:
    findings: list[Finding] = []
    late = {each.urn: each.told for each in overdue(store, store.clock.now())}
    for scheduler in store.schedulers.all():
        if scheduler.broken:
            findings.append((False, f"scheduler {scheduler.urn} is broken: {scheduler.broken}"))
        elif scheduler.urn in late:
            findings.append((False, f"scheduler {scheduler.urn} {late[scheduler.urn]}: look at its jobs"))
        elif scheduler.paused:
            by, reason = scheduler.paused.by or "somebody", scheduler.paused.reason or "no reason given"
            findings.append((True, f"scheduler {scheduler.urn} was paused by {by}: {reason}"))
    return findings


def _why_not(workers: list[Registration], group: str, task: str) -> str:
    if not any(task in worker.tasks for worker in workers):
        return "no worker knows this task: start one whose --bootstrap defines it"
    return f"no worker that knows it works on this group: start one with --work-on {group}"
