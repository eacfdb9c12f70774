"""Assign: one round of the leader. It keeps nothing between rounds; every round starts from the roster."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from recruiter.domain.assignment import Registration, openings
from recruiter.domain.job import JobId
from recruiter.domain.names import CANCELLED_LANE
from recruiter.store.database import Store

LARGEST_HAND = 2000
"""Jobs assigned in one round at most; more would make the write slow and help nobody."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did, and what its process needs to know to choose when to look again."""

    at: datetime
    """The moment that decided what was due."""
    roster: tuple[Registration, ...]
    lanes: tuple[str, ...] | None
    """The lanes that have jobs; None when there was no room and nobody looked."""
    assigned: int
    refused: bool
    """A worker did not take its jobs: it is gone, or it has seen a newer term."""


def assign(store: Store, term: int, now: datetime, *, look: bool = True) -> Round:
    """Reads the roster, finds due jobs that nobody holds, and gives them to workers that have room.

    Without `look` it does not ask which jobs wait when no worker could take one. Raises StoreError when the outcome
    is unknown; then no more may be assigned with this term.
    """
    roster = tuple(store.roster.read())
    vacant = openings(roster)
    if not vacant and not look:
        return Round(now, roster, None, assigned=0, refused=False)
    # Read after the roster and before the jobs: only this leader adds to it, so what is free now stays free.
    held = store.roster.held() if any(worker.holds for worker in roster) else set[JobId]()
    lanes = tuple(store.scheduled.lanes())
    hands: dict[str, list[JobId]] = {}
    for opening in vacant:
        served = opening.lanes(lanes)
        room = min(opening.room, LARGEST_HAND)
        jobs = store.scheduled.due(served, now, room, held) if served else []
        held.update(jobs)
        hands.update(opening.deal(jobs))
    refused = bool(hands) and not store.roster.assign(hands, term)
    return Round(now, roster, lanes, sum(map(len, hands.values())), refused)


def lacks_takers(round: Round) -> bool:
    """Whether jobs may wait that no worker could take now: then it matters who joins, or makes room."""
    if round.lanes is None:
        return True  # there was no room at all
    taken = {lane for opening in openings(round.roster) for lane in opening.lanes(round.lanes)}
    return not taken.issuperset(lane for lane in round.lanes if lane != CANCELLED_LANE)


def unserved(round: Round) -> list[str]:
    """Lanes with jobs that no worker on the roster serves: unknown task, or nobody works on the group."""
    waiting = (lane for lane in round.lanes or () if lane != CANCELLED_LANE)
    return [lane for lane in waiting if not any(worker.serves(lane) for worker in round.roster)]
