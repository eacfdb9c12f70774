"""The record of what a child runs, in memory that supervisor and child share.

The supervisor gives every job it sends a place. Before the child starts a job it *claims* its place; places that are
not claimed yet can be *withdrawn* by the supervisor and given to another child, or back to the roster. Both happen
under one lock, so a job is either started here or taken away, never both. When a child dies, the job it claimed and
did not answer for is the one to blame, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from multiprocessing.context import ForkServerContext
from typing import Any

PLACES = 4096
_OPEN, _CLAIMED, _WITHDRAWN = 0, 1, 2


class Ledger:
    """Picklable, so that multiprocessing can hand it to the child; nothing of it is ever stored."""

    def __init__(self, context: ForkServerContext) -> None:
        self._places: Any = context.RawArray("B", PLACES)
        self._lock = context.Lock()

    def open(self, place: int) -> None:
        """Supervisor: a job is about to be sent to this place."""
        self._places[place] = _OPEN

    def claim(self, place: int) -> bool:
        """Child: may I start the job in this place?"""
        with self._lock:
            if self._places[place] != _OPEN:
                return False
            self._places[place] = _CLAIMED
            return True

    def withdraw(self, places: Iterable[int]) -> list[int]:
        """Supervisor: takes back the places that are not claimed; returns them, in order."""
        if not self._lock.acquire(timeout=1.0):
            return []  # the child died, or froze, inside `claim`; its death will be noticed elsewhere
        try:
            taken = [place for place in places if self._places[place] == _OPEN]
            for place in taken:
                self._places[place] = _WITHDRAWN
            return taken
        finally:
            self._lock.release()

    def claimed(self, place: int) -> bool:
        return bool(self._places[place] == _CLAIMED)
