"""A job as JSON, the same for the command line and the API: generated from the table of a job's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any

from recruiter.domain.job import Job
from recruiter.domain.planning.needs import Needs
from recruiter.store.job_fields import JOB_FIELDS, Use, attributes
from recruiter.store.payload import shown_payload

DETAILS = attributes(Use.DETAIL)
"""Left out of short records."""
FIELDS = tuple(dict.fromkeys(row.attribute for row in JOB_FIELDS if row.attribute not in (None, "flow", "changes")))
DERIVED = ("key", "state", "started_at", "ended_at", "error", "message", "worker", "cancelling")
_PAYLOADS = frozenset({"args", "result", "data", "retry_policy"})
"""Values of the application, possibly sealed; also inside checkpoints, signals and results of steps."""


def job_record(job: Job, *, minimal: bool = False, payload: Callable[[Any], Any] = shown_payload) -> dict[str, Any]:
    """Every field of a job, and the derived ones. `minimal` leaves the details out. `payload` makes arguments,
    results and data of signals presentable."""
    record: dict[str, Any] = {}
    for name in (*FIELDS, *DERIVED):
        if not minimal or name not in DETAILS:
            record[name] = _plain(name, getattr(job, name, None), payload)
    record["flow"] = None if job.flow is None else job.flow.flow
    if not minimal:
        record["flow_step"] = _plain("flow", job.flow, payload)
        record["history"] = [{**entry._asdict(), "text": str(entry)} for entry in job.history]
    return record


def _plain(name: str, value: Any, payload: Callable[[Any], Any]) -> Any:
    """The value of this field, made of mappings, lists and plain values."""
    if name in _PAYLOADS:
        return payload(value)
    if isinstance(value, Needs):
        return value.amounts()
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(key, inner, payload) for key, inner in value.items()}
    if isinstance(value, tuple | frozenset):
        return [_plain("", inner, payload) for inner in value]
    return value
