"""The pace of jobs decides how many a worker holds in addition to the running ones."""

from __future__ import annotations

from recruiter.domain.planning.prefetch import PREFETCH_SECONDS, JobPace


def paced(pace: JobPace, seconds_a_job: float, jobs: int) -> JobPace:
    """After so many jobs that ended one by one."""
    for _ in range(jobs):
        pace.count(1, seconds_a_job)
    return pace


def test_an_unknown_pace_prefetches_nothing() -> None:
    assert JobPace().prefetch == 0


def test_slow_jobs_are_never_prefetched() -> None:
    assert paced(JobPace(), 1.0, jobs=20).prefetch == 0


def test_the_first_answers_of_a_burst_show_the_pace() -> None:
    assert abs(paced(JobPace(), 0.002, jobs=2).prefetch - PREFETCH_SECONDS / 0.002) <= 1


def test_jobs_side_by_side_count_together() -> None:
    pace = JobPace()

    pace.count(50, 0.02)

    assert abs(pace.prefetch - PREFETCH_SECONDS * 50 / 0.02) <= 1


def test_it_falls_when_jobs_become_slow() -> None:
    pace = paced(JobPace(), 0.0001, jobs=10_000)

    assert paced(pace, 0.5, jobs=8).prefetch <= 1


def test_a_single_slow_job_among_quick_ones_changes_little() -> None:
    pace = paced(JobPace(), 0.001, jobs=1000)
    before = pace.prefetch

    pace.count(1, 0.05)

    assert pace.prefetch > before / 2
