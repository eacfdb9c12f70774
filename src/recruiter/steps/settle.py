"""Settle: what a worker's finished jobs become, for a whole batch in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recruiter.domain.job import JobId
from recruiter.store import outcomes as moves
from recruiter.store.collections.roster import Holding
from recruiter.store.database import Store
from recruiter.store.outcomes import Move


def settle(store: Store, worker: str, outcomes: Sequence[tuple[JobId, Move]], facts: Mapping[str, Any]) -> Holding:
    """Writes the outcomes and takes the jobs off the worker's list; returns what the worker still holds.

    Raises Superseded, with nothing written, when the worker has been retired: its jobs are somebody else's now.
    """
    movement = moves.gather(outcomes)
    if movement.archive or movement.reschedule:
        return store.settlement.settle(worker, movement, facts)
    return store.settlement.hand_back(worker, movement.release)
