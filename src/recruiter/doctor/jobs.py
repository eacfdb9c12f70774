"""Checks of jobs: jobs that cannot run, are late, may hang or were set aside; slots, pauses, schedulers, documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from recruiter.doctor.findings import Code, Finding, Level, Thresholds, note, ok, problem
from recruiter.domain.duration import elapsed
from recruiter.domain.lane import Lane
from recruiter.domain.names import ASIDE, id_told
from recruiter.domain.planning.limits import AtLimit, AtRate, Reason
from recruiter.domain.planning.reasons import NeverFits, SlotsBusy, Unserved, level_of
from recruiter.domain.planning.rules import FLEET, Rules
from recruiter.domain.schedule.scheduler import Scheduler
from recruiter.domain.state import Why
from recruiter.domain.text import MAX_REASON_CHARACTERS, head, plural, remark
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import StoreUnreachable
from recruiter.store.database import ServerFacts, Store
from recruiter.views.health import last_success
from recruiter.views.resources import read_situation

_MAX_JOBS_NAMED = 10
_MAX_UNOPENED = 100


def _lanes(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    """Lanes whose jobs cannot run, jobs that are late or wait for a slot, and pauses, which explain all other waits."""
    rules, now = store.limits.read(), store.clock.now()
    waiting = _jobs_by_lane(store, now, thresholds)
    situation = read_situation(store, rules, now)
    open_lanes = {lane: queue for lane, queue in waiting.items() if rules.pauses(lane.group) is None}
    reasons: dict[Lane, Reason | None] = {}
    for lane, queue in open_lanes.items():
        reasons[lane] = situation.why_waiting(lane)
        if reasons[lane] is None and queue.first is not None and queue.first.key is not None:
            reasons[lane] = situation.why_waiting(queue.first)  # the limit of its key
    findings = [
        finding
        for lane, reason in sorted(reasons.items(), key=lambda item: str(item[0]))
        if reason is not None and (finding := _blocked_lane(lane, waiting[lane], reason)) is not None
    ]
    yield from findings[: thresholds.lanes_told]
    if len(findings) > thresholds.lanes_told:
        more = f"jobs of {len(findings) - thresholds.lanes_told} more lanes cannot run either"
        yield replace(findings[-1], text=more, todo="recruiter group list shows the groups")
    late = list(_late(reasons, waiting, now, thresholds))
    busy = list(_saturated(store, reasons, waiting, now))
    yield from [*late, *busy]
    if not findings and not late and not busy and not rules.paused:
        jobs = _counted((queue.jobs for queue in waiting.values()), "job waits or runs", "jobs wait or run")
        yield ok(f"{jobs}; nothing blocks the queue")
    yield from _pauses(rules, waiting)


class _Waiting(NamedTuple):
    """The jobs of a lane. The numbers are None when counting took too long."""

    jobs: int | None
    """Waiting and running jobs."""
    due: int | None
    """Due jobs that no worker holds."""
    since: datetime | None
    """The time of the oldest due job that no worker holds."""
    first: Lane | None = None
    """The lane of that job, with the key of a limit if it has one."""


def _counted(counts: Iterable[int | None], one: str, plural_noun: str) -> str:
    counts = list(counts)
    return f"many {plural_noun}" if None in counts else plural(sum(filter(None, counts)), one, plural_noun)


def _jobs_by_lane(store: Store, now: datetime, thresholds: Thresholds) -> dict[Lane, _Waiting]:
    """The jobs of each lane that has any. Lanes that differ only in the key of a limit count as one."""
    counts: dict[str, tuple[int, int] | None]
    held = store.roster.held()
    running = Counter(store.due_jobs.lanes_of(held).values())
    try:
        walked = store.due_jobs.waiting_by_lane(now, thresholds.counting)
        counts = {lane: (jobs, max(0, jobs - later - running[lane])) for lane, jobs, later in walked}
    except StoreUnreachable:
        counts = dict.fromkeys(store.due_jobs.lanes())
    lanes = [lane for lane in counts if lane not in ASIDE]
    oldest = store.due_jobs.oldest_due(lanes, now, held) if lanes else {}
    kinds: dict[Lane, _Waiting] = {}
    for text in lanes:
        lane, (jobs, due) = Lane.parse(text)._replace(key=None), counts[text] or (None, None)
        before = kinds.get(lane, _Waiting(0, 0, None))
        since, first = before.since, before.first
        if (own := oldest.get(text)) is not None and (since is None or own < since):
            since, first = own, Lane.parse(text)
        kinds[lane] = _Waiting(_sum(before.jobs, jobs), _sum(before.due, due), since, first)
    return kinds


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _blocked_lane(lane: Lane, waiting: _Waiting, reason: Reason) -> Finding | None:
    """The finding about a lane whose jobs cannot start, however long they wait: a note while none of them is due."""
    jobs = f"{'jobs' if waiting.jobs is None else plural(waiting.jobs, 'job')} of task {lane.task}"
    who, level = f"{jobs} in group {lane.group}", Level.NOTE if waiting.since is None else level_of(reason)
    match reason:
        case Unserved():
            todo = reason.todo or "Resume them (recruiter worker resume WORKER), or start others"
            text = f"{who} cannot run{'' if waiting.since else ' when the time comes'}: {reason.text}"
            return Finding(level, Code.NOT_SERVED, text, todo[:1].upper() + todo[1:])
        case NeverFits():
            todo = (
                "Start a worker on a host that has it, declare what a host has (--resources), or let the jobs need less"
            )
            return Finding(level, Code.NEVER_FITS, f"{who} can never run: each {reason}", todo)
        case AtLimit(held=0):
            todo = f"Allow some: recruiter limit set {reason.bucket} 1"
            return Finding(level, Code.ZERO_LIMIT, f"{who}: none starts, {reason}", todo)
        case _:
            return None


def _late(
    reasons: Mapping[Lane, Reason | None], waiting: Mapping[Lane, _Waiting], now: datetime, thresholds: Thresholds
) -> Iterator[Finding]:
    """Jobs that could run and wait too long for their turn. A limit that holds them back is intended."""
    for limited in (False, True):
        late = {
            lane: since
            for lane, reason in reasons.items()
            if not isinstance(reason, Unserved | NeverFits) and isinstance(reason, AtLimit | AtRate) is limited
            if (since := waiting[lane].since) is not None and now - since > thresholds.late_job
        }
        if not late:
            continue
        oldest = min(late, key=lambda lane: late[lane])
        jobs = _counted((waiting[lane].due for lane in late), "job is due", "jobs are due")
        where = f"task {oldest.task} in group {oldest.group}"
        text = f"{jobs}, and the oldest has waited for {elapsed(now - late[oldest])} ({where})"
        if limited:
            todo = "Raise the limit if they matter: recruiter limit list shows the limits"
            yield note(Code.LATE, f"{text}: {reasons[oldest]}", todo)
        else:
            why = f": {reasons[oldest]}" if reasons[oldest] is not None else ""
            todo = "Start more workers, or raise --processes. If slots are free, see the leader's log"
            yield problem(Code.LATE, f"{text}{why}", todo)


def _saturated(
    store: Store, reasons: Mapping[Lane, Reason | None], waiting: Mapping[Lane, _Waiting], now: datetime
) -> Iterator[Finding]:
    """The tasks that hold the slots for which due jobs wait."""
    starved = [lane for lane, reason in reasons.items() if isinstance(reason, SlotsBusy) and waiting[lane].since]
    if not starved:
        return
    serving = [entry for entry in store.roster.entries() if any(entry.registration.serves(lane) for lane in starved)]
    by_task: dict[str, list[datetime]] = {}
    for run in (run for entry in serving for run in entry.running):
        by_task.setdefault(run["task"], []).append(run["since"])
    slots = sum(entry.registration.slots for entry in serving)
    jobs = _counted((waiting[lane].due for lane in starved), "due job waits", "due jobs wait")
    taken = "the only slot is" if slots == 1 else f"all {slots:,} slots are"
    text = f"{jobs} for a slot: {taken} taken where they can run"
    largest = sorted(by_task.items(), key=lambda item: -len(item[1]))[:3]
    if not largest:
        yield note(Code.SATURATED, text, "Start more workers, or raise --processes")
        return
    held = [
        f"task {task} holds {plural(len(since), 'slot')}, for up to {elapsed(now - min(since))}"
        for task, since in largest
    ]
    todo = f"Start more workers, raise --processes, or keep slots free: recruiter limit set task:{largest[0][0]} NUMBER"
    yield note(Code.SATURATED, f"{text}; {'; '.join(held)}", todo)


def _long_jobs(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    """Jobs without a timeout that have run for very long, and may hang."""
    now = store.clock.now()
    long = {
        run["job"]: (entry.id, run["since"])
        for entry in store.roster.entries()
        for run in entry.running
        if now - run["since"] > thresholds.long_job
    }
    endless = [job for job in store.scheduled.get_many(long).values() if job.timeout is None] if long else []
    for job in sorted(endless, key=lambda job: long[job.id][1])[:_MAX_JOBS_NAMED]:
        worker, since = long[job.id]
        lasts = elapsed(now - since)
        text = f"job {id_told(job.id)} of task {job.task} has run for {lasts} on worker {worker}, and has no timeout"
        todo = (
            f"See recruiter job show {job.id}. If it hangs: recruiter job cancel {job.id}; and give the task a timeout"
        )
        yield note(Code.LONG_JOB, text, todo)


def _pauses(rules: Rules, waiting: Mapping[Lane, _Waiting]) -> Iterator[Finding]:
    for name, pause in sorted(rules.paused.items()):
        if name == FLEET:
            jobs = _counted((queue.jobs for queue in waiting.values()), "job waits or runs", "jobs wait or run")
            text = f"all starts are blocked, and {jobs}; blocked by {remark(pause.by, pause.reason, pause.at)}"
            level = Level.PROBLEM if waiting else Level.NOTE
            yield Finding(level, Code.STARTS_BLOCKED, text, "Allow them: recruiter group resume --all")
        else:
            group = name.removeprefix("group:")
            counts = (queue.jobs for lane, queue in waiting.items() if lane.group == group)
            jobs = _counted(counts, "job waits", "jobs wait")
            text = f"group {group} is paused, and {jobs}; paused by {remark(pause.by, pause.reason)}"
            yield note(Code.PAUSED, text, f"Let them start: recruiter group resume {group}")


def _jobs_set_aside(store: Store, _: ServerFacts, __: Thresholds) -> Iterator[Finding]:
    """Jobs and documents that were given up. They have ended, so no person must act now."""
    since = store.clock.now() - timedelta(days=1)
    for job in store.archived.jobs_set_aside(_MAX_JOBS_NAMED, since):
        at, why = f"{job.archived_at:%Y-%m-%d %H:%M:%S} UTC", head(job.reason or str(job.why), MAX_REASON_CHARACTERS)
        show = f"See recruiter job show {job.id}"
        if job.why in (Why.CRASHED_TOO_MANY_TIMES, Why.WORKER_DIED_TOO_MANY_TIMES):
            text = f"job {id_told(job.id)} of task {job.task} was given up at {at}: {why}"
            todo = f"{show}. When the cause is removed, run it again: recruiter job recover {job.id}"
            yield note(Code.POISON_JOB, text, todo)
        else:
            text = f"document {id_told(job.id)} was set aside at {at}: {why}"
            todo = f"{show}. Correct the program that wrote it, and insert it again"
            yield note(Code.SET_ASIDE, text, todo)


def _unopened(store: Store, _: ServerFacts, __: Thresholds) -> Iterator[Finding]:
    found = store.scheduled.unopened(store.clock.now(), _MAX_UNOPENED)
    if found:
        more = " or more" if len(found) == _MAX_UNOPENED else ""
        text = f"{plural(len(found), 'job')}{more} could not be opened by a worker: {found[0]['unopened']}"
        yield problem(Code.NOT_OPENED, text, f"See recruiter job show {found[0]['_id']}. Give the workers the key")


def _inbox(store: Store, _: ServerFacts, __: Thresholds) -> Iterator[Finding]:
    count = store.scheduled.count_inbox()
    if count:
        documents = plural(count, "document of another program waits", "documents of other programs wait")
        text = f"{documents} to be adopted, or {'is' if count == 1 else 'are'} locked by its program"
        yield note(Code.INBOX, text, "A leader adopts them within seconds. If their number grows, see its log")


CHECKS = (_lanes, _long_jobs, _unopened, _inbox, _jobs_set_aside)


def check_schedulers(store: Store, _: ServerFacts, __: Thresholds) -> Iterator[Finding]:
    schedulers, on_time = store.schedulers.all(), 0
    for scheduler in schedulers:
        finding = _scheduler_problem(store, scheduler, store.clock.now())
        if finding is not None:
            yield finding
        else:
            on_time += 1
    if on_time:
        yield ok(f"{on_time} of {len(schedulers)} schedulers are on time")


def _scheduler_problem(store: Store, scheduler: Scheduler, now: datetime) -> Finding | None:
    """Why this repeatable job does not run on time, or does not succeed; None if it does."""
    who = f"scheduler {scheduler.urn}"
    if scheduler.broken:
        todo = f"Correct its policy or its job and create it again; or: recruiter scheduler remove {scheduler.urn}"
        return problem(Code.BROKEN_SCHEDULER, f"{who} is broken and creates no jobs: {scheduler.broken}", todo)
    if scheduler.paused:
        todo = f"Resume it: recruiter scheduler resume {scheduler.urn}"
        text = f"{who} was paused by {remark(scheduler.paused.by, scheduler.paused.reason)}"
        return note(Code.PAUSED_SCHEDULER, text, todo)
    if late := scheduler.late_by(now):
        todo = "Only a leader makes its jobs: see the finding about the leader"
        return problem(Code.LATE_SCHEDULER, f"{who} is {elapsed(late)} late", todo)
    overdue = scheduler.broken_promise(last_success(store, scheduler), now)
    if overdue is not None:
        todo = f"Look at its jobs: recruiter scheduler list, and recruiter scheduler next {scheduler.urn}"
        return problem(Code.OVERDUE_SUCCESS, f"{who} {overdue}", todo)
    return None


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


_HARMLESS = frozenset(["leases", "roster", "processes", "archived", "statistics", "creations", "actions"])
"""Collections in which no job waits for such a document, or in which a process replaces it."""


def check_documents(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    """Documents of any collection that cannot be read."""
    most, counted = thresholds.unreadable_told, thresholds.unreadable_counted
    since = store.clock.now() - timedelta(days=7)
    checks: dict[str, Callable[[], Sequence[Unreadable]]] = {
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
        "unique_keys": lambda: store.unique_keys.unreadable(counted, thresholds.counting),
    }
    for name, check in checks.items():
        try:
            found = [replace(document, collection=store.name_of(document.collection)) for document in check()]
            yield from _unreadable_documents(name, found, most, counted)
        except StoreUnreachable as error:
            yield note(
                Code.CHECK_FAILED,
                f"collection {store.name_of(name)} could not be checked in time ({error})",
                "Run the doctor again",
            )


def _unreadable_documents(
    collection: str, unreadable: Sequence[Unreadable], most: int, counted: int
) -> Iterator[Finding]:
    """Up to `most` findings, and one for the rest. At most `counted` documents were read."""
    level = Level.NOTE if collection in _HARMLESS else Level.PROBLEM
    for document in unreadable[:most]:
        yield Finding(level, Code.DAMAGED_DOCUMENT, str(document), _TODO[collection])
    if len(unreadable) > most:
        least = "at least " if len(unreadable) >= counted else ""
        more = f"{least}{len(unreadable) - most:,} more documents of {unreadable[0].collection} cannot be read"
        todo = "recruiter doctor --all names each of them"
        yield Finding(level, Code.DAMAGED_DOCUMENT, more, todo)
