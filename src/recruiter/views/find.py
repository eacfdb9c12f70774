"""Finds a job by its id, the id that a person's text means, and the known names of groups and tasks.

The roster knows the worker of a job, not its document. Only before a job is adopted can another program hold it.

An id on a screen is text. In MongoDB it may be an ObjectId, a number, a UUID or a string, so all of them are tried.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from recruiter.domain.job import Job, JobId
from recruiter.domain.names import ASIDE, group_and_task, id_told
from recruiter.domain.search.conditions import ids_written
from recruiter.domain.search.filter import JobFilter
from recruiter.domain.text import shown, similar
from recruiter.errors import InvalidFilter, InvalidJob, JobNotFound, UnreadableDocument
from recruiter.store.codec import job_from
from recruiter.store.collections.inbox import job_elsewhere
from recruiter.store.database import Store
from recruiter.store.fields import check_id
from recruiter.store.search.search import with_hold


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
    return with_hold(job, document, store.roster.holder(id))


def meant(store: Store, id: JobId) -> JobId:
    """The id of the job that a caller means. An id in a string may be of another type, unless the string itself is the
    id of a job. Raises JobNotFound when there is none, or more than one, and InvalidJob for what can be no id."""
    id = check_id(id)
    ids = ids_written(id) if isinstance(id, str) else [id]
    if len(ids) == 1 or store.scheduled.exists(id) or store.archived.exists(id):
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
    """Whether the leader has yet to process a flow without a waiting or running step, or with a step of these tasks
    that may start: a step that waits for others, or for the end of the flow. A flow with a marker is reported as
    running, even if it had ended."""
    marked = store.flows.marked()
    flows = store.flows.get_many(marked).values() if marked else ()
    at_the_end = {job.get("task") for flow in flows if not flow.state.ended for _, job in flow.ends}
    return (
        not at_the_end.isdisjoint(tasks)
        or store.flow_steps.any_waits(marked, tasks)
        or any(not store.flow_steps.goes_on(flow.id) for flow in flows)
    )


def anything_to_do(store: Store, worker: str, tasks: Collection[str], now: datetime) -> bool:
    """Whether there is work for these tasks: a due job without a worker, a document to adopt, a job that this worker
    holds, a step that the leader may release, or a flow that is about to end.

    The order of the questions matters: a document that is adopted meanwhile is due then, as is a step that is released
    meanwhile, and a due job that is given to this worker meanwhile is its own then. To be asked while this worker
    settles nothing: a job that it lets go of meanwhile, to be tried again, would be missed.
    """
    if store.scheduled.to_adopt(tasks, now) or store.flow_steps.any_cancelled(store.roster.held()):
        return True
    if _waits_for_leader(store, tasks):
        return True
    # Only of others: this worker may hand a job back meanwhile, because its flow could have been paused.
    held_by_others = {job for holder, jobs in store.roster.holders().items() if holder != worker for job in jobs}
    lanes = [lane for lane in store.due_jobs.lanes() if lane not in ASIDE and group_and_task(lane)[1] in tasks]
    if lanes and store.due_jobs.due(lanes, now, 1, held_by_others):
        return True
    return store.roster.holds_any(worker)


_MAX_NAMES_SUGGESTED = 5


def recognize(store: Store, filter: JobFilter) -> None:
    """Raises InvalidFilter for a task or group that no job, worker, scheduler, limit or pause has, and suggests similar
    ones."""
    if filter.task or filter.group:
        groups, tasks = known_names(store)
        for kind, wanted, known in (("group", filter.group, groups), ("task", filter.task, tasks)):
            for name in wanted:
                if name not in known:
                    raise InvalidFilter(f"there is no {kind} {name!r}; {_near(kind, name, known)}")


def known_names(store: Store) -> tuple[set[str], set[str]]:
    """The groups and tasks of jobs, workers, schedules, pauses and limits."""
    groups, tasks = store.search.ended.names()
    lanes = set(store.due_jobs.lanes())
    kinds = {group_and_task(lane) for lane in lanes.difference(ASIDE)}
    for group, task in kinds | (store.due_jobs.kinds_aside() if lanes.intersection(ASIDE) else set()):
        groups.add(group)
        tasks.add(task)
    for worker in store.roster.read():
        groups |= worker.groups or set()
        tasks |= worker.tasks
    for scheduler in store.schedulers.all():
        groups.add(scheduler.template.group)
        tasks.add(scheduler.template.task)
    rules = store.limits.read()
    for subject in (*rules.paused, *(limit.subject for limit in rules.limits)):
        kind, _, name = subject.partition(":")
        {"group": groups, "task": tasks}.get(kind, set()).add(name)
    return groups - {""}, tasks


def _near(kind: str, name: str, known: Collection[str]) -> str:
    if near := similar(name, known, _MAX_NAMES_SUGGESTED):
        return near
    if not known:
        return f"there is no {kind}"
    first = sorted(known)[:_MAX_NAMES_SUGGESTED]
    return f"there are {', '.join(first)}{' and others' if len(known) > len(first) else ''}"
