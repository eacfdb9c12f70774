"""Known: the names that jobs and workers have, for whoever has mistyped one."""

from __future__ import annotations

from typing import Literal

from recruiter.domain.names import CANCELLED_LANE, group_and_task
from recruiter.store.database import Store

Word = Literal["group", "task"]


def known(store: Store, word: Word) -> set[str]:
    """The groups or tasks of jobs that wait, run or have ended, and those that workers serve."""
    place = 0 if word == "group" else 1
    names = {group_and_task(lane)[place] for lane in store.scheduled.lanes() if lane != CANCELLED_LANE}
    for worker in store.roster.read():
        names.update((worker.groups or ()) if word == "group" else worker.tasks)
    return names | store.ends.names(word)
