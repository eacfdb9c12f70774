"""Remove: deletes jobs that have ended, before the cleaner does. Waiting and running jobs are refused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from recruiter.domain.job import JobId
from recruiter.domain.names import id_told
from recruiter.domain.search.filter import JobFilter
from recruiter.errors import JobNotFound
from recruiter.store.database import Store
from recruiter.store.search import matching


def remove(store: Store, id: JobId) -> None:
    """Removes a job that has ended. Raises JobNotFound when it waits, runs, or never was."""
    if store.archived.remove([id]):
        return
    ended = store.archived.get(id)
    if ended is not None and ended.flow is not None:
        raise JobNotFound(
            f"job {id_told(id)} is a step of flow {ended.flow.flow}, "
            "which is forgotten as a whole; it cannot be removed alone"
        )
    if store.scheduled.exists(id):
        raise JobNotFound(f"job {id_told(id)} has not ended, so it cannot be removed; cancel it first")
    raise JobNotFound(f"there is no job {id_told(id)}")


def remove_some(store: Store, filter: JobFilter, ids: Sequence[JobId], now: datetime) -> int:
    """The same for jobs that a filter has found; returns how many."""
    return store.archived.remove(ids, matching.residual(matching.of_ended(filter, now)))
