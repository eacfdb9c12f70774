"""Repetition: the words of a job that its occurrences cannot have are refused; unique is honoured."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from recruiter import Cron, Recruiter, Workable
from recruiter.errors import InvalidJob

DAILY = Cron("0 6 * * *")


class DailyReport(Workable, name="blackbox.DailyReport"):
    def execute(self) -> None: ...


def report() -> None: ...


@pytest.mark.parametrize(
    ("word", "refusal"),
    [
        (lambda job: job.schedule_at(datetime(2038, 1, 19, tzinfo=UTC)), "cannot have schedule_at or schedule_in"),
        (lambda job: job.schedule_in("1 hour"), "cannot have schedule_at or schedule_in"),
        (lambda job: job.schedule_in(0), "cannot have schedule_at or schedule_in"),
        (lambda job: job.with_id("mine"), "cannot have with_id"),
        (lambda job: job.debounce("10s"), "cannot have debounce or throttle"),
        (lambda job: job.throttle("10s"), "cannot have debounce or throttle"),
        (lambda job: job.here(), "cannot have here"),
        (lambda job: job.expires_at(datetime(2038, 1, 19, tzinfo=UTC)), "cannot have expires_at"),
        (lambda job: job.unique("key"), "cannot have a key or a time for unique"),
        (lambda job: job.unique(until="started"), "cannot have a key or a time for unique"),
    ],
)
@pytest.mark.parametrize("kind", ["task", "workable"])
def test_a_word_about_one_job_is_refused_before_repeat_with_policy(
    recruiter: Recruiter, word: Callable[[Any], Any], refusal: str, kind: str
) -> None:
    job: Any = recruiter.task(report).job() if kind == "task" else DailyReport().as_repeatable_job_of(recruiter)

    with pytest.raises(InvalidJob, match=refusal):
        word(job).repeat_with_policy(DAILY)
    assert recruiter.schedulers() == []


def test_unique_before_repeat_with_policy_means_that_occurrences_do_not_overlap(recruiter: Recruiter) -> None:
    task = recruiter.task(report)
    before = task.job().unique().repeat_with_policy(DAILY).with_urn("before").create()
    after = task.job().repeat_with_policy(DAILY).unique().with_urn("after").create()
    of_task = recruiter.task(name="alone", unique=True)(lambda: None).job().repeat_with_policy(DAILY).create()
    plain = task.job().repeat_with_policy(DAILY).with_urn("plain").create()

    overlaps = [str(each.find().overlap) for each in (before, after, of_task, plain)]
    assert overlaps == ["unique", "unique", "unique", "allow"]


def test_a_repeatable_job_without_a_schedule_is_refused_and_does_not_run(recruiter: Recruiter) -> None:
    job = DailyReport().as_repeatable_job_of(recruiter)

    for last_word in (job.create, job.enqueue, job.execute, job.in_background().execute):
        with pytest.raises(InvalidJob, match="a repeatable job needs a schedule"):
            last_word()
    assert recruiter.jobs.count().number == 0
