"""What the figures and columns of the console mean: shown on hover, and all together on the page *Help*."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    name: str
    meaning: str
    """One or two sentences."""
    docs: str
    """The page of the documentation that says more, below `docs/`."""
    command: str = ""
    """The command that shows the same."""

    @property
    def page(self) -> str:
        """The page as it is called in the documentation's navigation, roughly: an installed user has no files of it."""
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
            "Jobs that workers hold: those that run, and those that a worker has fetched and starts next.",
            "explanation/lifecycle.md",
            "recruiter job list --state running",
        ),
        "why": Term(
            "why",
            "What keeps due jobs from starting: a pause, a limit, no worker that serves them, or only their turn.",
            "how-to/limits.md",
            "recruiter job show ID",
        ),
        "attempts": Term(
            "tries",
            "Attempts that have ended. A retry policy decides whether there is another one, and when.",
            "how-to/retries.md",
            "recruiter job list --attempts 3",
        ),
        "took": Term("took", "How long the last attempt of an ended job ran.", "how-to/finding-jobs.md"),
        "life": Term(
            "life",
            "From the moment a job was made to its end, to scale: it waits, runs, waits to be tried again. Thin parts "
            "wait, thick parts are attempts. A part that is too short to be seen is drawn wider than it was.",
            "explanation/lifecycle.md",
            "recruiter job show ID",
        ),
        "set-aside": Term(
            "set aside",
            "Documents that cannot be jobs, and jobs whose process died too often. They are in the archive and harm "
            "nobody; nothing runs them until somebody recovers them.",
            "reference/why.md",
            "recruiter doctor",
        ),
        "about": Term(
            "≈ and +",
            "An estimate. 10.0k+ is at least that many: counting stops there. ≈ 812 of an error is how many there are "
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
            "Of the jobs that ended in this time, those that failed for good or were lost. An attempt that is tried "
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
        "duration": Term("duration", "How long the last attempt of a job took.", "how-to/analytics.md"),
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
            "one before, so they are right to within a tenth.",
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
            "Decides which workers may run a job. A group can be paused: what runs goes on, nothing new starts.",
            "how-to/groups-tags-priority-owner.md",
            "recruiter group list",
        ),
        "arrivals": Term(
            "in a minute",
            "Jobs that were made, over the last five minutes: those that ended, and the change of those that have not.",
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
            "How many jobs of a task, group or key may run at once, or start in a time; how much of a resource the "
            "whole fleet may use.",
            "how-to/limits.md",
            "recruiter limit list",
        ),
        "held-by": Term("held by", "The jobs that use the limit now; the first few.", "how-to/limits.md"),
    },
    "Workers": {
        "slots": Term(
            "slots",
            "How many jobs a worker runs at once; of the fleet, all workers together that were heard of lately.",
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
            "Somebody has asked that it gets no new jobs. What it runs, it finishes.",
            "how-to/deploying.md",
            "recruiter worker drain ID",
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
            "Jobs that the schedule has made when they were due; those of Run now are not counted. Skipped are times "
            "that passed while nobody was there, or while the last job had not ended.",
            "how-to/repeatable-jobs.md",
            "recruiter scheduler list",
        ),
        "step": Term(
            "steps",
            "The jobs of a flow. One that waits for others is blocked; it starts when all of them have succeeded, or "
            "ended where that is enough (dashed lines).",
            "how-to/flows.md",
            "recruiter flow show ID",
        ),
    },
}
SECTIONS = _ALL
TERMS: dict[str, Term] = {key: term for terms in _ALL.values() for key, term in terms.items()}
