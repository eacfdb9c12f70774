"""The outcome of an attempt, as documents: the job is archived, or it waits again with what the attempt left behind.

Outcomes are built by the child that ran the job, by the supervisor whose child died, and by the leader that retires a
worker. `transactions.py` writes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from recruiter.domain.job import Execution, JobId
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
from recruiter.domain.statistics import Again, Attempted
from recruiter.domain.text import cut
from recruiter.errors import JobPauses, RecruiterError
from recruiter.store.codec import (
    LARGEST_JOB,
    Document,
    archived_document,
    as_value,
    decode,
    encode,
    flow_of,
    lane_of,
    plain_value,
    progress_fields,
    remember,
    worker_deaths_of,
)
from recruiter.store.errors import DRIVER_REFUSES
from recruiter.store.fields import is_text
from recruiter.store.job_fields import UNLOCKED, Use, begun_at, flow_document, names, progress_from

_UNKNOWN_TASK_PAUSE = timedelta(minutes=1)
_SMALL_FIELDS = frozenset(names(Use.SMALL))
_LARGE_FIELDS = frozenset(names(Use.LARGE))
_PLANNED_FIELDS = frozenset(names(Use.PLANNED))


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """A job that stays in `scheduled`, with the fields that change."""

    id: JobId
    attempts: int
    """What `attempts` must still be; if it moved, this was done before."""
    fields: Mapping[str, Any]
    unset: tuple[str, ...] = ()
    snoozes: int | None = None
    """Likewise what `snoozes` must still be, where `attempts` does not move."""
    attempted: Attempted | None = None
    """The attempt that is over, to be counted; None where none is."""
    signal: tuple[str, int] | None = None
    """It waits for so many signals of this name: if they have come meanwhile, it is due at once."""
    happened: Mapping[str, Any] | None = None
    """An entry for the history of the job."""


class Settled(NamedTuple):
    """A job that has ended in its own transaction (see job_transaction.py). Nothing is left to write for it."""

    document: bytes
    """As it is in the archive."""


Outcome = bytes | Rescheduled | Settled
"""What an attempt leads to: an archived document, or a change to a waiting one. Where None stands instead, the job is
let go as it was."""


@dataclass(frozen=True, slots=True)
class OutcomeBatch:
    """The outcomes of some jobs, for one transaction: archive (as raw documents), reschedule, or just let go."""

    archive: Mapping[JobId, bytes | Document] = field(default_factory=dict)
    reschedule: Sequence[Rescheduled] = ()
    release: Sequence[JobId] = ()
    forget: Sequence[JobId] = ()
    """Jobs that are in the archive already: only taken out of `scheduled`."""

    @classmethod
    def of(cls, outcomes: Iterable[tuple[JobId, Outcome | None]]) -> OutcomeBatch:
        archive: dict[JobId, bytes | Document] = {}
        reschedule: list[Rescheduled] = []
        release: list[JobId] = []
        for id, outcome in outcomes:
            if isinstance(outcome, bytes):
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
            {id: document for id, document in self.archive.items() if id in held},
            [job for job in self.reschedule if job.id in held],
            self.release,
            [id for id in self.forget if id in held],
        )

    def without(self, archived: Collection[JobId]) -> OutcomeBatch:
        rest = {id: document for id, document in self.archive.items() if id not in archived}
        return replace(self, archive=rest, forget=[*self.forget, *archived])


def succeeded(document: Document, execution: Execution, at: datetime, result: Any) -> bytes:
    fields = {**remember(document, execution), **_concluded(document, State.SUCCEEDED, at)}
    if result is not None:
        fields["result"] = result
    raw = encode(archived_document(document, Why.DONE, at, fields))
    if len(raw) <= LARGEST_JOB:
        return raw
    del fields["result"]
    fields["reason"] = f"the job succeeded; its result made {len(raw):,} bytes and was not kept"
    return encode(archived_document(document, Why.DONE, at, fields))


def with_fields(raw: bytes, fields: Document) -> bytes:
    """An archived document with these fields. Its end, which statistics.py reads, stays the end."""
    document = decode(raw)
    return encode({"_id": document.pop("_id"), **fields, **{k: v for k, v in document.items() if k not in fields}})


def noted(raw: bytes, notes: tuple[str, ...]) -> bytes:
    """An archived document with notes on its last execution, to be told; it is not written."""
    document = decode(raw)
    document["last_execution"] = {**document["last_execution"], "notes": list(notes)}
    return encode(document)


def failed(document: Document, execution: Execution, at: datetime, decision: Decision) -> Outcome:
    """The outcome of a failed attempt, after the decision."""
    fields = remember(document, execution)
    error = ": ".join(filter(None, (execution.exception, execution.message)))
    if isinstance(decision, Archive):
        fields |= _concluded(document, State.at_the_end(False, decision.why), at, error)
        if decision.reason is not None:
            fields["reason"] = decision.reason
        return encode(archived_document(document, decision.why, at, fields))
    fields |= _concluded(document, State.WAITING, at, error)
    fields.update(scheduled_at=decision.at, postponed=decision.at > at, **_begun(document, execution.started_at, at))
    unset: tuple[str, ...] = UNLOCKED
    if "snoozed" in document:
        unset += ("snoozed",)  # it waits for another reason now
    if decision.group is not None:
        fields.update(group=decision.group, lane=lane_of(document, group=decision.group))
    attempted = _attempted(document, at, Again.RETRIED)
    outcome = Rescheduled(document["_id"], document["attempts"], fields, unset, attempted=attempted)
    return outcome if execution.crashed else _ended_by_itself(document, outcome)


def decide_for(
    document: Document, policy: RetryPolicy | None, at: datetime, error: BaseException | None = None
) -> Decision:
    """What to do with a job whose attempt failed with this error; without one, its process died."""
    failure = Failure(
        attempt=document["attempts"] + 1,
        created_at=document["created_at"],
        scheduled_at=document["scheduled_at"],
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
    """The outcome of a job whose process died."""
    execution = Execution(started_at, at, worker, crashed=True, message=message)
    return failed(document, execution, at, decide_for(document, _policy(document, policies), at))


def worker_died(
    document: Document, *, worker: str, started_at: datetime | None, at: datetime, message: str, ran: bool = True
) -> Outcome:
    """A job that ran, or may have run, when its whole worker died: it waits again in its old place. This counts neither
    as an attempt nor as a crash, but as a worker death, and these are bounded."""
    deaths = worker_deaths_of(document) + 1
    fields: Document = {"worker_deaths": deaths}
    if ran:
        execution = Execution(started_at, at, worker, crashed=True, message=message)
        left = remember(document, execution)
        fields |= {name: left[name] for name in ("last_execution", "executions") if name in left}
    if deaths >= MAX_WORKER_DEATHS:
        fields["reason"] = f"its whole worker died {deaths} times; the last time: {message}"
        fields |= _concluded(document, State.FAILED, at, message)
        return encode(archived_document(document, Why.WORKER_DIED_TOO_MANY_TIMES, at, fields))
    fields |= _concluded(document, State.WAITING, at, message)
    fields |= {"lane": lane_of(document, worker_deaths=deaths), **_begun(document, started_at, at)}
    return Rescheduled(document["_id"], document["attempts"], fields, UNLOCKED)


def snoozed(
    document: Document, at: datetime, until: datetime, reason: str, started_at: datetime | None = None
) -> Rescheduled:
    """A job that asked to be run later: no attempt is counted, and nothing has failed."""
    snoozes = document.get("snoozes") or 0
    fields = {"scheduled_at": until, "postponed": until > at, "snoozes": snoozes + 1, "snoozed": reason}
    fields |= _concluded(document, State.WAITING, at) | _begun(document, started_at, at)
    attempted = _attempted(document, at, Again.SNOOZED)
    outcome = Rescheduled(document["_id"], document["attempts"], fields, UNLOCKED, snoozes, attempted)
    return _ended_by_itself(document, outcome)


def _ended_by_itself(document: Document, outcome: Rescheduled) -> Rescheduled:
    """The attempt did not kill its worker: earlier worker deaths count no more."""
    if "worker_deaths" not in document:
        return outcome
    changed = {"group": outcome.fields.get("group", document["group"])}
    lane = lane_of(document, **changed, worker_deaths=0)
    return replace(outcome, fields={**outcome.fields, "lane": lane}, unset=(*outcome.unset, "worker_deaths"))


def conflicted(
    document: Document, at: datetime, until: datetime, reason: str, started_at: datetime | None = None
) -> Rescheduled:
    """A job whose own transaction has met others for too long: likewise. How often that has been is bounded."""
    outcome = snoozed(document, at, until, reason, started_at)
    return replace(outcome, fields={**outcome.fields, "conflicts": (document.get("conflicts") or 0) + 1})


def paused(
    document: Document, at: datetime, until: datetime, pause: JobPauses, started_at: datetime | None = None
) -> Rescheduled:
    """A job that sleeps or waits for a signal: no attempt is counted, and nothing has failed."""
    outcome = snoozed(document, at, until, str(pause), started_at)
    fields = {**outcome.fields, "checkpoints": pause.checkpoints} if pause.checkpoints else dict(outcome.fields)
    if pause.waits_for is not None:
        fields["waits_for"] = {name: value for name, value in pause.waits_for._asdict().items() if value is not None}
    return replace(outcome, fields=fields, signal=pause.signal)


def ended_by_force(
    document: Document,
    policies: PolicyRegistry,
    error: RecruiterError,
    *,
    worker: str,
    started_at: datetime,
    at: datetime,
) -> Outcome:
    """The outcome of a job that broke a limit, so that its process was ended: a failure with this error."""
    policy = _policy(document, policies)
    if isinstance(policy, _DecidedLater):  # counted like a crash, which is bounded
        return crashed(document, policies, worker=worker, started_at=started_at, at=at, message=str(error))
    execution = Execution(started_at, at, worker, exception=exception_names(type(error))[0], message=str(error))
    return failed(document, execution, at, decide_for(document, policy, at, error))


def not_started(document: Document) -> Rescheduled:
    """A job that was marked as started but did not start: it waits again, unchanged."""
    return Rescheduled(document["_id"], document["attempts"], {}, ("started_by", "started_at"))


def interrupted(document: Document, progress: Document, started_at: datetime, happened: Document) -> Rescheduled:
    """A job that was started and ended by us: it waits again, with the progress that it has reported, and no attempt is
    counted. Its run loses its token, and its history says what happened."""
    fields = progress | _begun(document, started_at, started_at)
    return Rescheduled(document["_id"], document["attempts"], fields, UNLOCKED, happened=happened)


def cancelled_by(document: Document) -> dict[str, str]:
    """Who has cancelled a job, and why, for the log."""
    cancel = document.get("cancel")
    said = cancel if isinstance(cancel, Mapping) else {}
    return {"by": str(said.get("by") or "somebody"), "reason": str(said.get("reason") or "no reason given")}


def cancelled(document: Document, at: datetime, execution: Execution | None = None) -> bytes:
    """A job that was cancelled, while it waited or, with an execution, while it ran."""
    flag = document.get("cancel")
    reason = flag.get("reason") if isinstance(flag, dict) else None
    fields = {"reason": reason, **_concluded(document, State.CANCELLED, at)}
    if execution is not None:
        fields |= remember(document, execution)
    return encode(archived_document(document, Why.CANCELLED, at, fields))


def expired(document: Document, at: datetime) -> bytes:
    """A job whose time to start is over."""
    reason = f"it had not started by {document['expires_at'].isoformat(' ', 'seconds')}, when it expired"
    fields = {"reason": reason, **_concluded(document, State.CANCELLED, at)}
    return encode(archived_document(document, Why.EXPIRED, at, fields))


def not_released(document: Document, why: Why, at: datetime, reason: str) -> bytes:
    """A step of a flow that will not start: a step that it waits for has failed, or its arguments cannot be."""
    fields = {"reason": reason, **_concluded(document, State.FAILED, at)}
    return encode(archived_document(document, why, at, fields))


def misplaced(document: Document, at: datetime) -> Rescheduled:
    """A job that came to a process which does not know its task: to the lane where it belongs, or to wait a while."""
    lane = lane_of(document)
    later = {"scheduled_at": at + _UNKNOWN_TASK_PAUSE, "postponed": True}
    fields = {"lane": lane} if document.get("lane") != lane else later
    return Rescheduled(document["_id"], document["attempts"], fields, UNLOCKED)


def unopened(document: Document, at: datetime, reason: str) -> Rescheduled:
    """A job whose payload this process cannot open: it waits a while for a worker with the codec and the key. Its code
    has not run, and no attempt is counted."""
    fields = {"scheduled_at": at + _UNKNOWN_TASK_PAUSE, "postponed": True, "unopened": cut(reason)}
    return Rescheduled(document["_id"], document["attempts"], fields, UNLOCKED)


def unreadable(id: JobId, raw: bytes, at: datetime, reason: str) -> bytes:
    """A document that cannot be a job, and was found out too late to be set aside before."""
    record = {"_id": id, "done": False, "why": Why.MALFORMED, "reason": reason, "archived_at": at, **place_in_flow(raw)}
    return encode({**record, "original": plain_value(raw)})


def place_in_flow(raw: bytes) -> Document:
    """What must be kept of a document that cannot be a job: if it is a step of a flow, others wait for it."""
    place = flow_of(raw)
    return {} if place is None else {"flow": flow_document(place)}


def reduced(id: JobId, outcome: Outcome, original: bytes | None, at: datetime, reason: str) -> Iterator[Outcome | None]:
    """What can be kept of an outcome whose document MongoDB refuses, the fullest form first.

    A job that is to run again does so, without the record of its attempts; if that is refused too, it is archived with
    its original document, which holds its arguments. A job that has ended is archived without what may be large.
    """
    reason = f"the outcome could not be stored as it was: {reason}"
    record: Document = {"_id": id, "done": False, "why": Why.MALFORMED, "archived_at": at, "reason": reason}
    record |= place_in_flow(outcome if isinstance(outcome, bytes) else original or b"")
    if isinstance(outcome, Rescheduled):
        fields = {name: value for name, value in outcome.fields.items() if name in _PLANNED_FIELDS}
        yield replace(outcome, fields=fields, happened=None)
        yield from (encode({**record, "original": value}) for value in as_value(original or b""))
        return
    ended: Document = {}
    with contextlib.suppress(Exception):
        ended = decode(outcome.document if isinstance(outcome, Settled) else outcome)
    for dropped in (_LARGE_FIELDS, ended.keys() - _SMALL_FIELDS):
        kept = {name: value for name, value in ended.items() if name not in dropped}
        with contextlib.suppress(*DRIVER_REFUSES):
            yield encode({**kept, **record, "done": kept.get("done", False), "why": kept.get("why", Why.MALFORMED)})
    yield encode(record)


def _begun(document: Document, started_at: datetime | None, at: datetime) -> Document:
    """That the job has begun, in its first run or before (see `begun_at` in job_fields.py)."""
    return {"begun_at": begun_at(document) or started_at or at}


def _attempted(document: Document, at: datetime, again: Again) -> Attempted | None:
    """To be counted; None where the document does not say of what."""
    group, task = document.get("group"), document.get("task")
    return Attempted(at, group, task, again) if is_text(group) and is_text(task) else None


def _concluded(document: Document, state: State, at: datetime, error: str | None = None) -> Document:
    """The last status entry, for a job that has reported progress; nothing for others."""
    if "status" not in document and "log" not in document:
        return {}
    return progress_fields(progress_from(document).concluded(state, at, error))


class _DecidedLater(RetryPolicy):
    """Stands for a custom policy of the application, which only the children know: the job runs again at once."""

    def decide(self, failure: Failure) -> Decision:
        return Retry(failure.scheduled_at if failure.crashed else failure.failed_at)


def _policy(document: Document, policies: PolicyRegistry) -> RetryPolicy | None:
    stored = document.get("retry_policy")
    if stored is None:
        return None
    try:
        return policies.load(stored)
    except RecruiterError:
        return _DecidedLater()
