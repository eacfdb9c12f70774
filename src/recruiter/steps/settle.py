"""Settle: writes the outcomes of a worker's jobs, a whole batch in one transaction.

gather    one set of writes for the batch
write     one transaction, fenced by the registration of the worker
bisect    if MongoDB refuses a document, or another transaction holds it, the batch is halved until the outcome at
          fault is alone
reduce    smaller forms of that outcome are written, until MongoDB accepts one

`run_inline` writes the outcome of one job that ran in the calling process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from recruiter.domain.job import Job, JobId
from recruiter.domain.names import id_told
from recruiter.errors import DocumentLocked, DocumentRefused, InvalidJob, JobExists
from recruiter.store.batches import write_first_accepted, write_split
from recruiter.store.codec import Document, decode_leniently, encode, job_document
from recruiter.store.database import Store
from recruiter.store.in_session import in_own_transaction
from recruiter.store.outcomes import (
    Outcome,
    OutcomeBatch,
    Rescheduled,
    Settled,
    ToArchive,
    event_of,
    reduced,
)
from recruiter.store.roster_fields import Holding


def settle(
    store: Store,
    worker: str,
    outcomes: Sequence[tuple[JobId, Outcome | None]],
    facts: Mapping[str, Any],
    on_reduced: Callable[[JobId, DocumentRefused], None] = lambda _id, _refused: None,
    on_locked: Callable[[JobId], None] | None = None,
) -> Holding:
    """Writes the outcomes and releases the jobs; returns the worker's remaining jobs. `facts` are written on the
    worker's entry of the roster, unless all jobs are handed back. The outcome None hands its job back.

    If MongoDB refuses a document, `on_reduced` is called with its job, and a smaller form of the outcome is stored. If
    another transaction holds a job, its outcome is not written, and `on_locked` is called with the job. Raises
    DocumentLocked if no job could be settled; without `on_locked`, also if one could not, after the others. Raises
    Superseded, with nothing written, when the worker was retired. After every other error the whole batch can be
    settled again: the part that is written already is not written twice.
    """
    answers: list[Holding] = []
    locked: list[DocumentLocked] = []

    def write(batch: Sequence[tuple[JobId, Outcome | None]]) -> None:
        gathered = OutcomeBatch.of(batch)
        if gathered.archive or gathered.reschedule:
            answers.append(store.transactions.settle(worker, gathered, facts))
        else:
            # Jobs are only handed back: this needs no transaction.
            answers.append(store.transactions.hand_back(worker, gathered.release))

    def write_alone(item: tuple[JobId, Outcome | None], error: DocumentRefused | DocumentLocked) -> None:
        id, outcome = item
        if isinstance(error, DocumentLocked):
            locked.append(error)
            if on_locked is not None:
                on_locked(id)
        elif outcome is None:
            raise error
        else:
            on_reduced(id, error)
            write_reduced(id, outcome, error)

    def write_reduced(id: JobId, outcome: Outcome, refused: DocumentRefused) -> None:
        """Writes the first form of an outcome that MongoDB accepts. Raises the last refusal if it accepts none."""
        original = dict(store.scheduled.fetch([id])).get(id)
        if original is None and isinstance(outcome, Rescheduled):
            write([(id, None)])  # the job was removed: there is nothing to keep
            return
        forms = reduced(id, outcome, original, store.clock.now(), str(refused))
        write_first_accepted(forms, lambda form: write([(id, form)]), refused)

    write_split(outcomes, write, write_alone)
    if not answers or (locked and on_locked is None):
        raise locked[-1]
    return answers[-1]


def as_children_left_them(
    store: Store, outcomes: Sequence[tuple[JobId, Outcome | None]], crashed: Collection[JobId]
) -> list[tuple[JobId, Outcome | None]]:
    """The outcomes, corrected by the facts that a dead child has stored. A crashed job may have ended in its own
    transaction. Otherwise it is archived with its stored checkpoints, from which a recovered job continues."""
    archived = {id: decode_leniently(raw) for id, raw in store.archived.raw(crashed).items()}
    ended_by_themselves = {id for id, document in archived.items() if not _has_crashed(document)}
    to_archive = [id for id, outcome in outcomes if id in crashed and isinstance(outcome, ToArchive)]
    checkpoints = store.scheduled.checkpoints_of(to_archive) if to_archive else {}
    corrected: list[tuple[JobId, Outcome | None]] = []
    for id, outcome in outcomes:
        if id in ended_by_themselves:
            outcome = Settled(event_of(archived[id]))
        elif id in checkpoints and isinstance(outcome, ToArchive):
            outcome = outcome.with_fields({"checkpoints": checkpoints[id]})
        corrected.append((id, outcome))
    return corrected


def _has_crashed(archived: Document) -> bool:
    """Whether the document records a crash: an earlier write of this settlement succeeded, but its answer was lost."""
    last = archived.get("last_execution")
    return isinstance(last, dict) and bool(last.get("crashed"))


def run_inline(store: Store, run: Callable[[bytes], Outcome], job: Job, *, own_id: bool = False) -> None:
    """Runs the job and stores its outcome: archived, or waiting for its next attempt. Raises JobExists if another job
    was stored under its custom id (`own_id`) meanwhile."""
    document = job_document(job)
    outcome = run(encode(document))
    if isinstance(outcome, Settled):
        return
    if isinstance(outcome, ToArchive):
        if not store.transactions.archive_new(job.id, outcome, own_id=own_id):
            raise _taken_error(job)
        return
    waiting = {**document, **outcome.fields}
    if own_id:
        if not in_own_transaction(store, lambda here: here.insert_unused(waiting)):
            raise _taken_error(job)
        return
    for error in store.scheduled.insert([waiting]).values():
        raise InvalidJob(f"the retry of job {id_told(job.id)} of task {job.task!r} could not be stored: {error}")


def _taken_error(job: Job) -> JobExists:
    return JobExists(
        f"job {id_told(job.id)} of task {job.task!r} ran here, and meanwhile another job was stored under this id; "
        "the other job was not changed, and the outcome of this job is not stored"
    )
