"""Pause: nothing of a group starts any more, or nothing at all.

The leader reads what is paused about once a second, and gives none of it to anybody. But workers hold jobs that they
were given before: so each is told, on its own roster document, that something has changed. It learns that with its next
heartbeat, reads what is paused, and hands back what it has not started.
"""

from __future__ import annotations

from recruiter.domain.schedule.scheduler import Pause
from recruiter.store.database import Store


def pause(store: Store, what: str, pause: Pause) -> None:
    """`group:NAME`, or `fleet` for everything. One heartbeat after this has returned nothing of it starts."""
    store.limits.pause(what, pause)
    store.roster.tell_of_pauses()


def resume(store: Store, what: str) -> bool:
    """False when it was not paused."""
    resumed = store.limits.resume(what)
    store.roster.tell_of_pauses()
    return resumed
