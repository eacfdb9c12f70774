"""The actions on jobs, by their ids or by a filter: one table for the command line, the web console and its API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from recruiter.app import Recruiter
from recruiter.domain.job import JobId
from recruiter.domain.search.filter import JobFilter

Progress = Callable[[int], None]
"""Called with the number of jobs that are done so far."""


class ActionResult(NamedTuple):
    """The effect of an action on one job: for people, and for scripts."""

    text: str
    facts: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class JobAction:
    """An action on one job or on the jobs of a filter, as command line and web console offer it."""

    verb: str
    method: str
    """Of `Recruiter`, for one job, and of `recruiter.jobs`, for the jobs of a filter."""
    doing: str
    done: str
    effect: str
    narrow: Callable[..., JobFilter]
    """Narrows a filter to the jobs that the action is possible for. Raises InvalidFilter."""
    has_author: bool = True
    """It takes `by` and `reason`."""
    asks: str = ""
    """The value that it needs, for people."""
    danger: bool = False
    """It cannot be taken back."""

    def among(self, filter: JobFilter, *, again: bool = False) -> JobFilter:
        """The jobs of the filter that the action is possible for. `again` also recovers jobs that succeeded."""
        return self.narrow(filter, again=again) if self.verb == "recover" else self.narrow(filter)

    def one(self, recruiter: Recruiter, id: JobId, **options: Any) -> ActionResult:
        """Acts on one job; returns the effect."""
        made = getattr(recruiter, self.method)(id, **options)
        match self.verb:
            case "recover":
                return ActionResult(f"is recovered as {made.id}", {"recovered_as": made.id, "key": made.key})
            case "run":
                return ActionResult(f"is due now: {recruiter.explain(id)}")
            case "reschedule":
                due = recruiter.find(id).scheduled_at
                return ActionResult(f"is rescheduled for {due:%Y-%m-%d %H:%M:%S} UTC", {"scheduled_at": due})
            case "reprioritise":
                return ActionResult(f"has priority {options['priority']}", {"priority": options["priority"]})
            case _:
                return ActionResult(f"is {self.done}")

    def many(self, recruiter: Recruiter, filter: JobFilter, progress: Progress, **options: Any) -> int:
        """Acts on all jobs of the filter and returns how many."""
        number: int = getattr(recruiter.jobs, self.method)(filter, progress=progress, **options)
        return number


_ALL = (
    JobAction(
        "cancel",
        "cancel",
        "cancelling",
        "being cancelled",
        "Waiting jobs never run; running jobs are asked to stop, and are killed if they do not.",
        JobFilter.to_cancel,
    ),
    JobAction(
        "run",
        "run_now",
        "running",
        "due now",
        "Postponed jobs become due, including jobs that wait for their retry; they get their turn by their priority.",
        JobFilter.to_run,
    ),
    JobAction(
        "reschedule",
        "reschedule",
        "rescheduling",
        "rescheduled",
        "Waiting jobs get another time; jobs that a worker holds stay unchanged.",
        JobFilter.to_change,
        asks="new time: 2h (from now), or 2030-12-01T22:18Z",
    ),
    JobAction(
        "reprioritise",
        "reprioritise",
        "reprioritising",
        "reprioritised",
        "Waiting jobs get another priority; a higher one goes first inside its group.",
        JobFilter.to_change,
        asks="new priority",
    ),
    JobAction(
        "recover",
        "recover",
        "recovering",
        "recovered",
        "Each runs once more, as a new job; the old ones stay unchanged.",
        JobFilter.to_recover,
        has_author=False,
    ),
    JobAction(
        "remove",
        "remove",
        "removing",
        "removed",
        "This is final: results, attempts and logs are removed too.",
        JobFilter.to_remove,
        has_author=False,
        danger=True,
    ),
)
JOB_ACTIONS: Mapping[str, JobAction] = {action.verb: action for action in _ALL}
