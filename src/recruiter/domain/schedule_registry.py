"""Schedule policies as documents (see class_registry.py).

{"class": "Cron", "parameters": {"expression": "0 6 * * *", "tz": "Europe/Rome"}}
"""

from __future__ import annotations

from recruiter.domain.class_registry import ClassRegistry
from recruiter.domain.cron import Cron
from recruiter.domain.schedule import SchedulePolicy
from recruiter.domain.schedule_policies import Every, EveryMinutes
from recruiter.errors import InvalidSchedule


class SchedulePolicyRegistry(ClassRegistry[SchedulePolicy]):
    kind = "schedule policy"
    base = SchedulePolicy
    built_in = (Cron, Every, EveryMinutes)
    error = InvalidSchedule
