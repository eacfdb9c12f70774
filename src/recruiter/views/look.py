"""Look: is there anything to do for whoever works only as long as there is?"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from recruiter.domain.names import CANCELLED_LANE, group_and_task
from recruiter.store.database import Store


def anything_to_do(store: Store, worker: str, tasks: Collection[str], now: datetime) -> bool:
    """Whether a job of these tasks is due that nobody holds, or waits to be adopted, or is this worker's already.

    The order of the questions matters: a document that is adopted meanwhile is due then, and a due job that is given to
    this worker meanwhile is its own then. To be asked while this worker settles nothing: a job that it lets go of
    meanwhile, to be tried again, would be missed.
    """
    if store.scheduled.to_adopt(tasks, now):
        return True
    held = store.roster.held()
    lanes = [lane for lane in store.scheduled.lanes() if lane != CANCELLED_LANE and group_and_task(lane)[1] in tasks]
    if lanes and store.scheduled.due(lanes, now, 1, held):
        return True
    return store.roster.holds_any(worker)
