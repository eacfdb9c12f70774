"""`recruiter job show` counts attempts and deferrals in words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from recruiter.cli.records import _attempts, _events
from recruiter.domain.job import Execution, Job

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"snoozes": 1}, "0, deferred once"),
        ({"snoozes": 5, "conflicts": 2}, "0, deferred 3 times, deferred because of conflicting transactions twice"),
        ({"attempts": 2, "crashes": 2}, "2, its process died twice"),
        ({"attempts": 1, "locked_by": "w1"}, "1 ended, 1 running"),
    ],
)
def test_a_job_counts_its_attempts_in_words(counts: dict[str, object], words: str) -> None:
    assert _attempts(Job("j", "send", {}, NOW, NOW, **counts)) == words  # type: ignore[arg-type]


def test_an_attempt_after_the_death_of_a_worker_has_a_number_of_its_own() -> None:
    died = Execution(NOW, NOW, "w1", crashed=True, message="worker w1 died")
    job = Job("j", "send", {}, NOW, NOW, executions=(died,), worker_deaths=1, locked_by="w2", locked_at=NOW)

    started = [event for _, event in _events(job) if "started" in event]

    assert started == ["attempt 1 started on w1", "attempt 2 started on w2"]
