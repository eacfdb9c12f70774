"""Resources and limits: capacity and use, on each host and in the whole fleet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from recruiter.domain.job import JobId
from recruiter.domain.planning.limits import RESOURCE, Limit
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.pack import AssignedJob
from recruiter.domain.planning.rules import Rules
from recruiter.domain.planning.situation import Situation
from recruiter.store.database import Store


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """The use of a resource, on a host or in the whole fleet."""

    resource: str
    host: str | None
    """None for a limit of the whole fleet."""
    limit: float
    used: float

    @property
    def available(self) -> float:
        return max(0.0, self.limit - self.used)


def read_situation(store: Store, rules: Rules, now: datetime) -> Situation:
    """The facts that the leader plans with."""
    return Situation(store.roster.read(), store.roster.held(), rules, now)


def resources(store: Store) -> list[ResourceUse]:
    """The use of each resource of each host, and then of the resources that are limited for the whole fleet."""
    situation = read_situation(store, store.limits.read(), store.clock.now())
    used: dict[str, Needs] = {}
    for job in situation.holders:
        used[job.host] = used.get(job.host, Needs()) + job.lane.needs
    found: list[ResourceUse] = []
    for host, capacity in sorted(situation.capacities.items()):
        taken = used.get(host, Needs()).amounts()
        found.extend(ResourceUse(name, host, limit, taken.get(name, 0)) for name, limit in capacity.amounts().items())
    total = sum(used.values(), Needs()).amounts()
    for limit in situation.rules.limits:
        if limit.kind == RESOURCE and limit.at_once is not None:
            found.append(ResourceUse(limit.name, None, limit.at_once, total.get(limit.name, 0)))
    return found


@dataclass(frozen=True, slots=True)
class LimitUse:
    """The use of a limit; the use of a limit on keys is that of the key that uses most."""

    limit: Limit
    used: float
    started: int
    """The starts within the period of a rate."""
    holders: tuple[JobId, ...]
    """The jobs that use it."""


def limit_uses(store: Store, rules: Rules, now: datetime) -> list[LimitUse]:
    if not rules.limits:
        return []
    situation = read_situation(store, rules, now)
    return sorted((_limit_use(limit, situation) for limit in rules.limits), key=lambda use: use.limit.subject)


def _limit_use(limit: Limit, situation: Situation) -> LimitUse:
    """The use of a limit. A limit on keys reports the key with the most held jobs."""
    buckets: dict[str, list[AssignedJob]] = {}
    for job in situation.holders:
        bucket = limit.bucket(job.lane)
        if bucket is not None:
            buckets.setdefault(bucket, []).append(job)
    fullest, jobs = max(buckets.items(), key=lambda item: len(item[1]), default=(limit.subject, []))
    used = float(len(jobs))
    if limit.kind == RESOURCE:
        used = float(sum((job.lane.needs for job in jobs), Needs()).amounts().get(limit.name, 0))
    started = 0
    if limit.rate is not None:
        log = situation.rules.starts.get(fullest, ())
        started = sum(starts for moment, starts in log if moment > situation.now - limit.rate.window)
    return LimitUse(limit, used, started, tuple(job.id for job in jobs))
