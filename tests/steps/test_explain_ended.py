"""Explain, of a job that has ended: one sentence that says what became of it, and why it is not tried again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.domain.job import Execution, Job
from recruiter.domain.retry.decision import Archive
from recruiter.domain.state import Why
from recruiter.store import outcomes
from recruiter.store.codec import job_document
from tests.samples import NOW, a_job

AT = datetime(2030, 1, 1, 13, tzinfo=UTC)
RAN = Execution(NOW, AT, "w1", exception="ValueError", message="no good")


def told(recruiter: Recruiter, job: Job, outcome: outcomes.Outcome) -> str:
    assert isinstance(outcome, outcomes.ToArchive)
    recruiter.store.transactions.archive_new(job.id, outcome)
    return recruiter.explain(job.id)


@pytest.mark.parametrize(
    ("why", "job", "words"),
    [
        (Why.TRIED_TOO_MANY_TIMES, {"attempts": 2}, "after 3 attempts; its retry policy allows no more"),
        (Why.NON_RETRIABLE_EXCEPTION, {}, "after 1 attempt, with an error that its retry policy does not retry"),
        (Why.NOT_SCHEDULED_BY_RETRY_POLICY, {}, "after 1 attempt; it has no retry policy"),
        (
            Why.NOT_SCHEDULED_BY_RETRY_POLICY,
            {"retry_policy": {"class": "Mine", "parameters": {}}},
            "after 1 attempt; its retry policy decided so",
        ),
        (Why.POLICY_FAILED, {}, "after 1 attempt; its retry policy could not decide"),
        ("gave-up", {}, "after 1 attempt, 'gave-up'"),
    ],
)
def test_of_one_that_failed(recruiter: Recruiter, why: str, job: dict[str, Any], words: str) -> None:
    made = a_job(**job)
    raw = outcomes.failed(job_document(made), RAN, AT, Archive(why))
    sentence = told(recruiter, made, raw)
    assert sentence == f"failed at 2030-01-01 13:00:00 UTC, {words}: ValueError: no good"


def test_of_one_that_crashed(recruiter: Recruiter) -> None:
    job = a_job(attempts=2)
    document = {**job_document(job), "crashes": 2}
    raw = outcomes.crashed(
        document, recruiter.policies, worker="w1", started_at=NOW, at=AT, message="killed by SIGKILL"
    )
    sentence = told(recruiter, job, raw)
    wanted = "failed at 2030-01-01 13:00:00 UTC, after its process died 3 times while it ran: killed by SIGKILL"
    assert sentence == wanted


def test_of_one_that_was_lost(recruiter: Recruiter) -> None:
    job = a_job(at_most_once=True)
    raw = outcomes.crashed(
        job_document(job), recruiter.policies, worker="w1", started_at=NOW, at=AT, message="killed by SIGKILL"
    )
    assert told(recruiter, job, raw) == (
        "was lost at 2030-01-01 13:00:00 UTC: its process died while it ran, and it must not run twice "
        "(killed by SIGKILL)"
    )
