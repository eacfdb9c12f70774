"""Fair shares: the jobs of a group take turns by owner or key; the backlog of one tenant does not hold up another.

Without it a group is a queue: by priority, then by time. With it each tenant has a separate queue in that order, and
the next job belongs to the tenant that has the least of the group now, by weight: the jobs it holds, plus the jobs of
this plan, plus the jobs it received lately (`TurnsTaken`), because quick jobs are held only briefly. So when a tenant
with one job meets a tenant with ten thousand, it is next.

The turns are taken in the places that the group has in the order of all jobs; other groups do not notice.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from recruiter.domain.planning.pack import Candidate
from recruiter.domain.text import shown
from recruiter.errors import SettingsError

MAX_WEIGHT = 1_000.0
_MAX_TENANTS_REMEMBERED = 10_000
"""Tenants whose turns are remembered."""


class By(StrEnum):
    OWNER = "owner"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class FairShare:
    """How a group is shared."""

    by: By
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of tenants that get more or less than the others, which have 1."""

    @classmethod
    def of(cls, by: object, weights: Mapping[str, object] | None = None) -> FairShare:
        """Raises SettingsError."""
        if by not in tuple(By):
            raise SettingsError(f"a group is shared by owner or by key, not by {shown(by)}")
        return cls(By(str(by)), {name: _weight(name, value) for name, value in (weights or {}).items()})

    def __str__(self) -> str:
        weights = ", ".join(f"{tenant}={weight:g}" for tenant, weight in sorted(self.weights.items()))
        return f"{self.by} ({weights})" if weights else str(self.by)

    def weight(self, tenant: str) -> float:
        return self.weights.get(tenant, 1.0)


Tenant = tuple[str, str]
"""Group, and owner or key; jobs without an owner or key are one tenant, with an empty name."""


class TurnsTaken:
    """The jobs that tenants received lately, by weight. A hint for the next rounds: without it, all tenants begin
    level. A tenant that returns starts level with the active tenant that received the least."""

    def __init__(self) -> None:
        self._taken: dict[Tenant, float] = {}
        self._were_active: dict[str, frozenset[str]] = {}
        """The tenants of each group that had waiting jobs in its last round."""

    def count(self, group: str, tenant: str, weight: float) -> None:
        if len(self._taken) > _MAX_TENANTS_REMEMBERED:
            self._taken.clear()
        self._taken[group, tenant] = self._taken.get((group, tenant), 0.0) + 1 / weight

    def among(self, group: str, tenants: Collection[str]) -> dict[str, float]:
        """The amount that each of these tenants has received beyond the tenant that received the least. A tenant that
        had no waiting jobs in the last round starts level with that one."""
        stayed = self._were_active.get(group, frozenset()).intersection(tenants)
        least = min((self._taken.get((group, tenant), 0.0) for tenant in stayed), default=0.0)
        for tenant in tenants:
            if tenant not in stayed:
                self._taken[group, tenant] = max(least, self._taken.get((group, tenant), 0.0))
        self._were_active[group] = frozenset(tenants)
        return {tenant: self._taken.get((group, tenant), 0.0) - least for tenant in tenants}


def take_turns(
    candidates: Sequence[Candidate],
    shares: Mapping[str, FairShare],
    tenant_of: Callable[[Candidate], str],
    held: Mapping[Tenant, int],
    taken: TurnsTaken | None = None,
) -> list[Candidate]:
    """Reorders the candidates so that the tenants of each shared group take turns, in the places that its jobs have.
    All others keep their places. `held` are the numbers of jobs that tenants hold; `taken`, those received lately."""
    queues: dict[str, dict[str, deque[Candidate]]] = {}
    for candidate in candidates:
        if candidate.lane.group in shares:
            tenants = queues.setdefault(candidate.lane.group, {})
            tenants.setdefault(tenant_of(candidate), deque()).append(candidate)
    taken = taken or TurnsTaken()
    turns = {
        group: _Turns(shares[group], tenants, group, held, taken.among(group, tenants))
        for group, tenants in queues.items()
    }
    return [turns[c.lane.group].next() if c.lane.group in turns else c for c in candidates]


class _Turns:
    """The queues of the tenants of one group. `next` takes a job of the tenant that has the least."""

    def __init__(
        self,
        share: FairShare,
        queues: Mapping[str, deque[Candidate]],
        group: str,
        held: Mapping[Tenant, int],
        taken: Mapping[str, float],
    ) -> None:
        self._share = share
        self._taken = taken
        self._queues = queues
        self._held = Counter({tenant: held.get((group, tenant), 0) for tenant in queues})
        self._order = [self._place(tenant) for tenant in queues]
        heapq.heapify(self._order)

    def next(self) -> Candidate:
        _, _, tenant = heapq.heappop(self._order)
        candidate = self._queues[tenant].popleft()
        self._held[tenant] += 1
        if self._queues[tenant]:
            heapq.heappush(self._order, self._place(tenant))
        return candidate

    def _place(self, tenant: str) -> tuple[float, tuple[float, float], str]:
        """The tenant with the least by weight comes first, and among equals the tenant that has waited longest."""
        priority, since = self._queues[tenant][0].rank
        received = self._held[tenant] / self._share.weight(tenant) + self._taken[tenant]
        return received, (priority, since.timestamp()), tenant


def _weight(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_WEIGHT:
        raise SettingsError(
            f"the weight of {name!r} is {shown(value)}; it must be a number above 0, up to {MAX_WEIGHT:g}"
        )
    return float(value)
