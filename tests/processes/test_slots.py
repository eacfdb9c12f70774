"""A worker runs as many jobs at once as it was told, and never one more, however many are prefetched."""

from __future__ import annotations

from datetime import datetime

from recruiter import ArchivedJob
from tests.applications import jobs
from tests.conftest import Starter, eventually

JOBS = jobs.__file__
WORKERS: dict[str, tuple[int, tuple[str, ...]]] = {
    "one": (1, ()),
    "several": (4, ("--processes", "2", "--concurrency", "2")),
}
"""Slots and options by group."""


def most_at_once(ended: list[ArchivedJob]) -> int:
    """Counted from when they started and ended; one that starts in the moment in which another one ends comes after."""
    moments: list[tuple[datetime, int]] = []
    for job in ended:
        assert job.last_execution is not None
        assert job.last_execution.started_at is not None
        assert job.last_execution.ended_at is not None
        moments += [(job.last_execution.started_at, 1), (job.last_execution.ended_at, -1)]
    now, most = 0, 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def test_never_more_than_it_was_told(start: Starter) -> None:
    # given a worker as it is by default, and one with several slots of both kinds, each with a group of its own
    start("start", "recruiter", "--bootstrap", JOBS)
    workers = [
        start("start", "worker", "--bootstrap", JOBS, "--work-on", group, *options)
        for group, (_, options) in WORKERS.items()
    ]
    for worker in workers:
        worker.says("joined the roster")

    # when each has many jobs: quick ones, so that it prefetches, and then some that take a while
    handles = {
        group: [
            jobs.nap.job(seconds).in_group(group).in_background().execute()
            for seconds in [0.0] * 60 + [0.03] * 30 + [0.0] * 20
        ]
        for group in WORKERS
    }

    # then it never runs more at once than it may, several if it may; and the roster has never shown more either
    seen: dict[str, int] = {}

    def all_ended() -> bool:
        for entry in jobs.recruiter.store.roster.entries():
            (group,) = entry.registration.groups or {""}
            seen[group] = max(seen.get(group, 0), len(entry.running))
        return not jobs.recruiter.store.due_jobs.lanes()

    eventually(all_ended, within=60)
    for group, (slots, _) in WORKERS.items():
        assert min(2, slots) <= most_at_once([handle.wait(10) for handle in handles[group]]) <= slots
        assert seen[group] <= slots
