"""Workables: any method can be the one to run, also one whose name the builder knows."""

from __future__ import annotations

from typing import Any

import pytest

from recruiter import Recruiter, Workable
from recruiter.errors import InvalidArguments

ran: list[str] = []


class Letter(Workable, name="blackbox.Letter"):
    def execute(self) -> None:
        ran.append("execute")

    def enqueue(self) -> None:
        ran.append("enqueue")

    def unique(self) -> None:
        ran.append("unique")

    def throttle(self) -> None:
        ran.append("throttle")

    def build(self) -> None:
        ran.append("build")

    def timeout(self, seconds: float) -> float:
        """No job can run it, so it is in nobody's way."""
        return seconds


@pytest.fixture(autouse=True)
def nothing_has_run() -> None:
    ran.clear()


@pytest.mark.parametrize("word", ["enqueue", "unique", "throttle", "build"])
def test_a_method_with_the_name_of_a_builder_word_is_refused_as_the_last_call(recruiter: Recruiter, word: str) -> None:
    job: Any = Letter().as_job_of(recruiter)

    for chain in (job, job.in_background(), job.tagged_as("a").timeout(5)):
        with pytest.raises(InvalidArguments, match=rf"also a word of the builder.*with_method\('{word}'\)"):
            getattr(chain, word)()
    assert (ran, recruiter.jobs.count().number) == ([], 0)


@pytest.mark.parametrize("word", ["enqueue", "unique", "throttle", "build"])
def test_with_method_runs_it(recruiter: Recruiter, word: str) -> None:
    Letter().as_job_of(recruiter).with_method(word).execute()
    Letter().as_job_of(recruiter).in_background().with_method(word).enqueue()
    recruiter.run_all(Letter)

    assert ran == [word, word]


def test_its_other_methods_and_the_builder_are_not_affected(recruiter: Recruiter) -> None:
    Letter().as_job_of(recruiter).tagged_as("a").execute()
    Letter().as_job_of(recruiter).with_method("execute").unique().enqueue()
    flow = recruiter.flow("letters")
    flow.add(Letter())
    flow.start()
    recruiter.run_all(Letter)

    assert ran == ["execute"] * 3


class Parcel(Workable, name="blackbox.Parcel"):
    """Makes its jobs itself, as in the PHP manual."""

    def as_job_of(self, recruiter: Any) -> Any:
        return recruiter.job_of(self)

    def execute(self) -> None:
        ran.append("parcel")


def test_a_workable_may_make_its_jobs_itself(recruiter: Recruiter) -> None:
    Parcel().as_job_of(recruiter).in_background().execute()
    recruiter.run_all(Parcel)

    assert ran == ["parcel"]
