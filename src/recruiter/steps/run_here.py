"""Run here: an optimistic job runs in the calling process, now. Only its retries go to the background."""

from __future__ import annotations

from collections.abc import Callable

from recruiter.domain.job import Job
from recruiter.errors import InvalidJob
from recruiter.store.codec import encode, job_document
from recruiter.store.database import Store
from recruiter.store.moves import Ended


def run_here(store: Store, run: Callable[[bytes], Ended], job: Job) -> None:
    """Runs the job and stores what became of it: archived, or waiting for its next attempt."""
    document = job_document(job)
    move = run(encode(document))
    if isinstance(move, bytes):
        store.settlement.archive_new(job.id, move)
    else:
        for error in store.scheduled.insert([{**document, **move.fields}]).values():
            raise InvalidJob(f"the retry of job {job.id!r} of task {job.task!r} could not be stored: {error}")
