"""Unblock: frees what a worker has locked that was killed in the middle of a settlement.

Its transaction stays open on the server for a minute, and the leader cannot write to its roster document meanwhile, so
nobody would be given jobs. Long before it is silent enough to be retired, its session is ended. Should it live after
all, it only settles once more.
"""

from __future__ import annotations

from collections.abc import Iterable

from recruiter.domain.assignment import Registration
from recruiter.store.database import Store


class Unblock:
    """Remembers what the leader saw last, to know who has shown no life since."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: Iterable[Registration] = ()

    def saw(self, roster: Iterable[Registration]) -> None:
        self._seen = roster

    def unblock(self) -> list[str]:
        """To be called when a write of the leader took too long. Returns the workers whose sessions were ended."""
        before = {worker.id: worker.beats for worker in self._seen}
        self._seen = tuple(self._store.roster.read())
        silent = [worker for worker in self._seen if before.get(worker.id) == worker.beats]
        for worker in silent:
            self._store.settlement.end_session_of(worker.session)
        return [worker.id for worker in silent]
