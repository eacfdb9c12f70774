"""Checks of the fleet: the leader, the other recruiters, workers, cleaners; and their clocks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from recruiter.doctor.findings import Code, Finding, Thresholds, note, ok, problem
from recruiter.domain.duration import elapsed
from recruiter.domain.text import plural, remark
from recruiter.store.collections.leases import Lease
from recruiter.store.database import ServerFacts, Store
from recruiter.store.roster_fields import RosterEntry

_START_RECRUITER = "Start one: recruiter start recruiter"


def _leader(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    lease, now = store.leases.read(), store.clock.now()
    if lease is None or lease.holder is None:
        yield problem(Code.NO_LEADER, "there is no leader: no job is assigned to any worker", _START_RECRUITER)
        return
    silent = now - (lease.renewed_at or now)
    who = f"the recruiter on {lease.host} (pid {lease.pid})"
    if silent > thresholds.silent:
        text = f"{who} led and was last seen {elapsed(silent)} ago; no other recruiter has taken over"
        yield problem(Code.NO_LEADER, text, _START_RECRUITER)
        return
    since = f" for {elapsed(now - lease.since)}" if lease.since is not None else ""
    yield ok(f"{who} leads{since}, term {lease.term}; {_standing_by(store, lease)}")
    yield from _takeovers(lease, now)


def _standing_by(store: Store, lease: Lease) -> str:
    others = [
        entry
        for entry in store.processes.entries()
        if entry.role == "recruiter"
        and (entry.host, entry.pid) != (lease.host, lease.pid)
        and store.clock.now() - entry.seen_at <= timedelta(seconds=8)  # it shows life every 5 seconds
    ]
    return f"{len(others)} stand by" if len(others) > 1 else "1 stands by" if others else "no other recruiter stands by"


def _takeovers(lease: Lease, now: datetime) -> Iterator[Finding]:
    lately = [moment for moment in lease.takeovers if now - moment <= timedelta(minutes=10)]
    if len(lately) >= 5:
        yield problem(
            Code.TAKEOVERS,
            f"the leader has changed {len(lately)} times in the last 10m: "
            "leaders were without MongoDB, or without processor time, for longer than the lease",
            "Look at the recruiters' logs, and at the load of MongoDB and of their hosts; or raise --lease-time",
        )


def _workers(store: Store, _: ServerFacts, __: Thresholds) -> Iterator[Finding]:
    entries = store.roster.entries()
    if not entries:
        yield problem(
            Code.NO_WORKER,
            "no worker is on the roster: no job runs",
            "Start one: recruiter start worker --bootstrap YOUR_APP",
        )
    for entry in entries:
        yield _worker(entry, store.clock.now())


def _worker(entry: RosterEntry, now: datetime) -> Finding:
    worker, silent = entry.registration, now - entry.seen_at
    on = "every group" if worker.groups is None else ", ".join(sorted(worker.groups))
    who = f"worker {entry.id}"
    if entry.is_silent(now):
        text = f"{who} was last seen {elapsed(silent)} ago, and holds {plural(worker.holds, 'job')}"
        todo = "The leader or a cleaner retires it and frees its jobs. If it stays, start one of them"
        return problem(Code.SILENT_WORKER, text, todo)
    if entry.drained is not None:
        text = f"{who} was drained by {remark(entry.drained.get('by'), entry.drained.get('reason'))}"
        return note(Code.DRAINED_WORKER, text, f"Resume it: recruiter worker resume {entry.id}")
    if entry.leaving:
        jobs = plural(worker.holds, "job")
        return note(Code.LEAVING_WORKER, f"{who} is stopping and finishes {jobs}", "It leaves by itself")
    offers = f"{plural(worker.slots, 'slot')} on {on}, {plural(len(worker.tasks), 'task')}"
    text = f"{who}: {offers}, seen {elapsed(silent)} ago"
    return ok(text)


def _cleaner(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    now = store.clock.now()
    cleaners = [entry for entry in store.processes.entries() if entry.role == "cleaner"]
    seen = [entry for entry in cleaners if now - entry.seen_at <= thresholds.silent]
    if seen:
        yield ok(f"the cleaner on {seen[0].host} (pid {seen[0].pid}) keeps the archive small")
    else:
        text = "no cleaner runs: ended jobs are never removed"
        yield note(Code.NO_CLEANER, text, "Start one: recruiter start cleaner")


def _clocks(store: Store, facts: ServerFacts, _: Thresholds) -> Iterator[Finding]:
    """Hosts with a wrong clock. It does not delay jobs, because all processes use the server's clock."""
    measured = [(entry.host, entry.clock_offset) for entry in store.processes.entries()]
    measured += [(entry.host, entry.clock_offset) for entry in store.roster.entries()]
    offsets = {host: timedelta(seconds=offset) for host, offset in measured if offset is not None}
    offsets["this host"] = facts.clock_offset
    wrong = {host: offset for host, offset in offsets.items() if abs(offset) > timedelta(seconds=2)}
    for host, offset in wrong.items():
        which = "behind" if offset > timedelta() else "ahead of"
        text = f"the clock of {host} is {elapsed(abs(offset))} {which} the server's"
        todo = "Set it with NTP. Jobs run on time, but times in logs and results are wrong"
        yield note(Code.CLOCK, text, todo)
    if not wrong:
        yield ok(
            f"the clock of this host agrees with the server's; {plural(len(offsets) - 1, 'other clock')} checked",
        )


CHECKS = (_leader, _workers, _cleaner, _clocks)
