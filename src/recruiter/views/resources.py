"""Resources and limits: how much there is and how much is in use, on each host and in the whole fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.planning.limits import KEY, RESOURCE, Limit
from recruiter.domain.planning.needs import Needs
from recruiter.store.collections.limits import Rules
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


@dataclass(frozen=True, slots=True)
class LimitUse:
    """How much of a limit is in use; of one on keys, by the key that uses most."""

    limit: Limit
    used: float
    started: int
    """Of a rate: how many have started within its time."""
    holders: tuple[JobId, ...]
    """The jobs that use it, where they are counted."""


def limit_uses(store: Store, rules: Rules, now: datetime) -> list[LimitUse]:
    """All limits, by subject."""
    if not rules.limits:
        return []
    held = {id: Lane.parse(lane) for id, lane in store.scheduled.lanes_of(store.roster.held()).items()}
    amounts = {use.resource: use.used for use in resources(store) if use.host is None}
    found = [_use(limit, held, amounts, rules, now) for limit in rules.limits]
    return sorted(found, key=lambda use: use.limit.subject)


def _use(
    limit: Limit, held: Mapping[JobId, Lane], amounts: Mapping[str, float], rules: Rules, now: datetime
) -> LimitUse:
    buckets: dict[str, list[JobId]] = {}
    for id, lane in held.items():
        bucket = limit.bucket(lane) if limit.kind != RESOURCE else None
        if bucket is not None:
            buckets.setdefault(bucket, []).append(id)
    fullest, holders = max(buckets.items(), key=lambda item: len(item[1]), default=(limit.subject, []))
    used = amounts.get(limit.name, 0.0) if limit.kind == RESOURCE else float(len(holders))
    started = 0
    if limit.rate is not None:
        log = rules.starts.get(fullest if limit.kind == KEY else limit.subject, ())
        started = sum(starts for moment, starts in log if moment > now - limit.rate.window)
    return LimitUse(limit, used, started, tuple(holders))
