"""Count: how many jobs there are in each state, by group, task, owner or tag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

from recruiter.domain.lane import Lane
from recruiter.domain.state import State
from recruiter.domain.statistics import window
from recruiter.store.database import Store

By = Literal["group", "task", "owner", "tag"]

Totals = dict[str, dict[str, int]]
"""How many in each state, by name."""


def count(store: Store, by: By, now: datetime, within: timedelta) -> Totals:
    """The jobs that wait and run, and those that have ended within a time: in whole minutes, like analytics.

    By group and task it is read from an index and from counts, by owner and tag from the jobs that have one.
    """
    since, until = window(now, within, now)
    held = store.roster.held()
    if by == "owner" or by == "tag":
        field = "username" if by == "owner" else "tags"
        found = [*store.scheduled.count_by(field, held), *store.archived.count_by(field, since, until)]
        return _totals(found)
    place = 0 if by == "group" else 1
    piles = store.queues.waiting(now).of
    running = Counter(Lane.parse(lane)[:2] for lane in store.scheduled.lanes_of(held).values())
    found = []
    for kind, pile in piles.items():
        waiting = max(0, pile.due + pile.postponed - running[kind])
        found += [(kind[place], State.WAITING, waiting), (kind[place], State.RUNNING, running[kind])]
    for counted in store.statistics.read(since, until, None, None):
        name = counted.group if by == "group" else counted.task
        found += [(name, State(state), jobs) for state, jobs in counted.counts.ended.items()]
    return _totals(found)


def _totals(found: Iterable[tuple[str, State, int]]) -> Totals:
    totals: Totals = {}
    for name, state, jobs in found:
        if jobs > 0:
            counts = totals.setdefault(name, {})
            counts[state.value] = counts.get(state.value, 0) + jobs
    return dict(sorted(totals.items()))
