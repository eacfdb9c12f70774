"""Events that would repeat: `LastingFacts` tells a fact that lasts once, `RareReports` a frequent event rarely."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Subject = TypeVar("Subject", bound=Hashable)


@dataclass(slots=True)
class _Fact:
    text: str
    since: float
    told: bool = False


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
            subject: fact for subject, fact in self._facts.items() if not fact.told and now - fact.since >= self._grace
        }
        for fact in lasting.values():
            fact.told = True
        return {subject: fact.text for subject, fact in lasting.items()}


class RareReports:
    """Events that may happen a thousand times a second. The first is reported at once. After that there is one report
    in `interval` seconds at most, with the number of events since the last report."""

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
