"""Recruiter: the job queue and scheduler for Python people who already run MongoDB."""

from recruiter.app import Recruiter
from recruiter.clock import StoppedClock
from recruiter.current import current_job, track
from recruiter.domain.conditions import Conditions
from recruiter.domain.cron import Cron
from recruiter.domain.filters import JobFilter
from recruiter.domain.job import ArchivedJob, Cancellation, Execution, Job, JobId
from recruiter.domain.pages import Count, JobSummary, Page
from recruiter.domain.policies import (
    DoNotDoItAgain,
    ExponentialBackoff,
    RetryForever,
    RetryManyTimes,
    SelectByException,
    TimeTable,
)
from recruiter.domain.progress import LogLine, StatusEntry
from recruiter.domain.report import JobReport
from recruiter.domain.retry import Archive, Decision, Failure, Retry, RetryPolicy
from recruiter.domain.schedule import Late, SchedulePolicy
from recruiter.domain.schedule_policies import Every, EveryMinutes
from recruiter.domain.scheduler import Overlap, Scheduler
from recruiter.domain.state import State
from recruiter.domain.why import Why
from recruiter.errors import JobCancelled, JobTimedOut, RecruiterError, RetryLater
from recruiter.events import Event
from recruiter.repeatable import RepeatableJob, SchedulerHandle
from recruiter.results import JobHandle
from recruiter.task import Task
from recruiter.workable import Workable

__all__ = [
    "Archive",
    "ArchivedJob",
    "Cancellation",
    "Conditions",
    "Count",
    "Cron",
    "Decision",
    "DoNotDoItAgain",
    "Event",
    "Every",
    "EveryMinutes",
    "Execution",
    "ExponentialBackoff",
    "Failure",
    "Job",
    "JobCancelled",
    "JobFilter",
    "JobHandle",
    "JobId",
    "JobReport",
    "JobSummary",
    "JobTimedOut",
    "Late",
    "LogLine",
    "Overlap",
    "Page",
    "Recruiter",
    "RecruiterError",
    "RepeatableJob",
    "Retry",
    "RetryForever",
    "RetryLater",
    "RetryManyTimes",
    "RetryPolicy",
    "SchedulePolicy",
    "Scheduler",
    "SchedulerHandle",
    "SelectByException",
    "State",
    "StatusEntry",
    "StoppedClock",
    "Task",
    "TimeTable",
    "Why",
    "Workable",
    "current_job",
    "track",
]
__version__ = "0.1.0"
