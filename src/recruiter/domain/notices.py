"""What is worth saying once: not at once, for most of it passes by itself, and not again and again."""

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


class Notices(Generic[Subject]):
    """Facts about subjects. One that has been true for a while is told; again when it has changed, or was not true in
    between, and has then been true for a while."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._facts: dict[Subject, _Fact] = {}

    def to_tell(self, facts: Mapping[Subject, str], now: float) -> dict[Subject, str]:
        """Of all that is true now, what is to be told now."""
        known, self._facts = self._facts, {}
        for subject, text in facts.items():
            fact = known.get(subject)
            self._facts[subject] = fact if fact is not None and fact.text == text else _Fact(text, now)
        due = {
            subject: fact for subject, fact in self._facts.items() if not fact.told and now - fact.since >= self._grace
        }
        for fact in due.values():
            fact.told = True
        return {subject: fact.text for subject, fact in due.items()}


class Seldom:
    """What may happen a thousand times a second: told the first time, and then once in a while, with how often it has
    happened since."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._told_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def to_tell(self, subject: str, now: float, times: int = 1) -> int:
        """It has happened again; returns how often it has since it was last told, or 0 if it is not to be told now."""
        times += self._untold.pop(subject, 0)
        if subject in self._told_at and now - self._told_at[subject] < self._interval:
            self._untold[subject] = times
            return 0
        self._told_at[subject] = now
        return times
