"""The outcome of an attempt, as documents: the job is archived, or it waits again with changed fields.

Outcomes are built by the child that ran the job, by the supervisor whose child died, and by the leader that retires a
worker. `transactions.py` writes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from recruiter.domain.job import Execution, JobId
from recruiter.domain.names import ASIDE
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import (
    MAX_WORKER_DEATHS,
    Archive,
    Decision,
    Failure,
    Retry,
    RetryPolicy,
    decide,
    exception_names,
)
from recruiter.domain.state import State, Why
from recruiter.domain.statistics import Again, Attempted, JobEnd
from recruiter.domain.text import cut
from recruiter.errors import JobPauses, RecruiterError
from recruiter.store.codec import (
    LARGEST_JOB,
    Document,
    archived_document,
    as_value,
    attempt_fields,
    decode,
    decode_leniently,
    encode,
    flow_of,
    lane_of,
    plain_value,
    progress_fields,
    step_of,
    worker_deaths_of,
)
from recruiter.store.errors import DRIVER_REFUSES
from recruiter.store.fields import is_text
from recruiter.store.job_fields import (
    UNKNOWN_TASK_PAUSE,
    UNLOCKED,
    Use,
    begun_at,
    flow_document,
    names,
    progress_from,
    pushed,
    record,
    waits_after,
)

_SMALL_FIELDS = frozenset(names(Use.SMALL))
_LARGE_FIELDS = frozenset(names(Use.LARGE))
_PLANNED_FIELDS = frozenset(names(Use.PLANNED))


class JobEvent(NamedTuple):
    """The event that a worker emits about an outcome."""

    name: str
    fields: Mapping[str, Any]
    notes: Sequence[str] = ()
    """Errors that do not change the outcome: in finalizers, or after the job's own transaction."""


class ToArchive(NamedTuple):
    """A job that has ended: its document for the archive, and the facts for statistics, flows and the log."""

    document: bytes
    end: JobEnd
    event: JobEvent

    def with_fields(self, fields: Document) -> ToArchive:
        """The same with these fields in its document."""
        return self._replace(document=encode({**decode(self.document), **fields}))


class Update(NamedTuple):
    """An update of one document of `scheduled`, as MongoDB takes it."""

    query: Document
    update: Document


class Rescheduled(NamedTuple):
    """A job that stays in `scheduled`, with fields that change."""

    id: JobId
    updates: Sequence[Update]
    """At most one matches. The first is the usual update; the others are for jobs that changed meanwhile."""
    attempted: Attempted | None = None
    """The attempt that ended, to be counted; None if no attempt is counted."""
    event: JobEvent | None = None

    @property
    def fields(self) -> Mapping[str, Any]:
        fields: Document = self.updates[0].update.get("$set", {})
        return fields

    def with_fields(self, fields: Document) -> Rescheduled:
        """The same with these fields, as far as it does not change them itself."""
        updates = [
            Update(query, {**update, "$set": {**fields, **update.get("$set", {})}}) for query, update in self.updates
        ]
        return self._replace(updates=updates) if fields else self


class Settled(NamedTuple):
    """A job that has ended in its own transaction (see job_transaction.py). Nothing is left to write for it."""

    event: JobEvent
    document: bytes = b""
    """The archived document; only if the job ran in this process."""


Outcome = ToArchive | Rescheduled | Settled
"""The result of an attempt. None instead of an outcome means that the job is handed back unchanged."""


@dataclass(frozen=True, slots=True)
class OutcomeBatch:
    """The outcomes of several jobs, for one transaction."""

    archive: Mapping[JobId, ToArchive] = field(default_factory=dict)
    reschedule: Sequence[Rescheduled] = ()
    release: Sequence[JobId] = ()
    forget: Sequence[JobId] = ()
    """Jobs that are in the archive already: only taken out of `scheduled`."""

    @classmethod
    def of(cls, outcomes: Iterable[tuple[JobId, Outcome | None]]) -> OutcomeBatch:
        archive: dict[JobId, ToArchive] = {}
        reschedule: list[Rescheduled] = []
        release: list[JobId] = []
        for id, outcome in outcomes:
            if isinstance(outcome, ToArchive):
                archive[id] = outcome
            elif isinstance(outcome, Rescheduled):
                reschedule.append(outcome)
            else:
                release.append(id)
        return cls(archive, reschedule, release)

    @property
    def ids(self) -> list[JobId]:
        return [*self.archive, *(job.id for job in self.reschedule), *self.release, *self.forget]

    def only(self, held: Collection[JobId]) -> OutcomeBatch:
        """The same, limited to the jobs that the worker holds."""
        return OutcomeBatch(
            {id: ended for id, ended in self.archive.items() if id in held},
            [job for job in self.reschedule if job.id in held],
            self.release,
            [id for id in self.forget if id in held],
        )

    def without(self, archived: Collection[JobId]) -> OutcomeBatch:
        kept = {id: ended for id, ended in self.archive.items() if id not in archived}
        return replace(self, archive=kept, forget=[*self.forget, *archived])


# -- the two kinds of outcome -----------------------------------------------------------------------------------------


def to_archive(document: Document, why: Why | str, at: datetime, fields: Document) -> ToArchive:
    """The outcome of a job that has ended with these fields."""
    return as_archived(archived_document(document, why, at, fields))


def as_archived(document: Document) -> ToArchive:
    """The outcome whose document for the archive is this one."""
    return ToArchive(encode(document), end_of(document), event_of(document))


def end_of(archived: Document) -> JobEnd:
    """The facts of an archived document that are counted, and the step of a flow that has ended with it."""
    flow, step = step_of(archived) or (None, None)
    group, task, latency, execution_time = (
        archived.get(name) for name in ("group", "task", "latency", "execution_time")
    )
    return JobEnd(
        at=archived["archived_at"],
        state=State.at_the_end(archived["done"], archived["why"]).value,
        group=group if is_text(group) else None,
        task=task if is_text(task) else None,
        latency=latency if isinstance(latency, float) else None,
        execution_time=execution_time if isinstance(execution_time, float) else None,
        flow=flow,
        step=step,
    )


def event_of(archived: Document) -> JobEvent:
    last = archived.get("last_execution") or {"message": archived.get("reason")}
    notes, why = last.get("notes", ()), archived["why"]
    if archived["done"]:
        return JobEvent("job.ended", {"seconds": archived.get("execution_time") or 0.0}, notes)
    if why == Why.CANCELLED:
        return JobEvent("job.cancelled", cancelled_by(archived), notes)
    if why == Why.EXPIRED:
        return JobEvent("job.expired", {}, notes)
    return JobEvent("job.failure.last", {"why": why, "error": _error(last), "trace": last.get("trace")}, notes)


def _error(execution: Document) -> str:
    message = str(execution.get("message"))
    return f"{execution['class']}: {message}" if "class" in execution else message


def rescheduled(
    id: JobId,
    attempts: int,
    fields: Document,
    unset: tuple[str, ...] = UNLOCKED,
    *,
    snoozes: int | None = None,
    attempted: Attempted | None = None,
    signals: Sequence[tuple[str, int]] = (),
    happened: Document | None = None,
    event: JobEvent | None = None,
) -> Rescheduled:
    """The outcome of a job that waits again. It sets `fields`, removes the fields `unset`, and adds `happened` to the
    job's history. `attempted` is the attempt that counts, `event` the event to report.

    It applies only if `attempts` is unchanged, and `snoozes` where no attempt counts: otherwise it was written before.
    `signals` are pairs of a name and a number: if the job has this many signals of that name by then, it is due
    immediately (`fields` has `waits_for`). If `fields` has a `lane`: a job that was cancelled meanwhile must not come
    back to a lane, nor a step whose flow was paused; the leader releases it. Each of these two doubles the updates.
    Their queries exclude each other, so at most one applies.
    """
    query: Document = {"_id": id, "attempts": attempts}
    if snoozes is not None:
        query["snoozes"] = snoozes or {"$in": [None, 0]}
    changes: Document = {"$set": fields} if fields else {}
    if unset:
        changes["$unset"] = dict.fromkeys(unset, "")
    if happened is not None:
        changes["$push"] = pushed(happened)
    updates = [Update(query, changes)]
    if signals:
        has_come = {"$expr": {"$or": [_has_come(name, number) for name, number in signals]}}
        due = {**fields, "scheduled_at": fields["waits_for"]["since"], "postponed": False}
        updates = [
            Update({**query, "$nor": [has_come]}, changes),
            Update({**query, **has_come}, {**changes, "$set": due}),
        ]
    if "lane" in fields:
        updates = [variant for update in updates for variant in _unless_aside(update)]
    return Rescheduled(id, updates, attempted, event)


def _unless_aside(update: Update) -> tuple[Update, Update]:
    """Two updates of which one applies: the job stays out of its lane if it was cancelled, or its flow was paused."""
    query, changes = update
    aside = {"$in": list(ASIDE)}
    fields = {name: value for name, value in changes["$set"].items() if name != "lane"}
    others = {operator: value for operator, value in changes.items() if operator != "$set"}
    without_lane = {"$set": fields, **others} if fields else others
    return Update({**query, "lane": {"$not": aside}}, changes), Update({**query, "lane": aside}, without_lane)


# -- the outcomes of an attempt ----------------------------------------------------------------------------------------


def succeeded(document: Document, execution: Execution, at: datetime, result: Any) -> ToArchive:
    """A job that succeeded. Its result is left out, with the reason, if the document would be too large with it."""
    fields = {**attempt_fields(document, execution), **_concluded(document, State.SUCCEEDED, at)}
    if result is not None:
        fields["result"] = result
    outcome = to_archive(document, Why.DONE, at, fields)
    if len(outcome.document) <= LARGEST_JOB:
        return outcome
    del fields["result"]
    fields["reason"] = f"the job succeeded; its result made {len(outcome.document):,} bytes and was not kept"
    return to_archive(document, Why.DONE, at, fields)


def failed(document: Document, execution: Execution, at: datetime, decision: Decision) -> ToArchive | Rescheduled:
    """The outcome of a failed attempt, after the decision."""
    fields = attempt_fields(document, execution)
    error = ": ".join(filter(None, (execution.exception, execution.message)))
    if isinstance(decision, Archive):
        fields |= _concluded(document, State.at_the_end(False, decision.why), at, error)
        if decision.reason is not None:
            fields["reason"] = decision.reason
        return to_archive(document, decision.why, at, fields)
    fields |= _concluded(document, State.WAITING, at, error)
    fields.update(scheduled_at=decision.at, postponed=decision.at > at, **_begun(document, execution.started_at, at))
    unset: tuple[str, ...] = UNLOCKED
    if "snoozed" in document:
        unset += ("snoozed",)  # it waits for another reason now
    if decision.group is not None:
        fields.update(group=decision.group, lane=lane_of(document, group=decision.group))
    if not execution.crashed:
        unset += _forget_worker_deaths(document, fields)
    facts = {"error": _error(fields["last_execution"]), "next": decision.at}
    event = JobEvent("job.failed", facts, execution.notes)
    attempted = _attempted(document, at, Again.RETRIED)
    return rescheduled(document["_id"], document["attempts"], fields, unset, attempted=attempted, event=event)


def decide_for(
    document: Document, policy: RetryPolicy | None, at: datetime, error: BaseException | None = None
) -> Decision:
    """The decision about a job whose attempt failed with this error; without an error, its process died."""
    failure = Failure(
        attempt=document["attempts"] + 1,
        created_at=document["created_at"],
        scheduled_at=waits_after(document),
        failed_at=at,
        exception=error,
        exception_classes=() if error is None else exception_names(type(error)),
        crashed=error is None,
    )
    return decide(
        policy,
        failure,
        at_most_once=bool(document.get("at_most_once")),
        crashes=(document.get("crashes") or 0) + 1,
        max_crashes=document.get("max_crashes"),
    )


def crashed(
    document: Document,
    policies: PolicyRegistry,
    *,
    worker: str,
    started_at: datetime | None,
    at: datetime,
    message: str,
) -> Outcome:
    """A job whose process died: a failed attempt, which is also counted as a crash."""
    execution = Execution(started_at, at, worker, crashed=True, message=message)
    return unreported(failed(document, execution, at, decide_for(document, _policy(document, policies), at)))


def unreported(outcome: Outcome) -> Outcome:
    """The outcome of a job whose own process could not report it. If the job has ended, a worker whose application has
    instruments reports the end to them, once (`EndReporter`)."""
    return outcome.with_fields({"unreported": outcome.end.at}) if isinstance(outcome, ToArchive) else outcome


def worker_died(
    document: Document, *, worker: str, started_at: datetime | None, at: datetime, message: str, ran: bool = True
) -> Outcome:
    """A job that ran, or may have run, when its whole worker died: it waits again in its old place. This counts neither
    as an attempt nor as a crash, but as a worker death, and these are bounded."""
    deaths = worker_deaths_of(document) + 1
    fields: Document = {"worker_deaths": deaths}
    if ran:
        execution = Execution(started_at, at, worker, crashed=True, message=message)
        left = attempt_fields(document, execution)
        fields |= {name: left[name] for name in ("last_execution", "executions") if name in left}
    if deaths >= MAX_WORKER_DEATHS:
        fields["reason"] = f"its whole worker died {deaths} times; the last time: {message}"
        fields |= _concluded(document, State.FAILED, at, message)
        return unreported(to_archive(document, Why.WORKER_DIED_TOO_MANY_TIMES, at, fields))
    fields |= _concluded(document, State.WAITING, at, message)
    fields |= {"lane": lane_of(document, worker_deaths=deaths), **_begun(document, started_at, at)}
    return rescheduled(document["_id"], document["attempts"], fields)


def snoozed(
    document: Document,
    at: datetime,
    until: datetime,
    reason: str,
    started_at: datetime | None = None,
    *,
    also: Mapping[str, Any] = MappingProxyType({}),
    signals: Sequence[tuple[str, int]] = (),
) -> Rescheduled:
    """A job that asked to be run later, or whose own transaction met others for too long (`also` counts that): no
    attempt is counted, and nothing has failed."""
    snoozes = document.get("snoozes") or 0
    fields = {"scheduled_at": until, "postponed": until > at, "snoozes": snoozes + 1, "snoozed": reason, **also}
    fields |= _concluded(document, State.WAITING, at) | _begun(document, started_at, at)
    return rescheduled(
        document["_id"],
        document["attempts"],
        fields,
        UNLOCKED + _forget_worker_deaths(document, fields),
        snoozes=snoozes,
        attempted=_attempted(document, at, Again.SNOOZED),
        signals=signals,
        event=JobEvent("job.snoozed", {"next": until, "reason": reason}),
    )


def _has_come(name: str, number: int) -> Document:
    """The expression: the job has at least this number of signals of this name."""
    named = {"$filter": {"input": {"$ifNull": ["$signals", []]}, "cond": {"$eq": ["$$this.name", {"$literal": name}]}}}
    return {"$gte": [{"$size": named}, number]}


def _forget_worker_deaths(document: Document, fields: Document) -> tuple[str, ...]:
    """The attempt did not kill its worker: earlier worker deaths no longer count. Adds to the fields, and returns the
    fields to unset."""
    if "worker_deaths" not in document:
        return ()
    fields["lane"] = lane_of(document, group=fields.get("group", document["group"]), worker_deaths=0)
    return ("worker_deaths",)


def paused(
    document: Document,
    at: datetime,
    until: datetime,
    pause: JobPauses,
    told: str,
    started_at: datetime,
    checkpoints: Sequence[Document] | None,
) -> Rescheduled:
    """A job that sleeps or waits for a signal: no attempt is counted, and nothing has failed. The `checkpoints` are all
    that it has, if some of them are not stored."""
    also: Document = {} if checkpoints is None else {"checkpoints": checkpoints}
    if pause.waits_for is not None:
        also["waits_for"] = record(pause.waits_for)
    return snoozed(document, at, until, told, started_at, also=also, signals=pause.signals)


def ended_by_force(
    document: Document,
    policies: PolicyRegistry,
    error: RecruiterError,
    *,
    worker: str,
    started_at: datetime,
    at: datetime,
) -> Outcome:
    """The outcome of a job whose process the supervisor killed because the job broke a limit: a failure with this
    error, which the job's process could no longer report."""
    policy = _policy(document, policies)
    if isinstance(policy, _UnknownToSupervisor):  # it retries without end, so this counts as a crash: these are bounded
        return crashed(document, policies, worker=worker, started_at=started_at, at=at, message=str(error))
    execution = Execution(started_at, at, worker, exception=exception_names(type(error))[0], message=str(error))
    return unreported(failed(document, execution, at, decide_for(document, policy, at, error)))


def not_started(document: Document) -> Rescheduled:
    """A job that was marked as started but did not start: it waits again, unchanged."""
    return rescheduled(document["_id"], document["attempts"], {}, ("started_by", "started_at"))


def interrupted(document: Document, progress: Document, started_at: datetime, happened: Document) -> Rescheduled:
    """A job that was started and ended by us: it waits again, with the progress that it has reported, and no attempt is
    counted. Its run loses its token, and its history gets an entry."""
    fields = progress | _begun(document, started_at, started_at)
    return rescheduled(document["_id"], document["attempts"], fields, happened=happened)


def cancelled_by(document: Document) -> dict[str, str]:
    """The person who cancelled a job, and the reason, for the log."""
    flag = document.get("cancel")
    flag = flag if isinstance(flag, Mapping) else {}
    return {"by": str(flag.get("by") or "somebody"), "reason": str(flag.get("reason") or "no reason given")}


def cancelled(document: Document, at: datetime, execution: Execution | None = None) -> ToArchive:
    """A job that was cancelled, while it waited or, with an execution, while it ran."""
    flag = document.get("cancel")
    reason = flag.get("reason") if isinstance(flag, dict) else None
    fields = {"reason": reason, **_concluded(document, State.CANCELLED, at)}
    if execution is not None:
        fields |= attempt_fields(document, execution)
    return to_archive(document, Why.CANCELLED, at, fields)


def expired(document: Document, at: datetime) -> ToArchive:
    """A job that expired before it started."""
    what = "its next attempt" if document.get("attempts") else "it"
    reason = f"{what} had not started by {document['expires_at'].isoformat(' ', 'seconds')}, when it expired"
    fields = {"reason": reason, **_concluded(document, State.CANCELLED, at)}
    return to_archive(document, Why.EXPIRED, at, fields)


def not_released(document: Document, why: Why, at: datetime, reason: str) -> ToArchive:
    """A step of a flow that will not start: a step that it waits for has failed, or its arguments cannot be."""
    fields = {"reason": reason, **_concluded(document, State.at_the_end(False, why), at)}
    return to_archive(document, why, at, fields)


def misplaced(document: Document, at: datetime) -> Rescheduled:
    """A job that came to a process which does not know its task: to the lane where it belongs, or to wait a while."""
    lane = lane_of(document)
    later = {"scheduled_at": at + UNKNOWN_TASK_PAUSE, "postponed": True}
    fields = {"lane": lane} if document.get("lane") != lane else later
    return rescheduled(document["_id"], document["attempts"], fields, event=JobEvent("job.misplaced", {}))


def unopened(document: Document, at: datetime, reason: str) -> Rescheduled:
    """A job whose payload this process cannot open: it waits a while for a worker with the codec and the key. Its code
    has not run, and no attempt is counted."""
    fields = {"scheduled_at": at + UNKNOWN_TASK_PAUSE, "postponed": True, "unopened": cut(reason)}
    event = JobEvent("job.unopened", {"error": fields["unopened"]})
    return rescheduled(document["_id"], document["attempts"], fields, event=event)


def unreadable(id: JobId, raw: bytes, at: datetime, reason: str) -> ToArchive:
    """A document that cannot be a job, and was found out too late to be set aside before."""
    record = {"_id": id, "done": False, "why": Why.MALFORMED, "reason": reason, "archived_at": at, **place_in_flow(raw)}
    return as_archived({**record, "original": plain_value(raw)})


def place_in_flow(raw: bytes) -> Document:
    """The place in a flow, which must be kept of a document that cannot be a job: other steps wait for it."""
    place = flow_of(decode_leniently(raw)) if raw else None
    return {} if place is None else {"flow": flow_document(place)}


def reduced(id: JobId, outcome: Outcome, original: bytes | None, at: datetime, reason: str) -> Iterator[Outcome | None]:
    """Smaller forms of an outcome whose document MongoDB refuses, the fullest form first.

    A job that is to run again does so, without the record of its attempts; if that is refused too, it is archived with
    its original document, which holds its arguments. A job that has ended is archived without what may be large.
    """
    reason = f"the outcome could not be stored as it was: {reason}"
    record: Document = {"_id": id, "done": False, "why": Why.MALFORMED, "archived_at": at, "reason": reason}
    record |= place_in_flow(outcome.document if isinstance(outcome, ToArchive) else original or b"")
    if isinstance(outcome, Rescheduled):
        yield outcome._replace(
            updates=[Update(update.query, _without_large_fields(update.update)) for update in outcome.updates]
        )
        yield from (as_archived({**record, "original": value}) for value in as_value(original or b""))
        return
    ended: Document = {}
    with contextlib.suppress(Exception):
        ended = decode(outcome.document)
    for dropped in (_LARGE_FIELDS, ended.keys() - _SMALL_FIELDS):
        kept = {name: value for name, value in ended.items() if name not in dropped}
        with contextlib.suppress(*DRIVER_REFUSES):
            yield as_archived(
                {**kept, **record, "done": kept.get("done", False), "why": kept.get("why", Why.MALFORMED)}
            )
    yield as_archived(record)


def _without_large_fields(changes: Document) -> Document:
    """An update without the fields that may be large."""
    planned = {name: value for name, value in changes.get("$set", {}).items() if name in _PLANNED_FIELDS}
    kept = {operator: value for operator, value in changes.items() if operator == "$unset"}
    return {"$set": planned, **kept} if planned else kept


def _begun(document: Document, started_at: datetime | None, at: datetime) -> Document:
    """That the job has begun, in its first run or before (see `begun_at` in job_fields.py)."""
    return {"begun_at": begun_at(document) or started_at or at}


def _attempted(document: Document, at: datetime, again: Again) -> Attempted | None:
    """The attempt to be counted; None if the document has no group or task."""
    group, task = document.get("group"), document.get("task")
    return Attempted(at, group, task, again) if is_text(group) and is_text(task) else None


def _concluded(document: Document, state: State, at: datetime, error: str | None = None) -> Document:
    """The last status entry, for a job that has reported progress; nothing for others."""
    if "status" not in document and "log" not in document:
        return {}
    return progress_fields(progress_from(document).concluded(state, at, error))


class _UnknownToSupervisor(RetryPolicy):
    """Stands for a custom policy of the application, which only the children know: the job runs again immediately."""

    def decide(self, failure: Failure) -> Decision:
        return Retry(failure.scheduled_at if failure.crashed else failure.failed_at)


def _policy(document: Document, policies: PolicyRegistry) -> RetryPolicy | None:
    stored = document.get("retry_policy")
    if stored is None:
        return None
    try:
        return policies.load(stored)
    except RecruiterError:
        return _UnknownToSupervisor()
