"""Prefetching follows the rate at which a worker ends jobs."""

from __future__ import annotations

from recruiter.domain.planning.prefetch import PREFETCH_SECONDS, Throughput


def settled(throughput: Throughput, batch: int, every: float, seconds: float) -> int:
    """The prefetch after settling a batch so often for so long."""
    for step in range(1, int(seconds / every) + 1):
        throughput.count(batch, 100.0 + step * every)
    return throughput.prefetch


def test_slow_jobs_are_never_prefetched() -> None:
    assert settled(Throughput(), batch=1, every=1.0, seconds=20) == 0


def test_quick_jobs_are_prefetched_for_the_next_moment() -> None:
    prefetch = settled(Throughput(), batch=25, every=0.05, seconds=5)

    assert abs(prefetch - 500 * PREFETCH_SECONDS) <= 2


def test_it_falls_quickly_when_jobs_become_slow() -> None:
    throughput = Throughput()
    settled(throughput, batch=500, every=0.05, seconds=5)

    throughput.count(1, 100.0 + 5 + 10)  # with jobs of the last moments
    throughput.count(1, 100.0 + 5 + 20)

    assert throughput.prefetch == 0


def test_a_pause_before_the_first_jobs_does_not_count() -> None:
    throughput = Throughput()
    throughput.count(0, 100.0)  # the heartbeat of an idle worker

    throughput.count(2, 160.0)
    throughput.count(20, 160.2)

    assert throughput.prefetch == int(100 * PREFETCH_SECONDS)


def test_the_rate_is_remembered_for_a_moment_without_jobs() -> None:
    throughput = Throughput()
    prefetch = settled(throughput, batch=25, every=0.05, seconds=5)

    throughput.count(0, 105.5)

    assert throughput.prefetch > prefetch / 3
