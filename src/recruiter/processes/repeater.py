"""When the leader looks at the schedulers: at the moment of the next occurrence, and now and then for new ones."""

from __future__ import annotations

from datetime import datetime

from recruiter.domain.policy_registry import SchedulePolicyRegistry
from recruiter.events import Events
from recruiter.steps.repeat import repeat
from recruiter.store.codec import key_of
from recruiter.store.database import Store
from recruiter.views.health import overdue

_BETWEEN_LOOKS = 1.0
"""Seconds until a scheduler that is new or changed is noticed by a busy leader; an idle one hears of it at once."""
_BETWEEN_PROMISES = 60.0
_UNREADABLE_FOR = 60.0


class Repeater:
    def __init__(self, store: Store, events: Events, policies: SchedulePolicyRegistry) -> None:
        self._store = store
        self._clock = store.clock
        self._events = events
        self._policies = policies
        self._next_at: datetime | None = None
        self._look_at = 0.0
        self._promises_at = 0.0
        self._broken: dict[str, str] = {}
        self._overdue: set[str] = set()
        self._unreadable: dict[bytes, float] = {}
        """The ids of schedulers that cannot be read, as bytes, and when to look at each again."""

    def seconds_left(self) -> float | None:
        """Until the next occurrence; None when there is none to come."""
        return None if self._next_at is None else (self._next_at - self._clock.now()).total_seconds()

    def look_soon(self) -> None:
        """Something may have changed."""
        self._look_at = 0.0

    def step(self, term: int, holder: str) -> None:
        """Makes what is due, if anything is; cheap when nothing is."""
        left = self.seconds_left()
        if self._clock.monotonic() < self._look_at and (left is None or left > 0):
            return
        self._look_at = self._clock.monotonic() + _BETWEEN_LOOKS
        now = self._clock.now()
        self._unreadable = {key: at for key, at in self._unreadable.items() if at > self._clock.monotonic()}
        self._next_at = self._store.schedulers.next_at(self._unreadable)
        if self._next_at is not None and self._next_at <= now:
            self._make(term, holder, now)
        if self._clock.monotonic() >= self._promises_at:
            self._promises_at = self._clock.monotonic() + _BETWEEN_PROMISES
            self._keep_promises(now)

    def _make(self, term: int, holder: str, now: datetime) -> None:
        repetition = repeat(self._store, self._policies, term, holder, now, self._unreadable)
        for document in repetition.unreadable:
            self._unreadable[key_of(document.raw)] = self._clock.monotonic() + _UNREADABLE_FOR
        if repetition.made or repetition.skipped:
            self._events.emit("scheduler.repeated", made=repetition.made, skipped=repetition.skipped)
        unreadable = ((document.id, document.reason) for document in repetition.unreadable)
        for urn, reason in (*repetition.broken, *unreadable):
            if self._broken.get(urn) != reason:
                self._events.emit("scheduler.broken", urn=urn, reason=reason)
            self._broken[urn] = reason
        self._next_at = now if repetition.more else self._store.schedulers.next_at(self._unreadable)

    def _keep_promises(self, now: datetime) -> None:
        late = {each.urn: each.text for each in overdue(self._store, now)}
        for urn in late.keys() - self._overdue:
            self._events.emit("scheduler.overdue", urn=urn, told=late[urn])
        self._overdue = set(late)
