"""Descriptions of the figures and columns of the console: shown on hover, and all together on the page *Help*."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    name: str
    meaning: str
    """One or two sentences."""
    docs: str
    """The page of the documentation with more details, below `docs/`."""
    command: str = ""
    """The command that shows the same."""

    @property
    def page(self) -> str:
        """The approximate title of the page in the documentation: an installed package has no files of it."""
        return self.docs.rpartition("/")[2].removesuffix(".md").replace("-", " ")


_ALL = {
    "Jobs": {
        "due": Term(
            "due (queued)",
            "Jobs whose time has come and that no worker holds. The line shows how many there were; the cleaner looks "
            "every minute.",
            "explanation/lifecycle.md",
            "recruiter job list --state queued",
        ),
        "later": Term(
            "later (postponed)",
            "Jobs whose time has not come: scheduled for later, or waiting to be tried again.",
            "how-to/scheduling.md",
            "recruiter job list --state postponed",
        ),
        "running": Term(
            "running",
            "Jobs that workers hold: running jobs, and jobs that a worker has fetched and starts next.",
            "explanation/lifecycle.md",
            "recruiter job list --state running",
        ),
        "why": Term(
            "why",
            "The reason why due jobs do not start: a pause, a limit, no suitable worker, or other jobs before them.",
            "how-to/limits.md",
            "recruiter job show ID",
        ),
        "attempts": Term(
            "tries",
            "Attempts that have ended. A retry policy decides whether there is another one, and when.",
            "how-to/retries.md",
            "recruiter job list --attempts 3",
        ),
        "took": Term("took", "The duration of the last attempt of an ended job.", "how-to/finding-jobs.md"),
        "life": Term(
            "life",
            "The life of a job from its creation to its end, to scale: it waits, runs, waits for a retry. Thin parts "
            "wait, thick parts are attempts. A part that is too short to be seen is drawn wider than it was.",
            "explanation/lifecycle.md",
            "recruiter job show ID",
        ),
        "set-aside": Term(
            "set aside",
            "Documents that cannot be jobs, and jobs whose process died too often. They are in the archive and "
            "cause no harm; nothing runs them until a person recovers them.",
            "reference/why.md",
            "recruiter doctor",
        ),
        "about": Term(
            "≈ and +",
            "An estimate. 10.0k+ is at least that many: counting stops there. ≈ 812 of an error is the number "
            "among the newest 1,000 failed jobs. ≈ of arrivals is worked out from what ended and what waits now and "
            "waited a few minutes ago.",
            "how-to/finding-jobs.md",
        ),
    },
    "Figures over time": {
        "ended": Term(
            "ended",
            "Jobs that succeeded, failed, were cancelled or were lost in this time. Exact: they are counted in the "
            "transaction that archives them.",
            "how-to/analytics.md",
            "recruiter analytics",
        ),
        "pace": Term("a second now", "Jobs that ended, a second, over the last minute or two.", "how-to/analytics.md"),
        "failed": Term(
            "failed",
            "Jobs that ended in this time because they failed for good or were lost. An attempt that is tried "
            "again does not count.",
            "how-to/retries.md",
            "recruiter job list --state failed",
        ),
        "latency": Term(
            "latency",
            "From the time a job was due to the start of its last attempt.",
            "how-to/analytics.md",
            "recruiter analytics",
        ),
        "duration": Term("duration", "The duration of the last attempt of a job.", "how-to/analytics.md"),
        "total": Term(
            "total time",
            "The sum of the last attempts of the jobs that ended: where your workers spend their time.",
            "how-to/analytics.md",
        ),
        "trend": Term(
            "trend",
            "Ended jobs over the chosen time, from left to right.",
            "how-to/analytics.md",
            "recruiter analytics",
        ),
        "percentile": Term(
            "p50, p95, p99",
            "Half, 95 and 99 of 100 jobs were at least this quick. They come from buckets, each a fifth wider than the "
            "previous bucket, so they are right to within a tenth.",
            "how-to/analytics.md",
        ),
        "errors": Term(
            "most frequent errors",
            "The exceptions that most failed jobs of this time ended with; the line shows when.",
            "how-to/retries.md",
            "recruiter job list --state failed --error NAME",
        ),
    },
    "Groups and limits": {
        "group": Term(
            "group",
            "Decides which workers may run a job. A group can be paused: running jobs continue, no new job starts.",
            "how-to/groups-tags-priority-owner.md",
            "recruiter group list",
        ),
        "arrivals": Term(
            "in a minute",
            "Jobs created over the last five minutes: ended jobs, and the change in the number of open jobs.",
            "how-to/analytics.md",
        ),
        "departures": Term("out a minute", "Jobs that ended, over the last five minutes.", "how-to/analytics.md"),
        "next": Term(
            "next in turn",
            "The job that starts next: highest priority first, then the longest due. Far in the past means behind.",
            "how-to/groups-tags-priority-owner.md",
            "recruiter job list --state queued --group NAME --limit 1",
        ),
        "limit": Term(
            "limit",
            "The number of jobs of a task, group or key that may run at the same time, or start in a period; the "
            "amount of a resource that the whole fleet may use.",
            "how-to/limits.md",
            "recruiter limit list",
        ),
        "held-by": Term("held by", "The jobs that use the limit now; the first few.", "how-to/limits.md"),
    },
    "Workers": {
        "slots": Term(
            "slots",
            "The number of jobs that a worker can run at the same time; for the fleet, the sum over all live workers.",
            "how-to/concurrency.md",
            "recruiter worker list",
        ),
        "leader": Term(
            "leader, term",
            "The one recruiter that gives jobs to workers. The term grows whenever another one takes over.",
            "explanation/leadership.md",
        ),
        "silent": Term(
            "silent",
            "No heartbeat for a while. The leader takes such a worker off the roster, and its jobs run elsewhere.",
            "explanation/guarantees.md",
        ),
        "drained": Term(
            "drained",
            "The worker gets no new jobs, on request. It finishes its running jobs.",
            "how-to/deploying.md",
            "recruiter worker drain ID",
        ),
        "usage": Term(
            "memory and CPU",
            "What the worker, its children and the programs that they started use, measured every ten seconds. Memory "
            "that processes share counts for each of them. 100 % CPU is one processor.",
            "how-to/monitoring.md",
        ),
        "clock": Term(
            "clock",
            "How far the clock of a worker's host is from MongoDB's. Nothing is decided by it; times in logs differ.",
            "how-to/monitoring.md",
        ),
    },
    "Schedules and flows": {
        "ribbon": Term(
            "the next 24 hours",
            "When a schedule runs, from now on. Above is your clock, below each ribbon that of the schedule's own zone "
            "where it is another.",
            "how-to/repeatable-jobs.md",
            "recruiter scheduler next URN",
        ),
        "made": Term(
            "made",
            "Jobs that the schedule has created at their due times; jobs of Run now are not counted. Skipped are times "
            "that passed while no leader ran, or while the last job had not ended.",
            "how-to/repeatable-jobs.md",
            "recruiter scheduler list",
        ),
        "step": Term(
            "steps",
            "The jobs of a flow. A step that waits for others is blocked; it starts when all of them have succeeded, "
            "or ended where that is enough (dashed lines).",
            "how-to/flows.md",
            "recruiter flow show ID",
        ),
        "skipped": Term(
            "skipped",
            "Steps that never ran: a step that they wait for failed, or their flow did not need them. A filter and the "
            "figures of a time count the former as failed, the latter as cancelled.",
            "how-to/flows.md",
            "recruiter job list --why dependency-failed --why not-needed",
        ),
        "stuck": Term(
            "why",
            "The step that an open flow waits for and the reason why it does not start; of a failed flow, a step "
            "that failed, and its error.",
            "how-to/flows.md",
            "recruiter flow show ID",
        ),
    },
}
SECTIONS = _ALL
TERMS: dict[str, Term] = {key: term for terms in _ALL.values() for key, term in terms.items()}
