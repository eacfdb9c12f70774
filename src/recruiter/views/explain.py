"""Explain: why is this job not running? It answers in sentences.

It reads the same facts as the leader and asks the same planner, for this one job. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from recruiter.domain.duration import brief, elapsed
from recruiter.domain.flow import StepState, Verdict, verdict
from recruiter.domain.job import NO_SIGNAL, ArchivedJob, Happened, Job, JobId
from recruiter.domain.lane import Lane
from recruiter.domain.names import BLOCKED_LANE, CANCELLED_LANE, id_told
from recruiter.domain.planning.reasons import Level, Unserved, level_of
from recruiter.domain.planning.rules import Rules
from recruiter.domain.planning.situation import Situation
from recruiter.domain.state import State, Why
from recruiter.domain.statistics import Kind
from recruiter.domain.text import plural, remark
from recruiter.errors import InvalidJob, JobNotFound, UnreadableDocument
from recruiter.store.codec import flow_of, job_from, lane_of
from recruiter.store.collections.inbox import LOCK_LASTS, is_locked
from recruiter.store.database import Store
from recruiter.store.job_fields import changes_of, may_expire, waiting_for
from recruiter.views.resources import read_situation


def explain(store: Store, id: JobId, now: datetime) -> str:
    """Explains in a few sentences where a job is, and why. Raises JobNotFound."""
    document = store.scheduled.document(id)
    if document is None:
        ended = store.archived.get(id)
        if ended is None:
            raise JobNotFound(f"there is no job {id_told(id)}")
        return f"{_ended(ended)}{_recovery(store, ended)}"
    held = _holder(store, id, now)
    flag = document.get("cancel")
    if document.get("lane") == CANCELLED_LANE:
        who = remark(flag.get("by"), flag.get("reason")) if isinstance(flag, dict) else remark(None, None)
        doing = f"; {held}" if held else f"; {_leader_problem(store, now) or 'the leader archives it in a moment'}"
        return f"cancelled by {who}{doing}"
    if held:
        return held
    if document.get("lane") is None and is_locked(document, now):
        since, until = document["locked_at"], document["locked_at"] + LOCK_LASTS
        text = f"{document['locked_by']} since {since:%Y-%m-%d %H:%M:%S} UTC"
        return f"another program has inserted this job and locked it: {text}; the lock ends at {until:%H:%M:%S} UTC"
    if document.get("lane") is None:
        wait = _leader_problem(store, now) or "this takes a moment"
        return f"another program has inserted this job, and no leader has adopted it yet; {wait}"
    try:
        job_from(document)
    except (UnreadableDocument, InvalidJob) as error:
        return f"its document cannot be read: {error}; correct it, or remove it"
    text = _waiting(store, document, now) if document["lane"] != BLOCKED_LANE else _blocked(store, document, now)
    until = document.get("expires_at")
    return (
        text
        if not isinstance(until, datetime) or not may_expire(document)
        else f"{text}; it expires at {until:%Y-%m-%d %H:%M:%S} UTC"
    )


class WaitReason(NamedTuple):
    """Why due jobs do not start."""

    text: str
    """In a few words."""
    level: Level
    about: str
    """The jobs that it holds for: `group mail`, `task resize`; empty for all jobs."""
    detail: str
    """With the author of a pause, or with the remedy."""
    is_partial: bool = False
    """Other due jobs of the same group and task wait for another reason, or only for their turn."""


def waiting_reasons(store: Store, jobs: Iterable[Job], now: datetime) -> dict[JobId, WaitReason]:
    """Why the due ones among these jobs do not start; nothing for jobs that only wait their turn."""
    waiting = (job for job in jobs if job.state is State.WAITING and not job.blocked and job.scheduled_at <= now)
    lanes = {job.id: Lane.parse(job.lane) for job in waiting}
    if not lanes:
        return {}
    why = _Reasons(store, store.limits.read(), now)
    found = {lane: why.of(lane) for lane in set(lanes.values())}
    return {id: reason for id, lane in lanes.items() if (reason := found[lane]) is not None}


def kinds_waiting(store: Store, kinds: Collection[Kind], rules: Rules, now: datetime) -> dict[Kind, WaitReason]:
    """Why due jobs of these groups and tasks do not start; nothing for jobs that only wait their turn. The first due
    jobs of some of their lanes are examined. The most serious reason counts; of equal ones, that of the first job."""
    why = _Reasons(store, rules, now)
    found = {kind: reason for kind in kinds if (reason := why.before_planning(Lane(*kind))) is not None}
    left = [kind for kind in kinds if kind not in found][:_MAX_KINDS_EXPLAINED]
    sampled = _sampled(store.due_jobs.lanes(), left) if left else {}
    firsts = store.due_jobs.candidates_of_each(sampled, now, why.situation.held) if sampled else ()
    by_kind: dict[Kind, list[WaitReason | None]] = {}
    for first in sorted(firsts, key=lambda candidate: candidate.rank):
        by_kind.setdefault(first.lane[:2], []).append(why.of(first.lane, first.id))
    for kind, reasons in by_kind.items():
        worst = max(reasons, key=lambda reason: _SERIOUS.index(reason.level if reason is not None else Level.OK))
        if worst is not None:
            is_partial = any(reason is None or reason.level != worst.level for reason in reasons)
            found[kind] = worst._replace(is_partial=is_partial)
    return found


_SERIOUS = list(Level)
_MAX_KINDS_EXPLAINED = 50
_LANES_PER_KIND = 5
"""Jobs of one task differ in needs and keys; with a key for each customer they have thousands of lanes."""


def _sampled(lanes: Iterable[str], kinds: Collection[Kind]) -> dict[str, int]:
    """A few lanes of each kind, to read one job of each. Of lanes that differ only in their keys, one is taken."""
    chosen: dict[Kind, dict[object, str]] = {kind: {} for kind in kinds}
    for text in lanes:
        lane = Lane.parse(text)
        of_kind = chosen.get(lane[:2])
        if of_kind is not None and len(of_kind) < _LANES_PER_KIND:
            of_kind.setdefault((lane.needs, lane.isolated, lane.kind_of_key), text)
    return {text: 1 for of_kind in chosen.values() for text in of_kind.values()}


class _Reasons:
    """The reasons of due jobs, from one reading of the rules and the roster."""

    def __init__(self, store: Store, rules: Rules, now: datetime) -> None:
        self._store, self._rules, self._now = store, rules, now

    @cached_property
    def situation(self) -> Situation:
        return read_situation(self._store, self._rules, self._now)

    @cached_property
    def _leaderless(self) -> str | None:
        return _leader_problem(self._store, self._now)

    def before_planning(self, lane: Lane) -> WaitReason | None:
        """The reason that counts before all others: a pause, or that there is no leader."""
        pause = self._rules.pauses(lane.group)
        if pause is not None:
            group = "" if self._rules.blocked else f"group {lane.group}"
            text, level = (f"{group} is paused", Level.NOTE) if group else ("all starts are blocked", Level.PROBLEM)
            return WaitReason(text, level, group, f"{text} by {remark(pause.by, pause.reason, pause.at)}")
        if self._leaderless is not None:
            return WaitReason("there is no leader", Level.PROBLEM, "", self._leaderless)
        return None

    def of(self, lane: Lane, id: JobId = "") -> WaitReason | None:
        """Why this due job does not start; None if it only waits its turn."""
        before = self.before_planning(lane)
        reason = None if before is not None else self.situation.why_waiting(lane, id)
        if reason is None:
            return before
        text = reason.text if isinstance(reason, Unserved) else str(reason)
        return WaitReason(text, level_of(reason), f"task {lane.task}", str(reason))


def _blocked(store: Store, document: dict[str, object], now: datetime) -> str:
    """Why a step of a flow is not released yet: a pause of its flow, or the steps that it waits for."""
    place = flow_of(document)
    flow = store.flows.get(place.flow) if place is not None else None
    if place is None or flow is None:
        todo = _leader_problem(store, now) or "the leader archives it in a moment"
        return f"is a step of a flow that no longer exists; {todo}"
    if flow.paused is not None:
        return f"its flow {flow.name!r} ({flow.id}) is paused by {remark(flow.paused.by, flow.paused.reason)}"
    states = store.flow_steps.states(place.flow, place.after)
    pending = [step for step in place.after if states.get(step) is StepState.PENDING]
    if verdict(place, states) is Verdict.FAIL:
        todo = _leader_problem(store, now) or "the leader archives it in a moment"
        return f"a step of flow {flow.name!r} that it waits for has failed; {todo}"
    if not pending:
        todo = _held_up(store, document, now) or "the leader releases it in a moment"
        return f"every step of flow {flow.name!r} that it waits for has ended; {todo}"
    last = store.flow_steps.last_jobs(place.flow, pending[:_MAX_STEPS_READ]).values()
    names = list(dict.fromkeys(_named(job, place.part) for job in last)) or [str(pending[0])]
    left = len(names) - _MAX_STEPS_NAMED + len(pending[_MAX_STEPS_READ:])
    more = f" and {left} others" if left > 0 else ""
    ended = f"{len(place.after) - len(pending)} of {len(place.after)} have ended"
    named = ", ".join(names[:_MAX_STEPS_NAMED])
    return f"waits for other steps of flow {flow.name!r} ({flow.id}): {named}{more}; {ended}"


def _named(job: dict[str, Any], part: tuple[str, ...]) -> str:
    """A step that another step waits for; or the sub-flow that has it, if the other one is not in it."""
    place = flow_of(job)
    if place is not None and place.part[: len(part)] == part and len(place.part) > len(part):
        return f"sub-flow {'/'.join(place.part[: len(part) + 1])!r}"
    return f"{job['flow'].get('name') or job.get('task')} ({job['_id']})"


_MAX_STEPS_NAMED = 3
_MAX_STEPS_READ = 1000


def _waiting(store: Store, document: dict[str, object], now: datetime) -> str:
    """Why a job in a lane does not run, or that it is about to."""
    reason = _held_up(store, document, now)
    if reason is not None:
        return reason
    before = store.scheduled.count_before(document, now, store.roster.held())
    first = plural(before, "due job of its lane comes first", "due jobs of its lane come first")
    turn = first if before else "it is the next of its lane"
    return f"due, and nothing blocks it; {turn}"


def _held_up(store: Store, document: dict[str, object], now: datetime) -> str | None:
    """Why it cannot start now; None when it only waits its turn."""
    scheduled_at = document["scheduled_at"]
    assert isinstance(scheduled_at, datetime)
    wait = waiting_for(document)
    if wait is not None and scheduled_at > now:
        until = "" if wait.until is None else f"; at {wait.until:%Y-%m-%d %H:%M:%S} UTC it goes on without the signal"
        _, changed, note = str(document.get("snoozed")).partition("; ")
        return f"waits for {wait.told} since {wait.since:%Y-%m-%d %H:%M:%S} UTC{until}{changed}{note}"
    if scheduled_at > now:
        left = elapsed(scheduled_at - now)
        why = f"{_why_postponed(document)}{_unknown(store, document, now)}"
        return f"postponed until {scheduled_at:%Y-%m-%d %H:%M:%S} UTC, in {left}{why}"
    reason = _Reasons(store, store.limits.read(), now).of(Lane.parse(lane_of(document)), document["_id"])  # type: ignore[arg-type]
    return None if reason is None else reason.detail


def _unknown(store: Store, document: dict[str, object], now: datetime) -> str:
    """The remedy for a postponed job that no worker serves; empty if there is no worker at all."""
    situation = Situation(store.roster.read(), (), Rules(), now)
    unserved = situation.unserved(Lane.parse(lane_of(document))) if situation.roster else None
    return "" if unserved is None else f"; {unserved}"


def _not_taken(ended: ArchivedJob) -> str | None:
    """The signals that came after its last wait."""
    taken = sum(kept.name.startswith("wait_for") and kept.problem != NO_SIGNAL for kept in ended.checkpoints)
    left = len(ended.signals) - taken
    return f"it ended without taking {plural(left, 'signal')} that it was sent" if left > 0 else None


def _ended(ended: ArchivedJob) -> str:
    at = f"at {ended.archived_at:%Y-%m-%d %H:%M:%S} UTC"
    last = ended.last_execution
    error = ": ".join(filter(None, (last.exception, last.message))) if last is not None else None
    match ended.why:
        case Why.DONE:
            notes = last.notes if last is not None else ()
            note = "".join(f"; {each}" for each in (ended.reason, _not_taken(ended), *notes) if each)
            return f"succeeded {at}{f', in attempt {ended.attempts}' if ended.attempts > 1 else ''}{note}"
        case Why.CANCELLED:
            by = ended.cancel.by if ended.cancel is not None else None
            return f"was cancelled by {by or 'somebody'} {at}: {ended.reason or 'no reason given'}"
        case Why.EXPIRED:
            waited = f"failed {plural(ended.attempts, 'time')}" if ended.attempts else "never started"
            return f"{waited}, and expired: {ended.reason or at}"
        case Why.LOST:
            how = error or "the cause is unknown"
            return f"was lost {at}: its process died while it ran, and it must not run twice ({how})"
        case Why.DEPENDENCY_FAILED:
            reason = ended.reason or "a step that it waits for has failed"
            text = f"was given up {at} before it started: {reason}"
            if ended.recovered_as is not None or ended.flow is None:
                return text
            all_failed = f"recruiter flow recover {ended.flow.flow}"
            return f"{text}. Recover the step that failed first to resume the flow, or all that failed: {all_failed}"
        case Why.NOT_NEEDED:
            return f"was not needed, and ended {at}: {ended.reason or 'its flow did not need it'}"
        case Why.MALFORMED:
            return f"was set aside {at}: {ended.reason or 'it cannot be a job'}"
    said_already = ended.why in (Why.CRASHED_TOO_MANY_TIMES, Why.WORKER_DIED_TOO_MANY_TIMES)
    reason = f" ({ended.reason})" if ended.reason and not said_already else ""
    return f"failed {at}, {_why_no_retry(ended)}{reason}: {error or 'no error was kept'}"


def _recovery(store: Store, ended: ArchivedJob) -> str:
    """The recovery of a job that has ended, if any."""
    if ended.recovered_as is None:
        return ""
    if ended.flow is None or ended.done:
        return f"; it was recovered as {ended.recovered_as}"
    last = store.flow_steps.last_jobs(ended.flow.flow, [ended.flow.step]).get(ended.flow.step)
    return f"; it was recovered, and the last job of its step is {ended.recovered_as if last is None else last['_id']}"


def _why_no_retry(ended: ArchivedJob) -> str:
    """After which attempts a job failed for good, and why it is not tried again."""
    attempts = plural(ended.attempts, "attempt")
    match ended.why:
        case Why.TRIED_TOO_MANY_TIMES:
            return f"after {attempts}; its retry policy allows no more"
        case Why.NON_RETRIABLE_EXCEPTION:
            return f"after {attempts}, with an error that its retry policy does not retry"
        case Why.NOT_SCHEDULED_BY_RETRY_POLICY if ended.retry_policy is None or ended.at_most_once:
            return f"after {attempts}; it has no retry policy"
        case Why.NOT_SCHEDULED_BY_RETRY_POLICY:
            return f"after {attempts}; its retry policy decided so"
        case Why.CRASHED_TOO_MANY_TIMES:
            return f"after its process died {plural(ended.crashes, 'time')} while it ran"
        case Why.WORKER_DIED_TOO_MANY_TIMES:
            return f"after its whole worker died {plural(ended.worker_deaths, 'time')} while it ran"
        case Why.POLICY_FAILED:
            return f"after {attempts}; its retry policy could not decide"
    return f"after {attempts}, {ended.why!r}"


def _holder(store: Store, id: JobId, now: datetime) -> str | None:
    """The worker that runs the job, or will run it; None if no worker holds it."""
    entries = store.roster.entries()
    for entry in entries:
        for run in entry.running:
            if run["job"] == id:
                running = f"running on {entry.id} for {elapsed(now - run['since'])}"
                if not entry.is_silent(now):
                    return running
                silent = brief((now - entry.seen_at).total_seconds())
                return f"{running}; the worker has been silent for {silent} and will be retired"
    slots = {entry.id: entry.registration.slots for entry in entries}
    for worker, jobs in store.roster.holders().items():
        if id in jobs:
            before = jobs.index(id)
            first = f", behind {plural(before, 'other job')} of this worker"
            return f"starting on {worker}" if before < slots.get(worker, 1) else f"assigned to {worker}{first}"
    return None


def _leader_problem(store: Store, now: datetime) -> str | None:
    """That no leader is at work, with the remedy; None if one is."""
    lease = store.leases.read()
    if lease is None or lease.holder is None:
        return "there is no leader: start one with `recruiter start recruiter`"
    if not lease.leads(now):
        return f"the leader on {lease.host} is silent, and no other recruiter takes over: start one"
    return None


def _why_postponed(document: dict[str, object]) -> str:
    """Why a job waits for its time; empty if it was enqueued for this time."""
    changes = changes_of(document)
    if changes and changes[-1].what == Happened.RESCHEDULED and changes[-1].new == document["scheduled_at"]:
        return f": rescheduled by {remark(changes[-1].by, changes[-1].reason)}"
    if document.get("snoozed"):
        return f": {document['snoozed']}"
    if document.get("unopened"):
        return f": the last worker could not open it, and no attempt was counted: {document['unopened']}"
    last = document.get("last_execution")
    if isinstance(last, dict) and document.get("attempts"):
        error = f"{last.get('class')}: {last.get('message')}" if last.get("class") else last.get("message")
        return f", after attempt {document['attempts']} failed with {error}"
    return ""
