"""Find: a job wherever it is, with who holds it.

That is written on the roster, whatever the document says; only before it is adopted another program may hold it.
"""

from __future__ import annotations

from dataclasses import replace

from recruiter.domain.job import Job, JobId
from recruiter.errors import InvalidJob, UnreadableDocument
from recruiter.store.codec import job_from
from recruiter.store.collections.inbox import job_elsewhere
from recruiter.store.database import Store
from recruiter.store.search.summaries import locked_at


def find(store: Store, id: JobId) -> Job | None:
    """The job; an ArchivedJob when it has ended, None when there is none. Raises UnreadableDocument."""
    document = store.scheduled.document(id)
    if document is None:
        return store.archived.get(id)
    if document.get("lane") is None:
        return job_elsewhere(document, store.clock.now())
    try:
        job = job_from(document)
    except (UnreadableDocument, InvalidJob) as error:
        raise UnreadableDocument(f"job {id!r} cannot be read: {error}") from None
    holder = store.roster.holder(id)
    if holder is None:
        return replace(job, locked_by=None, locked_at=None)
    return replace(job, locked_by=holder.worker, locked_at=locked_at(document, holder))
