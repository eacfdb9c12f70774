"""Find: a job wherever it is, with who holds it. That is written on the roster, whatever the document says."""

from __future__ import annotations

from dataclasses import replace

from recruiter.domain.job import Job, JobId
from recruiter.store.database import Store


def find(store: Store, id: JobId) -> Job | None:
    """The job; an ArchivedJob when it has ended, None when there is none."""
    job = store.scheduled.get(id)
    if job is None:
        return store.archived.get(id)
    holder = store.roster.holder(id)
    if holder is None:
        return replace(job, locked_by=None, locked_at=None)
    worker, since = holder
    return replace(job, locked_by=worker, locked_at=since or (job.locked_at if job.locked_by == worker else None))
