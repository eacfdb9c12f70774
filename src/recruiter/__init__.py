"""Recruiter: the job queue and scheduler for Python people who already run MongoDB.

Each name, except the exceptions, is imported when it is used. So the command line and the pytest plugin, which import
this package, do not wait for pymongo where they do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recruiter import errors
from recruiter.errors import *  # noqa: F403
from recruiter.first_use import imports_on_first_use

if TYPE_CHECKING:
    from recruiter.app import Recruiter as Recruiter
    from recruiter.app import current_job as current_job
    from recruiter.clock import StoppedClock as StoppedClock
    from recruiter.current import ReceivedSignal as ReceivedSignal
    from recruiter.current import track as track
    from recruiter.domain.flow import FlowState as FlowState
    from recruiter.domain.job import ArchivedJob as ArchivedJob
    from recruiter.domain.job import Cancellation as Cancellation
    from recruiter.domain.job import Checkpoint as Checkpoint
    from recruiter.domain.job import Execution as Execution
    from recruiter.domain.job import Job as Job
    from recruiter.domain.job import JobId as JobId
    from recruiter.domain.job import JobReport as JobReport
    from recruiter.domain.job import SignalWait as SignalWait
    from recruiter.domain.progress import LogLine as LogLine
    from recruiter.domain.progress import StatusEntry as StatusEntry
    from recruiter.domain.retry.decision import Archive as Archive
    from recruiter.domain.retry.decision import Decision as Decision
    from recruiter.domain.retry.decision import Failure as Failure
    from recruiter.domain.retry.decision import Retry as Retry
    from recruiter.domain.retry.decision import RetryPolicy as RetryPolicy
    from recruiter.domain.retry.policies import DoNotDoItAgain as DoNotDoItAgain
    from recruiter.domain.retry.policies import ExponentialBackoff as ExponentialBackoff
    from recruiter.domain.retry.policies import RetryForever as RetryForever
    from recruiter.domain.retry.policies import RetryManyTimes as RetryManyTimes
    from recruiter.domain.retry.policies import SelectByException as SelectByException
    from recruiter.domain.retry.policies import TimeTable as TimeTable
    from recruiter.domain.schedule.policies import Cron as Cron
    from recruiter.domain.schedule.policies import Every as Every
    from recruiter.domain.schedule.policies import EveryMinutes as EveryMinutes
    from recruiter.domain.schedule.scheduler import Late as Late
    from recruiter.domain.schedule.scheduler import Overlap as Overlap
    from recruiter.domain.schedule.scheduler import SchedulePolicy as SchedulePolicy
    from recruiter.domain.schedule.scheduler import Scheduler as Scheduler
    from recruiter.domain.search.filter import Conditions as Conditions
    from recruiter.domain.search.filter import Count as Count
    from recruiter.domain.search.filter import JobFilter as JobFilter
    from recruiter.domain.search.filter import Page as Page
    from recruiter.domain.state import State as State
    from recruiter.domain.state import Why as Why
    from recruiter.events import Event as Event
    from recruiter.flow import Flow as Flow
    from recruiter.flow import FlowHandle as FlowHandle
    from recruiter.flow import Step as Step
    from recruiter.flow import SubFlow as SubFlow
    from recruiter.flow import SubFlowHandle as SubFlowHandle
    from recruiter.repeatable import RepeatableJob as RepeatableJob
    from recruiter.repeatable import SchedulerHandle as SchedulerHandle
    from recruiter.results import JobHandle as JobHandle
    from recruiter.store.payload import PayloadCodec as PayloadCodec
    from recruiter.task import Task as Task
    from recruiter.views.flows import FlowReport as FlowReport
    from recruiter.views.flows import StepReport as StepReport
    from recruiter.views.flows import SubFlowReport as SubFlowReport
    from recruiter.workable import Workable as Workable

__version__ = "0.1.0"

_PLACES = {
    "recruiter.app": "Recruiter current_job",
    "recruiter.clock": "StoppedClock",
    "recruiter.current": "ReceivedSignal track",
    "recruiter.domain.flow": "FlowState",
    "recruiter.domain.job": "Checkpoint SignalWait ArchivedJob Cancellation Execution Job JobId JobReport",
    "recruiter.domain.progress": "LogLine StatusEntry",
    "recruiter.domain.retry.decision": "Archive Decision Failure Retry RetryPolicy",
    "recruiter.domain.retry.policies": (
        "DoNotDoItAgain ExponentialBackoff RetryForever RetryManyTimes SelectByException TimeTable"
    ),
    "recruiter.domain.schedule.policies": "Cron Every EveryMinutes",
    "recruiter.domain.schedule.scheduler": "Late SchedulePolicy Overlap Scheduler",
    "recruiter.domain.search.filter": "Conditions JobFilter Count Page",
    "recruiter.domain.state": "State Why",
    "recruiter.events": "Event",
    "recruiter.flow": "Flow FlowHandle Step SubFlow SubFlowHandle",
    "recruiter.repeatable": "RepeatableJob SchedulerHandle",
    "recruiter.results": "JobHandle",
    "recruiter.store.payload": "PayloadCodec",
    "recruiter.task": "Task",
    "recruiter.views.flows": "FlowReport StepReport SubFlowReport",
    "recruiter.workable": "Workable",
}
"""The public names of each module."""

_MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}
__all__ = sorted([*_MODULES, *vars(errors)["__all__"]])
__getattr__ = imports_on_first_use(__name__, _MODULES)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
