"""Settle: writes the outcomes of a worker's jobs, a batch in one transaction; or of one job that ran inline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recruiter.domain.job import Job, JobId
from recruiter.errors import InvalidJob, JobExists
from recruiter.store.codec import encode, job_document
from recruiter.store.collections.roster import Holding
from recruiter.store.database import Store
from recruiter.store.outcomes import Outcome, OutcomeBatch


def settle(
    store: Store, worker: str, outcomes: Sequence[tuple[JobId, Outcome | None]], facts: Mapping[str, Any]
) -> Holding:
    """Writes the outcomes and takes the jobs off the worker's list; returns what the worker still holds.

    Raises Superseded, with nothing written, when the worker has been retired: its jobs are somebody else's now.
    """
    batch = OutcomeBatch.of(outcomes)
    if batch.archive or batch.reschedule:
        return store.transactions.settle(worker, batch, facts)
    return store.transactions.hand_back(worker, batch.release)


def run_inline(store: Store, run: Callable[[bytes], Outcome], job: Job, *, own_id: bool = False) -> None:
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
