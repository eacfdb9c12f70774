"""Checks of jobs: waiting jobs that cannot run, paused groups, jobs set aside, schedulers, unreadable documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from recruiter.doctor.findings import Finding, Thresholds, note, ok, problem
from recruiter.domain.duration import humanize
from recruiter.domain.lane import Lane
from recruiter.domain.names import ASIDE, id_told
from recruiter.domain.planning.limits import AtLimit, Reason
from recruiter.domain.planning.reasons import NeverFits, Unserved
from recruiter.domain.planning.why_waiting import Circumstances
from recruiter.domain.schedule.scheduler import Scheduler
from recruiter.domain.text import head, plural, remark
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import StoreUnreachable
from recruiter.store.collections.limits import FLEET, Rules
from recruiter.store.database import ServerFacts, Store
from recruiter.views.health import last_success

_LONGEST_REASON = 200


def _lanes(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    rules = store.limits.read()
    waiting = _waiting(store, thresholds)
    facts = Circumstances(store.roster.read(), store.roster.held(), rules.limits, rules.starts, store.clock.now())
    told = 0
    for lane, count in sorted(waiting.items(), key=lambda item: str(item[0])):
        reason = facts.why_waiting(lane) if rules.pauses(lane.group) is None else None
        finding = _judged(lane, count, reason) if reason is not None else None
        if finding is not None:
            told += 1
            if told <= thresholds.lanes_told:
                yield finding
    if told > thresholds.lanes_told:
        more = f"jobs of {told - thresholds.lanes_told} more lanes cannot run either"
        yield problem("jobs", more, "recruiter group list shows the groups")
    if not told and not rules.paused:
        jobs = _counted(waiting.values(), "job waits or runs", "jobs wait or run")
        yield ok("jobs", f"{jobs}; nothing blocks the queue")
    yield from _pauses(rules, waiting)


def _counted(counts: Iterable[int | None], one: str, several: str) -> str:
    counts = list(counts)
    return f"many {several}" if None in counts else plural(sum(filter(None, counts)), one, several)


def _waiting(store: Store, thresholds: Thresholds) -> dict[Lane, int | None]:
    """The lanes that have jobs, whatever they are counted by, and how many; None when counting took too long."""
    counts: Mapping[str, int | None]
    try:
        counts = store.scheduled.count_by_lane(thresholds.counting)
    except StoreUnreachable:
        counts = dict.fromkeys(store.scheduled.lanes())
    kinds: dict[Lane, int | None] = {}
    for text, count in counts.items():
        if text not in ASIDE:
            lane = Lane.parse(text)._replace(key=None)
            before = kinds.get(lane, 0)
            kinds[lane] = None if before is None or count is None else before + count
    return kinds


def _judged(lane: Lane, count: int | None, reason: Reason) -> Finding | None:
    """None for what only waits its turn."""
    jobs = f"{'jobs' if count is None else plural(count, 'job')} of task {lane.task}"
    who = f"{jobs} in group {lane.group}"
    match reason:
        case Unserved():
            todo = reason.todo or "Resume them (recruiter worker resume WORKER), or start others"
            return problem("jobs", f"{who} cannot run: {reason.text}", todo[:1].upper() + todo[1:])
        case NeverFits():
            todo = (
                "Start a worker on a host that has it, declare what a host has (--resources), or let the jobs need less"
            )
            return problem("jobs", f"{who} can never run: each {reason}", todo)
        case AtLimit(held=0):
            return note("jobs", f"{who}: none starts, {reason}", f"Allow some: recruiter limit set {reason.bucket} 1")
        case _:
            return None


def _pauses(rules: Rules, waiting: Mapping[Lane, int | None]) -> Iterator[Finding]:
    for name, pause in sorted(rules.paused.items()):
        if name == FLEET:
            jobs = _counted(waiting.values(), "job waits or runs", "jobs wait or run")
            text = f"all starts are blocked, and {jobs}; blocked by {remark(pause.by, pause.reason, pause.at)}"
            yield (problem if waiting else note)("jobs", text, "Allow them: recruiter group resume --all")
        else:
            group = name.removeprefix("group:")
            jobs = _counted((count for lane, count in waiting.items() if lane.group == group), "job waits", "jobs wait")
            text = f"group {group} is paused, and {jobs}; paused by {remark(pause.by, pause.reason)}"
            yield note("jobs", text, f"Let them start: recruiter group resume {group}")


def _set_aside(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    since = store.clock.now() - thresholds.set_aside
    for job in store.archived.set_aside(thresholds.set_aside_told, since):
        why = head(job.reason or str(job.why), _LONGEST_REASON)
        text = f"job {id_told(job.id)} was set aside at {job.archived_at:%Y-%m-%d %H:%M:%S} UTC: {why}"
        todo = (
            f"See recruiter job show {job.id}, correct its producer, then run it again: recruiter job recover {job.id}"
        )
        yield problem("jobs", text, todo)


def _inbox(store: Store, _: ServerFacts, __: Thresholds) -> Iterator[Finding]:
    count = store.scheduled.count_inbox()
    if count:
        documents = plural(count, "document of another program waits", "documents of other programs wait")
        text = f"{documents} to be adopted, or {'is' if count == 1 else 'are'} locked by its program"
        yield note("jobs", text, "A leader adopts them within seconds. If their number grows, see its log")


CHECKS = (_lanes, _inbox, _set_aside)


def _schedulers(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    schedulers, well = store.schedulers.all(), 0
    for scheduler in schedulers:
        finding = _judged_scheduler(store, scheduler, store.clock.now(), thresholds)
        if finding is not None:
            yield finding
        else:
            well += 1
    if well:
        yield ok("schedulers", f"{well} of {len(schedulers)} schedulers are on time")


def _judged_scheduler(store: Store, scheduler: Scheduler, now: datetime, thresholds: Thresholds) -> Finding | None:
    who = f"scheduler {scheduler.urn}"
    if scheduler.broken:
        todo = f"Correct its policy or its job and create it again; or: recruiter scheduler remove {scheduler.urn}"
        return problem("schedulers", f"{who} is broken and makes no jobs: {scheduler.broken}", todo)
    if scheduler.paused:
        todo = f"Resume it: recruiter scheduler resume {scheduler.urn}"
        return note("schedulers", f"{who} was paused by {remark(scheduler.paused.by, scheduler.paused.reason)}", todo)
    if scheduler.next_at is not None and now - scheduler.next_at > thresholds.late:
        late = humanize(now.replace(microsecond=0) - scheduler.next_at.replace(microsecond=0))
        return problem(
            "schedulers", f"{who} is {late} late", "Only a leader makes its jobs: see the finding about the leader"
        )
    told = scheduler.broken_promise(last_success(store, scheduler), now)
    if told is not None:
        todo = f"Look at its jobs: recruiter scheduler list, and recruiter scheduler next {scheduler.urn}"
        return problem("schedulers", f"{who} {told}", todo)
    return None


SCHEDULER_CHECKS = (_schedulers,)


_TODO = {
    "leases": "The next leader writes the lease again; any other document of this collection can be removed",
    "roster": "The leader will retire this worker and release its jobs; if the worker is alive, it joins again",
    "schedulers": "It makes no jobs. Create it again, or remove it: recruiter scheduler remove URN",
    "limits": "It is not in force. Set it again, or remove it: recruiter limit remove SUBJECT",
    "processes": "Nothing depends on it. MongoDB removes it after an hour; or remove it in mongosh",
    "archived": "It cannot be shown or recovered. Correct it, or remove it in mongosh",
    "scheduled": "No process reads it. Unset its lane in mongosh, then the leader adopts it or sets it aside",
    "statistics": "It is not counted. Remove it in mongosh",
    "creations": "Nothing depends on its date. Correct it, or remove it in mongosh if its id may be used again",
    "unique_keys": "The next job of that key may be refused, or made beside another one. Remove it in mongosh",
    "flows": "Its steps run, but nobody can show, pause or retry it. Correct it, or remove it in mongosh with its jobs",
    "actions": "It is not shown. MongoDB removes it after 90 days; or remove it in mongosh",
}


def _documents(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    most, counted = thresholds.unreadable_told, thresholds.unreadable_counted
    since = store.clock.now() - thresholds.unreadable_since
    looks: dict[str, Callable[[], Sequence[Unreadable]]] = {
        "leases": store.leases.unreadable,
        "roster": store.roster.unreadable,
        "schedulers": lambda: store.schedulers.all().unreadable,
        "limits": lambda: store.limits.read().unreadable,
        "processes": lambda: store.processes.entries().unreadable,
        "archived": lambda: store.archived.unreadable(since, counted),
        "scheduled": lambda: store.scheduled.neither_job_nor_foreign(counted, thresholds.counting),
        "statistics": lambda: store.statistics.unreadable(counted),
        "flows": lambda: store.flows.unreadable(counted),
        "actions": lambda: store.actions.latest(counted).unreadable,
        "creations": lambda: store.creations.unreadable(counted, thresholds.counting),
        "unique_keys": lambda: store.unique_keys.unreadable(counted, thresholds.counting),
    }
    for name, look in looks.items():
        try:
            found = [replace(each, collection=store.name_of(each.collection)) for each in look()]
            yield from _told(name, found, most, counted)
        except StoreUnreachable as error:
            yield note(
                "documents",
                f"collection {store.name_of(name)} could not be checked in time ({error})",
                "Run the doctor again",
            )


def _told(collection: str, unreadable: Sequence[Unreadable], most: int, counted: int) -> Iterator[Finding]:
    for document in unreadable[:most]:
        yield problem("documents", str(document), _TODO[collection])
    if len(unreadable) > most:
        least = "at least " if len(unreadable) >= counted else ""
        more = f"{least}{len(unreadable) - most:,} more documents of {unreadable[0].collection} cannot be read"
        yield problem("documents", more, "recruiter doctor --all names each of them")


DOCUMENT_CHECKS = (_documents,)
