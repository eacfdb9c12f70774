"""Clean: removes ended jobs, for a person or when they are old enough; counts waiting jobs when there are very many.

Jobs are removed in batches, so that other users of the database do not wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from bson import ObjectId

from recruiter.domain.job import JobId
from recruiter.domain.names import id_told
from recruiter.domain.planning.limits import subject_of
from recruiter.domain.planning.workers import RosterWorker
from recruiter.domain.search.filter import JobFilter
from recruiter.domain.statistics import Depth
from recruiter.errors import DocumentLocked, InvalidFlow, JobNotFound
from recruiter.store.database import Store
from recruiter.store.search import matching
from recruiter.store.sessions import LOCKED_FOR_SECONDS
from recruiter.store.transactions import InTransaction

MAX_REMOVED_PER_BATCH = 1000
MAX_FLOWS_PER_PASS = 20
COUNTS_KEPT = timedelta(days=30)
MAX_COUNTED_BY_READERS = 50_000
"""Up to this number, each reader counts the waiting jobs itself, in about a tenth of a second."""
_AFTER_A_WINDOW = timedelta(minutes=1)
"""For clocks that differ."""
_MIN_PAUSE_BETWEEN_COUNTS = timedelta(seconds=5)


def remove(store: Store, id: JobId) -> None:
    """Removes an ended job. Raises JobNotFound if it waits, runs or does not exist, and InvalidFlow for a step."""
    if store.archived.remove([id]):
        return
    ended = store.archived.get(id)
    if ended is not None and ended.flow is not None:
        raise InvalidFlow(
            f"job {id_told(id)} is a step of flow {ended.flow.flow}, "
            "which is forgotten as a whole; it cannot be removed alone"
        )
    if store.scheduled.exists(id):
        raise JobNotFound(f"job {id_told(id)} has not ended, so it cannot be removed; cancel it first")
    raise JobNotFound(f"there is no job {id_told(id)}")


def remove_some(store: Store, filter: JobFilter, ids: Sequence[JobId], now: datetime) -> int:
    """Removes ended jobs that a filter has found; returns their number."""
    return store.archived.remove(ids, matching.residual(matching.of_ended(filter, now)))


def clean_counts(store: Store, now: datetime, keep_for: timedelta) -> int:
    """Removes one batch of the oldest counts. They are kept for a month, or as long as the jobs if that is longer."""
    return store.statistics.remove_older(now - max(keep_for, COUNTS_KEPT), MAX_REMOVED_PER_BATCH)


def clean(
    store: Store,
    now: datetime,
    keep_for: timedelta,
    keep_failed: timedelta | None = None,
    *,
    since: datetime | None = None,
) -> int:
    """Removes one batch of the oldest archived jobs; after a full batch there may be more. Jobs that did not succeed
    are kept for `keep_failed`, or for the time in their own option. Jobs that succeeded before `since` are skipped."""
    archived = store.archived
    removed = archived.remove_succeeded(now - keep_for, MAX_REMOVED_PER_BATCH, since)
    if removed < MAX_REMOVED_PER_BATCH:
        failed_than = now - (keep_for if keep_failed is None else keep_failed)
        removed += archived.remove_failed(failed_than, MAX_REMOVED_PER_BATCH - removed)
    if removed < MAX_REMOVED_PER_BATCH:
        removed += archived.remove_kept(now, MAX_REMOVED_PER_BATCH - removed)
    return removed


def forget_flows(store: Store, now: datetime, keep_for: timedelta, keep_failed: timedelta | None = None) -> int:
    """Removes old flows, each with all its jobs; returns the number of jobs. After a full batch there may be more.

    A step that was removed alone could neither succeed nor fail for its dependents. So a flow is first marked as
    forgotten, in a transaction in which none of its steps waits; from then on nothing can be added to it.
    """
    failed_than = now - (keep_for if keep_failed is None else keep_failed)
    removed = 0
    for flow in store.flows.ended_before(now - keep_for, failed_than, MAX_FLOWS_PER_PASS):
        try:
            forgotten = store.transactions.by_hand(partial(_forget, store, flow), LOCKED_FOR_SECONDS)
        except DocumentLocked:  # the next pass tries it again
            continue
        if forgotten:
            removed += store.flow_steps.remove(flow, MAX_REMOVED_PER_BATCH - removed)
            if removed >= MAX_REMOVED_PER_BATCH:
                return removed
            store.flows.remove(flow)
    return removed


def _forget(store: Store, flow: ObjectId, session: InTransaction) -> bool:
    return not store.flow_steps.goes_on(flow, session, all=True) and store.flows.forget(flow, session)


def clean_unique_keys(store: Store, now: datetime) -> int:
    """Removes one batch of unneeded keys of unique jobs; returns the number of keys that were checked."""
    return store.unique_keys.forget(now, store.scheduled.which_exist, MAX_REMOVED_PER_BATCH)


def clean_starts(store: Store, now: datetime) -> int:
    """Removes the counts of starts that no limit needs; returns their number. A limit by key has a count per key."""
    rules = store.limits.read()
    windows = {limit.subject: limit.rate.window for limit in rules.limits if limit.rate is not None}
    old = {
        bucket: log
        for bucket, log in rules.starts.items()
        if all(now - moment > windows.get(subject_of(bucket), timedelta()) + _AFTER_A_WINDOW for moment, _ in log)
    }
    return store.limits.forget_starts(dict(list(old.items())[:MAX_REMOVED_PER_BATCH]))


def count_waiting(store: Store) -> bool:
    """Counts the waiting jobs and stores the counts, if there are very many and it is time; returns whether it did."""
    if store.queues.about() <= MAX_COUNTED_BY_READERS:
        return False
    now = store.clock.now()
    kept = store.queues.kept(now)
    if kept is not None and kept.next_at is not None and now < kept.next_at:
        return False
    began = store.clock.monotonic()
    backlogs = store.queues.count(now)
    took = timedelta(seconds=store.clock.monotonic() - began)
    pause = max(_MIN_PAUSE_BETWEEN_COUNTS, 20 * took)  # counting takes a twentieth of the time at most
    # The next count may be late; readers should not have to count meanwhile.
    store.queues.keep(backlogs, at=now, next_at=now + pause, until=now + took + 3 * pause)
    return True


def sample_waiting(store: Store, roster: Sequence[RosterWorker], *, always: bool) -> bool:
    """Stores the numbers of waiting and running jobs, for charts; returns whether jobs wait. Without jobs, it stores
    them only with `always`."""
    if not always and not store.queues.about():
        return False
    now = store.clock.now()
    groups: Counter[str] = Counter()
    due = 0
    for (group, _), backlog in store.queues.waiting(now).of.items():
        groups[group] += backlog.due + backlog.postponed
        due += backlog.due
    held = sum(worker.holds for worker in roster)
    slots = sum(worker.slots for worker in roster)
    store.queues.sample(Depth(now, max(0, due - held), held, slots, groups))
    return bool(groups)
