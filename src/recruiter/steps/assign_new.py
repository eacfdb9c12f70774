"""Assign new jobs: straight from the events of their inserts (see domain/planning/arrivals.py for why it is safe).

What is not given here is left to the next round.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from recruiter.domain.names import group_and_task
from recruiter.domain.planning.arrivals import Arrival, Vacancies, is_free
from recruiter.domain.planning.limits import Meter
from recruiter.store.collections.limits import Rules
from recruiter.store.database import Store


def assign_new(
    store: Store,
    term: int,
    now: datetime,
    arrivals: Sequence[Arrival],
    vacancies: Vacancies,
    rules: Rules,
    *,
    quiet_after: float,
) -> bool:
    """Gives new jobs to workers that had room; true when each was given.

    To be called by the thread of the leader, between rounds. Raises StoreError when the outcome is unknown; then no
    more may be assigned with this term.
    """
    floor, meter = floor_of(store), Meter(rules.limits, rules.starts, now)
    usable = [arrival for arrival in arrivals if arrival.is_new(floor) and _may_start(arrival, now, rules, meter)]
    offers = vacancies.offers(usable) if usable and not rules.blocked else None
    if not offers:
        return not arrivals
    return store.roster.offer(offers, term, quiet_after) and len(usable) == len(arrivals)


def floor_of(store: Store) -> int:
    """The cluster time up to which a job may have been given by this leader, or have been ended by it; 0 when that is
    not known. Every write of a leader moves it, so none can be forgotten."""
    return max(store.roster.answered_at, store.transactions.answered_at)


def _may_start(arrival: Arrival, now: datetime, rules: Rules, meter: Meter) -> bool:
    group, _ = group_and_task(arrival.lane)
    return arrival.scheduled_at <= now and rules.pauses(group) is None and is_free(arrival.lane, meter)
