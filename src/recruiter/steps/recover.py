"""Recover: runs a job that has ended once more, as a new job with a new id; `recovered_from` names the old one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from recruiter.domain.flow import FlowStep
from recruiter.domain.job import ArchivedJob, Job, JobId
from recruiter.domain.names import id_told
from recruiter.domain.search.filter import JobFilter
from recruiter.domain.text import shown
from recruiter.errors import InvalidFlow, InvalidJob, JobNotFound, JobRecovered, JobSucceeded
from recruiter.store.batches import ids_in_batches
from recruiter.store.codec import anew, encode_job
from recruiter.store.database import Store
from recruiter.store.in_session import InSession, in_own_transaction
from recruiter.store.search import matching


def job_anew(store: Store, id: JobId, now: datetime, at: datetime | None, *, again: bool) -> Job:
    """The job that repeats an ended job, due now or at `at`; not stored yet. A job that succeeded is repeated only with
    `again`, and so is a job that was recovered before. Raises JobNotFound, JobSucceeded, JobRecovered, InvalidFlow."""
    ended = store.archived.get(id)
    if ended is None:
        waiting = " it has not ended yet" if store.scheduled.exists(id) else " there is no such job"
        raise JobNotFound(f"job {id_told(id)} cannot be recovered:{waiting}")
    if not ended.task:
        raise InvalidJob(
            f"document {id_told(id)} was set aside and is not a job: {ended.reason}; correct it and insert it again"
        )
    if ended.done and not again:
        raise JobSucceeded(
            f"job {id_told(id)} succeeded; recovering it would do its work a second time. To run it again, give "
            "again=True (on the command line --again)"
        )
    if ended.flow is not None and not ended.done and ended.recovered_as is not None:
        raise _recovered_before(store, ended, ended.flow)
    if ended.recovered_as is not None and not again:
        raise JobRecovered(
            f"job {id_told(id)} was recovered before, as {id_told(ended.recovered_as)}; recovering it again would do "
            "the same work twice. If the new job has failed too, recover the new one. To repeat the old one, give "
            "again=True (on the command line --again)"
        )
    return _anew(store, ended, now, at or now)


def _anew(store: Store, ended: ArchivedJob, now: datetime, at: datetime) -> Job:
    """A step that succeeded is repeated outside of its flow, where no leader gives it the results that it takes."""
    job, place = anew(ended, now, at), ended.flow
    if place is None or not place.takes or not ended.done:
        return job
    return replace(job, step_results=tuple(store.flow_steps.results(place.flow, place.takes)))


def _recovered_before(store: Store, ended: ArchivedJob, place: FlowStep) -> InvalidFlow:
    """The error for a step that was recovered before: only the last job of a step can be recovered."""
    last = store.flow_steps.last_jobs(place.flow, [place.step]).get(place.step, {})
    state = {None: "has not ended yet", True: "has succeeded", False: "can be recovered"}[last.get("done")]
    return InvalidFlow(
        f"job {id_told(ended.id)}, a step of flow {place.flow}, was recovered before; the last job of this step is "
        f"{id_told(last.get('_id', ended.recovered_as))}, which {state}"
    )


def recovering(job: Job, *, again: bool = False) -> Callable[[InSession], None]:
    """The write that stores the job which repeats another one. It raises JobNotFound, InvalidFlow."""
    old = job.recovered_from
    assert old is not None

    def write(here: InSession) -> None:
        if here.recover({old: encode_job(job)}, again=again, cancelled=True):
            return
        if job.flow is None:
            raise JobNotFound(f"job {job.recovered_from!r} cannot be recovered: it has just been recovered or removed")
        raise InvalidFlow(
            f"job {job.recovered_from!r}, a step of flow {job.flow.flow}, cannot be recovered: it has just been "
            "recovered, or forgotten with its flow"
        )

    return write


def recover_some(store: Store, filter: JobFilter, ids: Sequence[JobId], now: datetime, at: datetime | None) -> int:
    """Recovers ended jobs that a filter has found; returns their number. Jobs that were recovered meanwhile are left
    out, and documents that cannot be a job."""
    conditions = matching.residual(matching.of_ended(filter, now))
    recovered, again = 0, bool(filter.recovered)
    for batch in ids_in_batches(store.archived.collection, ids, max(1, len(ids))):
        ended = store.archived.get_some(batch, conditions)
        jobs = {job.id: encode_job(_anew(store, job, now, at or now)) for job in ended if job.task}
        if jobs:
            recovered += in_own_transaction(store, partial(InSession.recover, jobs=jobs, again=again, cancelled=True))
    return recovered


def checked_moment(schedule_at: datetime | None) -> datetime | None:
    """Raises InvalidJob for a time without a zone."""
    if schedule_at is not None and (not isinstance(schedule_at, datetime) or schedule_at.utcoffset() is None):
        raise InvalidJob(f"schedule_at needs a datetime with a time zone, not {shown(schedule_at)}; add tzinfo=UTC")
    return schedule_at
