"""The rules that people and applications set: limits, pauses and fair shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recruiter.domain.planning.fair import FairShare
from recruiter.domain.planning.limits import Limit, Start
from recruiter.domain.schedule.scheduler import Pause
from recruiter.domain.unreadable import Unreadable

FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits, pauses and fair shares that are in force."""

    limits: tuple[Limit, ...] = ()
    """The limits that an operator has set, and the declared limits of all other subjects."""
    declared: Mapping[str, Limit] = field(default_factory=dict)
    """The limits that the application declares in code, by subject."""
    set_by: Mapping[str, str | None] = field(default_factory=dict)
    """The author of each limit that was set, by subject."""
    paused: Mapping[str, Pause] = field(default_factory=dict)
    """By `group:NAME`, or `fleet` for all."""
    starts: Mapping[str, Sequence[Start]] = field(default_factory=dict)
    """The recent starts in each bucket of a rate."""
    unreadable: Sequence[Unreadable] = ()
    """Values that were written by hand and make no sense."""
    fair: Mapping[str, FairShare] = field(default_factory=dict)
    """The groups that tenants share."""

    @property
    def blocked(self) -> bool:
        """Nothing at all may start."""
        return FLEET in self.paused

    def source(self, subject: str) -> str:
        """Who set the limit of this subject, for people: `declared`, or by which user, with the declared bounds."""
        if subject not in self.set_by:
            return "declared"
        declared = f", declared: {self.declared[subject]}" if subject in self.declared else ""
        return f"set by {self.set_by[subject] or 'somebody'}{declared}"

    def pauses(self, group: str) -> Pause | None:
        return self.paused.get(FLEET) or self.paused.get(f"group:{group}")
