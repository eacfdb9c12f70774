"""An application that declares a repeated job, and creates another when its recruiter begins to lead."""

from __future__ import annotations

from recruiter import Every, Recruiter, Workable, current_job

recruiter = Recruiter()


@recruiter.every("1 second", urn="tick", late="all")
def tick() -> str | None:
    return current_job.urn


class Report(Workable, name="hooked_report"):
    urn = "report:hook"

    def execute(self) -> str:
        return "sent"


def recruiter_became_master(leading: Recruiter) -> None:
    Report().as_repeatable_job_of(leading).repeat_with_policy(Every("1 second")).unique().create()
