"""Analyse: how many jobs wait and run, and what has ended of late; from indexes and counts alone, however many jobs
the archive keeps."""

from __future__ import annotations

from datetime import datetime, timedelta

from recruiter.domain.job import JobId
from recruiter.domain.lanes import Lane
from recruiter.domain.names import CANCELLED_LANE
from recruiter.domain.statistics import Analytics, Queue, add_up, window
from recruiter.store.database import Store

_SILENT = timedelta(seconds=15)


def analyse(
    store: Store, at: datetime, within: timedelta, *, group: str | None = None, task: str | None = None
) -> Analytics:
    """What has ended within a time before `at`, and of the jobs that have not ended, how many were due then."""
    since, until = window(at, within, store.clock.now())
    counted = store.statistics.read(since, until, group, task)
    return add_up(counted, _queue(store, at, group, task), since, until)


def _queue(store: Store, at: datetime, group: str | None, task: str | None) -> Queue:
    def matches(lane: Lane) -> bool:
        return group in (None, lane.group) and task in (None, lane.task)

    lanes = [lane for lane in store.scheduled.lanes() if lane != CANCELLED_LANE and matches(Lane.parse(lane))]
    suspects = [lane for lane in lanes if Lane.parse(lane).alone]
    held, silent = _held(store)
    if suspects or group is not None or task is not None:
        of = {id: Lane.parse(lane) for id, lane in store.scheduled.lanes_of(held | silent).items()}
        held, silent = ({id for id in ids if id in of and matches(of[id])} for ids in (held, silent))
        tried_again = sum(1 for id in held if of[id].alone)
    else:
        tried_again = 0
    due = store.scheduled.count(lanes, at)
    return Queue(
        queued=max(0, due - len(held) - len(silent)),
        postponed=max(0, store.scheduled.count(lanes) - due),
        running=len(held),
        zombies=max(0, store.scheduled.count(suspects) - tried_again) + len(silent),
    )


def _held(store: Store) -> tuple[set[JobId], set[JobId]]:
    """The jobs that workers hold, and those that are held by workers nobody has heard of for long."""
    now = store.clock.now()
    gone = {entry.id for entry in store.roster.entries() if now - entry.seen_at > _SILENT}
    held: set[JobId] = set()
    silent: set[JobId] = set()
    for worker, jobs in store.roster.holders().items():
        (silent if worker in gone else held).update(jobs)
    return held, silent
