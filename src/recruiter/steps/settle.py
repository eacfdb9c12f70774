"""Settle: what a worker's finished jobs become, for a whole batch in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recruiter.domain.job import JobId
from recruiter.store.collections.roster import Holding
from recruiter.store.database import Store
from recruiter.store.outcomes import Outcome
from recruiter.store.transactions import OutcomeBatch


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
