"""Recognize: whether the tasks and groups that a filter names are known here at all. A slip of the pen finds nothing,
and looks like good news."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from recruiter.domain.names import group_and_task
from recruiter.domain.search.filter import JobFilter
from recruiter.errors import InvalidFilter
from recruiter.store.database import Store

_NEAR = 5


def recognize(store: Store, filter: JobFilter) -> None:
    """Raises InvalidFilter for a task or group that no job, worker, scheduler, limit or pause has; and says which are
    near."""
    if filter.task or filter.group:
        groups, tasks = _known(store)
        for kind, wanted, known in (("group", filter.group, groups), ("task", filter.task, tasks)):
            for name in wanted:
                if name not in known:
                    raise InvalidFilter(f"nobody knows a {kind} {name!r}; {_near(kind, name, known)}")


def _known(store: Store) -> tuple[set[str], set[str]]:
    groups, tasks = store.ended_jobs.names()
    for lane in store.scheduled.lanes():
        group, task = group_and_task(lane)
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
    near = get_close_matches(name, known, n=_NEAR, cutoff=0.6) or [each for each in known if name in each][:_NEAR]
    if near:
        return f"did you mean {' or '.join(near)}?"
    some = sorted(known)[:_NEAR]
    return (
        f"there are {', '.join(some)}{' and others' if len(known) > _NEAR else ''}" if some else f"there is no {kind}"
    )
