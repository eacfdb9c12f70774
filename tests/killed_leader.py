"""A leader that is killed while it repeats."""

from __future__ import annotations

from datetime import datetime

from pymongo import monitoring

from recruiter.clock import StoppedClock
from recruiter.domain.policy_registry import SchedulePolicyRegistry
from recruiter.steps.lead import Leadership
from recruiter.steps.repeat import repeat
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.killed import Killer


def repeat_and_die(target: str, fatal: int, moment: str, now: datetime) -> None:
    killer = Killer(fatal, moment)
    monitoring.register(killer)
    store = Store(Target.parse(target), StoppedClock(now))
    lead = Leadership(store, store.clock, 5.0)
    lead._acquire(store.leases.read())
    assert lead.leading
    killer.armed = True
    repeat(store, SchedulePolicyRegistry(), lead.term, lead.holder, now)
