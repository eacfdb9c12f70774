"""Schedule policies as documents (see class_registry.py).

{"class": "Cron", "parameters": {"expression": "0 6 * * *", "tz": "Europe/Rome"}}
"""

from __future__ import annotations

from recruiter.domain.class_registry import ClassRegistry
from recruiter.domain.duration import DurationLike
from recruiter.domain.schedule.cron import Cron
from recruiter.domain.schedule.occurrences import SchedulePolicy
from recruiter.domain.schedule.policies import Every, EveryMinutes
from recruiter.domain.text import said_by
from recruiter.errors import InvalidDuration, InvalidSchedule

_FEWEST_CRON_FIELDS = 5


class SchedulePolicyRegistry(ClassRegistry[SchedulePolicy]):
    kind = "schedule policy"
    base = SchedulePolicy
    built_in = (Cron, Every, EveryMinutes)
    error = InvalidSchedule


def schedule_policy(schedule: SchedulePolicy | DurationLike, tz: str = "UTC") -> SchedulePolicy:
    """The policy that is meant: a policy itself, a cron expression, or an interval such as "5 minutes"."""
    if isinstance(schedule, SchedulePolicy):
        return schedule
    if isinstance(schedule, str) and (schedule.startswith("@") or len(schedule.split()) >= _FEWEST_CRON_FIELDS):
        return Cron(schedule, tz)
    try:
        return Every(schedule)
    except InvalidDuration:
        told = said_by(schedule, repr)
        raise InvalidSchedule(
            f"{told} is no schedule; write a cron expression such as '0 6 * * *', an interval such as '5 minutes', "
            "or a policy"
        ) from None
