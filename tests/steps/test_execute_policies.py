"""Execute: a retry policy that misbehaves must not lose the job, nor the process that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from recruiter.domain.retry.decision import Archive, Decision, Failure, Retry, RetryPolicy
from recruiter.steps.settle import settle
from recruiter.store.database import Store
from tests.bench import Bench, failing, raising
from tests.samples import NOW, a_job, document, hold, places


@dataclass(frozen=True)
class Scripted(RetryPolicy):
    """Does what a broken policy may do."""

    what: str

    def decide(self, failure: Failure) -> Decision | None:  # noqa: ARG002
        answers: dict[str, Callable[[], Any]] = {
            "raises": raising(ValueError("policy")),
            "exits": raising(SystemExit(1)),
            "nonsense": lambda: "tomorrow",
            "huge": raising(ValueError("x" * 20_000_000)),
            "no text": raising(ValueError("\ud800")),
            "mute": raising(_Mute()),
            "huge reason": lambda: Archive("because", "x" * 20_000_000),
            "no text reason": lambda: Archive("because", "\ud800"),
            "far away": lambda: Retry(NOW.replace(year=9999)),
            "nothing": lambda: None,
        }
        answer: Decision | None = answers[self.what]()
        return answer


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class TestBrokenPolicies:
    @pytest.mark.parametrize(
        "what", ["raises", "exits", "nonsense", "huge", "no text", "mute", "huge reason", "no text reason", "nothing"]
    )
    def test_the_job_is_archived_and_can_be_stored(self, bench: Bench, store: Store, what: str) -> None:
        """Given a policy that misbehaves, when a job fails, then its outcome can still be settled."""
        bench.recruiter.policies.register(Scripted)
        task = bench.recruiter.task(name="tried")(failing)
        job = a_job(task=task.name, args={}, retry_policy=bench.policy(Scripted(what)))
        hold(store, job)

        move = bench.of_job(job)
        settle(store, "w1", [(job.id, move)], {})

        archived = store.archived.get(job.id)
        assert archived is not None
        assert not archived.done
        assert [execution.exception for execution in archived.executions] == ["ValueError"], "what the job did is kept"

    def test_a_policy_nobody_knows(self, bench: Bench) -> None:
        job = bench.archived(failing, retry_policy={"class": "os.system", "parameters": {"command": "true"}})

        assert job["why"] == "policy-failed"
        assert "os.system" in job["reason"]

    def test_a_retry_at_the_end_of_time(self, bench: Bench, store: Store) -> None:
        bench.recruiter.policies.register(Scripted)
        task = bench.recruiter.task(name="tried")(failing)
        job = a_job(task=task.name, args={}, retry_policy=bench.policy(Scripted("far away")))
        hold(store, job)

        settle(store, "w1", [(job.id, bench.of_job(job))], {})

        assert places(store, [job.id]) == {job.id: "scheduled"}
        assert document(store, job.id)["scheduled_at"].year == 9999
