"""Run here: an optimistic job runs in the calling process, now. Only its retries go to the background."""

from __future__ import annotations

from collections.abc import Callable

from recruiter.domain.job import Job
from recruiter.errors import InvalidJob, JobExists
from recruiter.store.codec import encode, job_document
from recruiter.store.database import Store
from recruiter.store.outcomes import Outcome


def run_here(store: Store, run: Callable[[bytes], Outcome], job: Job, *, own_id: bool = False) -> None:
    """Runs the job and stores what became of it: archived, or waiting for its next attempt. With an id of the user's
    own (`own_id`) another job may have come by it meanwhile: JobExists, and that one is left as it is."""
    document = job_document(job)
    outcome = run(encode(document))
    if isinstance(outcome, bytes):
        if not store.transactions.archive_new(job.id, outcome, own_id=own_id):
            raise _taken(job)
        return
    waiting = {**document, **outcome.fields}
    if own_id:
        if not store.transactions.create(waiting, once_ever=False):
            raise _taken(job)
        return
    for error in store.scheduled.insert([waiting]).values():
        raise InvalidJob(f"the retry of job {job.id!r} of task {job.task!r} could not be stored: {error}")


def _taken(job: Job) -> JobExists:
    return JobExists(
        f"job {job.id!r} of task {job.task!r} ran here, and meanwhile another job was stored under this id; that one "
        "was left as it is, and what became of this one is not stored"
    )
