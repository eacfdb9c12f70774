"""Resources: what there is, and what is in use, on each host and in the whole fleet."""

from __future__ import annotations

from dataclasses import dataclass

from recruiter.domain.lane import Lane
from recruiter.domain.planning.limits import RESOURCE
from recruiter.domain.planning.needs import Needs
from recruiter.store.database import Store


@dataclass(frozen=True, slots=True)
class ResourceUse:
    resource: str
    host: str | None
    """None for what the fleet as a whole may use."""
    limit: float
    used: float

    @property
    def available(self) -> float:
        return max(0.0, self.limit - self.used)


def resources(store: Store) -> list[ResourceUse]:
    """By host and resource, and then the fleet-wide limits."""
    roster, held, rules = store.roster.read(), store.roster.held(), store.limits.read()
    used: dict[str, Needs] = {}
    for worker in roster:
        for job, lane in worker.metered:
            if job in held:
                used[worker.host] = used.get(worker.host, Needs()) + Lane.parse(lane).needs
    found: list[ResourceUse] = []
    for host, capacity in sorted({worker.host: worker.resources for worker in roster}.items()):
        taken = used.get(host, Needs()).amounts()
        found.extend(ResourceUse(name, host, limit, taken.get(name, 0)) for name, limit in capacity.amounts().items())
    total = sum(used.values(), Needs()).amounts()
    for limit in rules.limits:
        if limit.kind == RESOURCE and limit.at_once is not None:
            found.append(ResourceUse(limit.name, None, limit.at_once, total.get(limit.name, 0)))
    return found
