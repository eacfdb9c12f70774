"""Events of a process. Code emits events; one listener writes the log, others are the user's.

`SENTENCES` in log/lines.py lists all events except `job.started`.

Job events, emitted where the job runs, to the listeners of the application and to the workable: `job.started`, then
`job.ended` (with `done` if it succeeded), and after a failure `job.failed` (it will be tried again) or
`job.failure.last` (it will not). A job that asked to be run later emits `job.snoozed` instead. When a process dies with
its job, the supervisor emits the event.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from recruiter.domain.text import said_by

Listener = Callable[["Event"], None]

_FAILED = "listener.failed"


@dataclass(frozen=True, slots=True)
class Event:
    """A fact, for listeners."""

    name: str
    """Such as `job.ended`."""
    fields: dict[str, Any] = field(default_factory=dict)


class Events:
    """A list of listeners. If a listener raises, the others are still called, and the failure becomes an event."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._on_failure: list[Listener] = []

    def listen(self, listener: Listener) -> Listener:
        self._listeners.append(listener)
        return listener

    def on_listener_failure(self, listener: Listener) -> None:
        """Calls this listener only when another listener has failed; `heard` does not count it."""
        self._on_failure.append(listener)

    @property
    def heard(self) -> bool:
        """Whether there is a listener; check it before building an expensive event."""
        return bool(self._listeners)

    def emit(self, name: str, **fields: Any) -> None:
        event = Event(name, fields)
        for listener in self._listeners if name != _FAILED else [*self._listeners, *self._on_failure]:
            try:
                listener(event)
            except BaseException as error:  # a listener that calls exit() too
                if name != _FAILED:
                    self.emit(_FAILED, listener=said_by(listener, repr), event=name, error=said_by(error, repr))


# -- events that would repeat --------------------------------------------------------------------------------------


Subject = TypeVar("Subject", bound=Hashable)


@dataclass(slots=True)
class _Fact:
    text: str
    since: float
    reported: bool = False


class LastingFacts(Generic[Subject]):
    """Facts about subjects. A fact is reported once, when it has been true for `grace` seconds. If its text changes, or
    if it stops being true and starts again, it counts as a new fact."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._facts: dict[Subject, _Fact] = {}

    def due(self, facts: Mapping[Subject, str], now: float) -> dict[Subject, str]:
        """The facts to report now, of all facts that are true now."""
        known, self._facts = self._facts, {}
        for subject, text in facts.items():
            fact = known.get(subject)
            self._facts[subject] = fact if fact is not None and fact.text == text else _Fact(text, now)
        lasting = {
            subject: fact
            for subject, fact in self._facts.items()
            if not fact.reported and now - fact.since >= self._grace
        }
        for fact in lasting.values():
            fact.reported = True
        return {subject: fact.text for subject, fact in lasting.items()}


class RareReports:
    """Events that may happen a thousand times per second. The first is reported immediately, then at most one per
    `interval` seconds, with the number of events since the last report."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._told_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def due(self, subject: str, now: float, times: int = 1) -> int:
        """Counts the event. Returns how often it has happened since the last report, or 0 if no report is due."""
        times += self._untold.pop(subject, 0)
        if subject in self._told_at and now - self._told_at[subject] < self._interval:
            self._untold[subject] = times
            return 0
        self._told_at[subject] = now
        return times
