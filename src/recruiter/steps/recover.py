"""Recover: a job that has ended, once more; under a new id, and it knows where it came from."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime

from recruiter.domain.job import ArchivedJob, Job, JobId
from recruiter.errors import InvalidJob, JobNotFound
from recruiter.store.codec import encode_job, new_id
from recruiter.store.database import Store

_FRESH = {"id", "created_at", "scheduled_at", "attempts", "crashes", "snoozes", "suspect", "executions"}
_FRESH |= {"status", "progress", "stage", "log", "status_cut", "log_cut", "locked_by", "locked_at"}


def recover(store: Store, id: JobId, now: datetime, at: datetime | None) -> Job:
    """Makes the job anew, due now or then; what happened to the old one stays with it in the archive."""
    ended = store.archived.get(id)
    if ended is None:
        waiting = " it has not ended yet" if store.scheduled.exists(id) else " there is no such job"
        raise JobNotFound(f"job {id!r} cannot be recovered:{waiting}")
    if not ended.task:
        raise InvalidJob(f"document {id!r} was set aside and is no job: {ended.reason}; correct it and insert it again")
    job = _anew(ended, now, at or now)
    for error in store.scheduled.insert([encode_job(job)]).values():
        raise InvalidJob(f"job {id!r} cannot be recovered: {error}")
    return job


def _anew(ended: ArchivedJob, now: datetime, at: datetime) -> Job:
    kept = {field.name: getattr(ended, field.name) for field in fields(Job) if field.name not in _FRESH}
    return Job(**{**kept, "id": new_id(), "created_at": now, "scheduled_at": at, "recovered_from": ended.id})
