"""Counts waiting jobs now and then where there are very many, so that no reader has to."""

from __future__ import annotations

from datetime import timedelta

from recruiter.store.database import Store

MANY = 50_000
"""So many are counted within a tenth of a second or so; whoever looks can do that himself."""

_AT_LEAST = timedelta(seconds=5)
_SHARE = 20
"""Counting may take a twentieth of the time."""


def count_waiting(store: Store) -> bool:
    """Counts them, if it is time; returns whether it did."""
    if store.queues.about() <= MANY:
        return False
    now = store.clock.now()
    kept = store.queues.kept(now)
    if kept is not None and kept.next_at is not None and now < kept.next_at:
        return False
    began = store.clock.monotonic()
    piles = store.queues.count(now)
    took = timedelta(seconds=store.clock.monotonic() - began)
    rest = max(_AT_LEAST, _SHARE * took)
    # Whoever counts may be late; nobody should have to count himself for that.
    store.queues.keep(piles, at=now, next_at=now + rest, until=now + took + 3 * rest)
    return True
