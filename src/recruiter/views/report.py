"""Report: what an attempt in the calling process has led to, for the caller."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

from recruiter.domain.arguments.typed import decode_result
from recruiter.domain.job import JobReport
from recruiter.errors import RecruiterError
from recruiter.registry import FunctionTask, Registry
from recruiter.store.codec import Document, decode
from recruiter.store.outcomes import Outcome, Rescheduled, Settled
from recruiter.store.payload import PLAIN, Payload


def report(registry: Registry, raw: bytes, ended: Outcome, payload: Payload = PLAIN) -> JobReport:
    """The report of the job in these bytes, which has been run and has come to this."""
    job = _decoded(raw)
    task = str(job.get("task", ""))
    if isinstance(ended, Rescheduled):
        error = _error(ended.fields.get("last_execution"))
        return JobReport(ended.id, task, False, error=error, next_at=_as_stored(ended.fields.get("scheduled_at")))
    archived = decode(ended.document if isinstance(ended, Settled) else ended)
    if archived["done"]:
        result = _result(registry, task, archived.get("result"), payload)
        return JobReport(archived["_id"], task, True, archived["why"], result)
    error = _error(archived.get("last_execution")) or archived.get("reason")
    return JobReport(archived["_id"], task, False, archived["why"], error=error)


def _result(registry: Registry, task: str, stored: Any, payload: Payload) -> Any:
    definition = registry.find(task)
    returns = definition.signature.returns if isinstance(definition, FunctionTask) else Any
    try:
        return decode_result(payload.open(task, stored), returns)
    except RecruiterError:
        return stored  # the job is done all the same


def _error(execution: Document | None) -> str | None:
    if execution is None:
        return None
    message = execution.get("message")
    return f"{execution['class']}: {message}" if "class" in execution else message


def _as_stored(moment: datetime | None) -> datetime | None:
    """BSON cuts to milliseconds."""
    return None if moment is None else moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _decoded(raw: bytes) -> Document:
    with contextlib.suppress(Exception):  # it could not be run either, and the archived record says so
        return decode(raw)
    return {}
