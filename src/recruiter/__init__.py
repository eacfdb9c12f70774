"""Recruiter: the job queue and scheduler for Python people who already run MongoDB.

Each name is imported when it is used. So the command line and the pytest plugin, which import this package, do not wait
for pymongo where they do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recruiter.first_use import imports_on_first_use

if TYPE_CHECKING:
    from recruiter.app import Recruiter, current_job
    from recruiter.clock import StoppedClock
    from recruiter.current import track
    from recruiter.domain.checkpoints import Checkpoint, SignalWait
    from recruiter.domain.flow.step import FlowState
    from recruiter.domain.job import ArchivedJob, Cancellation, Execution, Job, JobId, JobReport
    from recruiter.domain.progress import LogLine, StatusEntry
    from recruiter.domain.retry.decision import Archive, Decision, Failure, Retry, RetryPolicy
    from recruiter.domain.retry.policies import (
        DoNotDoItAgain,
        ExponentialBackoff,
        RetryForever,
        RetryManyTimes,
        SelectByException,
        TimeTable,
    )
    from recruiter.domain.schedule.occurrences import Late, SchedulePolicy
    from recruiter.domain.schedule.policies import Cron, Every, EveryMinutes
    from recruiter.domain.schedule.scheduler import Overlap, Scheduler
    from recruiter.domain.search.filter import Conditions, JobFilter
    from recruiter.domain.search.pages import Count, JobSummary, Page
    from recruiter.domain.state import State, Why
    from recruiter.errors import (
        ApplicationError,
        CommandFailed,
        DocumentRefused,
        EmbeddedError,
        FlowNotFound,
        InvalidArguments,
        InvalidDuration,
        InvalidFilter,
        InvalidFlow,
        InvalidJob,
        InvalidName,
        InvalidSchedule,
        InvalidSession,
        InvalidTarget,
        JobBlockedOthers,
        JobCancelled,
        JobEnded,
        JobExists,
        JobFailed,
        JobNotFound,
        JobOutOfMemory,
        JobPauses,
        JobsRefused,
        JobTimedOut,
        JobTooLarge,
        LimitNotFound,
        NoCurrentJob,
        NoServerBinary,
        NotAlone,
        NotAReplicaSet,
        PayloadSealed,
        ReadOnly,
        RecruiterError,
        ResultTimeout,
        RetryLater,
        SchedulerNotFound,
        ServerDidNotStart,
        ServerTooOld,
        SettingsError,
        SignalTimeout,
        StoreError,
        StoreRefused,
        StoreUnreachable,
        Superseded,
        TaskExists,
        TooManyViewers,
        TransactionFailed,
        TransactionRepeats,
        UnknownTask,
        UnreadableDocument,
        UnsupportedValue,
        WorkerNotFound,
    )
    from recruiter.events import Event
    from recruiter.flow import Flow, FlowHandle, Step
    from recruiter.repeatable import RepeatableJob, SchedulerHandle
    from recruiter.results import JobHandle
    from recruiter.store.payload import PayloadCodec
    from recruiter.task import Task
    from recruiter.views.flows import FlowReport, StepReport
    from recruiter.workable import Workable

__all__ = [
    "ApplicationError",
    "Archive",
    "ArchivedJob",
    "Cancellation",
    "Checkpoint",
    "CommandFailed",
    "Conditions",
    "Count",
    "Cron",
    "Decision",
    "DoNotDoItAgain",
    "DocumentRefused",
    "EmbeddedError",
    "Event",
    "Every",
    "EveryMinutes",
    "Execution",
    "ExponentialBackoff",
    "Failure",
    "Flow",
    "FlowHandle",
    "FlowNotFound",
    "FlowReport",
    "FlowState",
    "InvalidArguments",
    "InvalidDuration",
    "InvalidFilter",
    "InvalidFlow",
    "InvalidJob",
    "InvalidName",
    "InvalidSchedule",
    "InvalidSession",
    "InvalidTarget",
    "Job",
    "JobBlockedOthers",
    "JobCancelled",
    "JobEnded",
    "JobExists",
    "JobFailed",
    "JobFilter",
    "JobHandle",
    "JobId",
    "JobNotFound",
    "JobOutOfMemory",
    "JobPauses",
    "JobReport",
    "JobSummary",
    "JobTimedOut",
    "JobTooLarge",
    "JobsRefused",
    "Late",
    "LimitNotFound",
    "LogLine",
    "NoCurrentJob",
    "NoServerBinary",
    "NotAReplicaSet",
    "NotAlone",
    "Overlap",
    "Page",
    "PayloadCodec",
    "PayloadSealed",
    "ReadOnly",
    "Recruiter",
    "RecruiterError",
    "RepeatableJob",
    "ResultTimeout",
    "Retry",
    "RetryForever",
    "RetryLater",
    "RetryManyTimes",
    "RetryPolicy",
    "SchedulePolicy",
    "Scheduler",
    "SchedulerHandle",
    "SchedulerNotFound",
    "SelectByException",
    "ServerDidNotStart",
    "ServerTooOld",
    "SettingsError",
    "SignalTimeout",
    "SignalWait",
    "State",
    "StatusEntry",
    "Step",
    "StepReport",
    "StoppedClock",
    "StoreError",
    "StoreRefused",
    "StoreUnreachable",
    "Superseded",
    "Task",
    "TaskExists",
    "TimeTable",
    "TooManyViewers",
    "TransactionFailed",
    "TransactionRepeats",
    "UnknownTask",
    "UnreadableDocument",
    "UnsupportedValue",
    "Why",
    "Workable",
    "WorkerNotFound",
    "current_job",
    "track",
]
__version__ = "0.1.0"

_ELSEWHERE = {
    "Recruiter": "recruiter.app",
    "current_job": "recruiter.app",
    "StoppedClock": "recruiter.clock",
    "track": "recruiter.current",
    "Checkpoint": "recruiter.domain.checkpoints",
    "SignalWait": "recruiter.domain.checkpoints",
    "FlowState": "recruiter.domain.flow.step",
    "ArchivedJob": "recruiter.domain.job",
    "Cancellation": "recruiter.domain.job",
    "Execution": "recruiter.domain.job",
    "Job": "recruiter.domain.job",
    "JobId": "recruiter.domain.job",
    "JobReport": "recruiter.domain.job",
    "LogLine": "recruiter.domain.progress",
    "StatusEntry": "recruiter.domain.progress",
    "Archive": "recruiter.domain.retry.decision",
    "Decision": "recruiter.domain.retry.decision",
    "Failure": "recruiter.domain.retry.decision",
    "Retry": "recruiter.domain.retry.decision",
    "RetryPolicy": "recruiter.domain.retry.decision",
    "DoNotDoItAgain": "recruiter.domain.retry.policies",
    "ExponentialBackoff": "recruiter.domain.retry.policies",
    "RetryForever": "recruiter.domain.retry.policies",
    "RetryManyTimes": "recruiter.domain.retry.policies",
    "SelectByException": "recruiter.domain.retry.policies",
    "TimeTable": "recruiter.domain.retry.policies",
    "Cron": "recruiter.domain.schedule.policies",
    "Late": "recruiter.domain.schedule.occurrences",
    "SchedulePolicy": "recruiter.domain.schedule.occurrences",
    "Every": "recruiter.domain.schedule.policies",
    "EveryMinutes": "recruiter.domain.schedule.policies",
    "Overlap": "recruiter.domain.schedule.scheduler",
    "Scheduler": "recruiter.domain.schedule.scheduler",
    "Conditions": "recruiter.domain.search.filter",
    "JobFilter": "recruiter.domain.search.filter",
    "Count": "recruiter.domain.search.pages",
    "JobSummary": "recruiter.domain.search.pages",
    "Page": "recruiter.domain.search.pages",
    "State": "recruiter.domain.state",
    "Why": "recruiter.domain.state",
    "Event": "recruiter.events",
    "Flow": "recruiter.flow",
    "FlowHandle": "recruiter.flow",
    "Step": "recruiter.flow",
    "RepeatableJob": "recruiter.repeatable",
    "SchedulerHandle": "recruiter.repeatable",
    "JobHandle": "recruiter.results",
    "PayloadCodec": "recruiter.store.payload",
    "Task": "recruiter.task",
    "FlowReport": "recruiter.views.flows",
    "StepReport": "recruiter.views.flows",
    "Workable": "recruiter.workable",
}
"""Where the public names are defined that are no exceptions."""

__getattr__ = imports_on_first_use(__name__, dict.fromkeys(__all__, "recruiter.errors") | _ELSEWHERE)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
