"""Find: a job by its id, and the id that a person's text means.

The roster says who holds a job, not the job's document; only before a job is adopted another program may hold it.

An id on a screen is text, and may be an ObjectId, a number, a UUID or a text in MongoDB. So all of them are looked up.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from recruiter.domain.job import Job, JobId
from recruiter.domain.names import ASIDE, group_and_task, id_told
from recruiter.domain.search.conditions import ids_written
from recruiter.domain.text import shown
from recruiter.errors import InvalidJob, JobNotFound, UnreadableDocument
from recruiter.store.codec import job_from
from recruiter.store.collections.inbox import job_elsewhere
from recruiter.store.database import Store
from recruiter.store.fields import check_id
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
        raise UnreadableDocument(f"job {id_told(id)} cannot be read: {error}") from None
    holder = store.roster.holder(id)
    if holder is None:
        return replace(job, locked_by=None, locked_at=None)
    return replace(job, locked_by=holder.worker, locked_at=locked_at(document, holder))


def meant(store: Store, id: JobId) -> JobId:
    """The id of the job that is meant: an id as text may be of another kind, unless a job has this very text as its id.
    Raises JobNotFound when there is none, or more than one, and InvalidJob for what can be no id."""
    id = check_id(id)
    ids = ids_written(id) if isinstance(id, str) else [id]
    if len(ids) == 1 or store.scheduled.exists(id) or store.archived.which_exist([id]):
        return id
    return identify(store, str(id))


def identify(store: Store, text: str) -> JobId:
    """The id of the job that is written like this. Raises JobNotFound when there is none, or more than one."""
    ids = ids_written(text)
    exist = store.scheduled.which_exist(ids) | store.archived.which_exist(ids)
    there = [id for id in ids if id in exist]
    if len(there) > 1:
        jobs = " and ".join(map(repr, there))
        raise JobNotFound(f"{shown(text)} may be any of {jobs}; use recruiter.find() in Python to choose one")
    if not there:
        raise JobNotFound(f"there is no job {shown(text)}")
    return there[0]


def _waits_for_leader(store: Store, tasks: Collection[str]) -> bool:
    """Whether the leader has still to look at a flow of which no step waits or runs, or where a step of these tasks may
    start: one that waits for others, or for the end of the flow. A flow with a marker is reported as running, also if
    it had ended."""
    marked = store.flows.marked()
    flows = store.flows.get_many(marked).values() if marked else ()
    at_the_end = {job.get("task") for flow in flows if not flow.state.ended for _, job in flow.ends}
    return (
        not at_the_end.isdisjoint(tasks)
        or store.flow_steps.any_waits(marked, tasks)
        or any(not store.flow_steps.goes_on(flow.id) for flow in flows)
    )


def anything_to_do(store: Store, worker: str, tasks: Collection[str], now: datetime) -> bool:
    """Whether a job of these tasks is due that nobody holds, or waits to be adopted, or is this worker's already; or is
    a step that may start as soon as the leader has looked at its flow. Also whether a flow is about to end.

    The order of the questions matters: a document that is adopted meanwhile is due then, as is a step that is released
    meanwhile, and a due job that is given to this worker meanwhile is its own then. To be asked while this worker
    settles nothing: a job that it lets go of meanwhile, to be tried again, would be missed.
    """
    if store.scheduled.to_adopt(tasks, now) or store.flow_steps.any_cancelled(store.roster.held()):
        return True
    if _waits_for_leader(store, tasks):
        return True
    held = store.roster.held()
    lanes = [lane for lane in store.scheduled.lanes() if lane not in ASIDE and group_and_task(lane)[1] in tasks]
    if lanes and store.scheduled.due(lanes, now, 1, held):
        return True
    return store.roster.holds_any(worker)
