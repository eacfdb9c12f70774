"""A job that a worker holds: its document as bytes, the fields that the worker reads, and its outcome when it does not
end by itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bson import ObjectId

from recruiter.domain.job import Happened, JobId
from recruiter.domain.names import BLOCKED_LANE, CANCELLED_LANE
from recruiter.domain.planning.needs import THOUSAND, amount_of
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.errors import RecruiterError
from recruiter.instruments import trace_id_of
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode, step_of
from recruiter.store.job_fields import history_entry
from recruiter.store.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that a worker holds. An unreadable document has only an id and bytes: the child reports it."""

    id: JobId
    raw: bytes
    task: str | None = None
    group: str | None = None
    priority: int = 0
    attempts: int = 0
    scheduled_at: datetime | None = None
    at_most_once: bool = False
    debounced_until: datetime | None = None
    """When it is due, if producers may still change it: it is debounced and has not begun."""
    was_changed: bool = False
    """A person or a producer (`debounce`) may have put it off after the leader had found it."""
    is_cancelled: bool = False
    is_paused: bool = False
    """It is a step of a paused flow."""
    flow: ObjectId | None = None
    has_limit_key: bool = False
    memory: int | None = None
    """The bytes of memory that it asked for; it may not use more."""
    locked_by: str | None = None
    trace_id: str | None = None

    @classmethod
    def read(cls, id: JobId, raw: bytes) -> HeldJob:
        """The job in this document of `scheduled`."""
        try:
            document = decode(raw)
            flow, due, debounced = document.get("flow"), document.get("scheduled_at"), document.get("debounced") is True
            step = step_of(document)
            is_held = isinstance(flow, dict) and flow.get("held") is not None
            has_begun = document.get("begun_at") is not None
            return cls(
                id,
                raw,
                task=document["task"],
                group=document.get("group"),
                priority=int(document.get("priority") or 0),
                attempts=int(document.get("attempts") or 0),
                scheduled_at=due if isinstance(due, datetime) else None,
                at_most_once=bool(document.get("at_most_once")),
                debounced_until=due if debounced and not has_begun and isinstance(due, datetime) else None,
                was_changed=debounced or "history" in document,
                is_cancelled=document.get("lane") == CANCELLED_LANE,
                is_paused=is_held and document.get("lane") == BLOCKED_LANE,
                flow=step[0] if step is not None else None,
                has_limit_key=document.get("key") is not None,
                memory=_memory_of(document),
                locked_by=document.get("locked_by"),
                trace_id=trace_id_of(document.get("trace_context")),
            )
        except Exception:
            return cls(id, raw)

    @property
    def needs_mark(self) -> bool:
        """Whether its start is written down before it starts."""
        return self.at_most_once or self.debounced_until is not None

    def is_postponed(self, until: datetime) -> bool:
        """Whether it was put off, and is not due by then. No other job is assigned before its time."""
        return self.was_changed and self.scheduled_at is not None and self.scheduled_at > until

    def facts(self, worker: str) -> dict[str, Any]:
        """The fields of every event about it."""
        if self.task is None:
            return {"job": self.id, "worker": worker}
        facts = {"job": self.id, "task": self.task, "attempt": self.attempts + 1, "worker": worker}
        return facts if self.trace_id is None else {**facts, "trace_id": self.trace_id}


def _memory_of(document: Document) -> int | None:
    try:
        return amount_of("mem", document["mem"]) // THOUSAND or None if "mem" in document else None
    except RecruiterError:
        return None


def not_started(job: HeldJob) -> Outcome | None:
    """The outcome of a job that was marked as started and is handed back."""
    try:
        return outcomes.not_started(decode(job.raw))
    except Exception:
        return None  # it cannot be read: the next worker reports it


def crashed(
    job: HeldJob,
    policies: PolicyRegistry,
    worker: str,
    at: datetime,
    how: str,
    progress: Document,
    started_at: datetime | None = None,
) -> Outcome:
    """The outcome of a job that was started and will not come to its end, whatever is in its document. `progress` are
    the fields that it has reported."""
    try:
        document = decode(job.raw) | progress
        return outcomes.crashed(document, policies, worker=worker, started_at=started_at, at=at, message=how)
    except Exception as error:
        return outcomes.unreadable(job.id, job.raw, at, f"{how}, and the job cannot be read: {error}")


def interrupted(
    job: HeldJob,
    policies: PolicyRegistry,
    worker: str,
    at: datetime,
    why: str,
    progress: Document,
    started_at: datetime,
) -> Outcome | None:
    """The outcome of a started job that its worker has ended: it is handed back, and no attempt is counted. Its run may
    no longer write. An at-most-once job cannot be started again: it is lost."""
    if job.at_most_once:
        return crashed(job, policies, worker, at, why, progress, started_at)
    try:
        happened = history_entry(Happened.HANDED_BACK, at, f"worker {worker}", why)
        return outcomes.interrupted(decode(job.raw), progress, started_at, happened)
    except Exception:
        return None  # it cannot be read: the next worker reports it
