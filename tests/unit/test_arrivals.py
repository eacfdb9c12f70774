"""Arrivals: which of them are new, and who is offered which."""

from __future__ import annotations

import pytest

from recruiter.domain.planning.arrivals import Arrival, Vacancies, is_free
from recruiter.domain.planning.limits import Limit, Meter
from recruiter.domain.planning.prefetch import (
    MAX_PREFETCHED_JOBS,
    PREFETCH_SECONDS,
    SETTLED_AFTER_SECONDS,
    seconds_until_room,
)
from recruiter.domain.planning.workers import RosterWorker
from tests.samples import NOW


def arrival(id: str, lane: str = "generic/add", at: int = 5) -> Arrival:
    return Arrival(id, lane, NOW, at)


def a_worker(id: str, holds: int = 0, slots: int = 2, **more: object) -> RosterWorker:
    facts: dict[str, object] = {"groups": None, "tasks": frozenset({"add"}), "prefetch": 0, "beats": 1, **more}
    return RosterWorker(id=id, slots=slots, holds=holds, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "worker",
    [
        a_worker("other", tasks=frozenset({"other"})),
        a_worker("elsewhere", groups=frozenset({"mail"})),
        a_worker("full", holds=2),
        a_worker("leaving", draining=True),
        a_worker("joining", ready=False),
    ],
    ids=lambda worker: worker.id,
)
def test_some_workers_are_offered_nothing(worker: RosterWorker) -> None:
    assert Vacancies([worker]).offers([arrival("a")]) is None


@pytest.mark.parametrize(
    ("lane", "free"),
    [
        ("generic/add", True),
        ("generic/limited", False),
        ("generic/add/proc=2", False),
        ("generic/add//customer:42", False),
        ("generic/add///isolated", False),
    ],
)
def test_jobs_that_must_be_counted_are_left_to_a_round(lane: str, free: bool) -> None:
    meter = Meter([Limit("task:limited", at_once=2)], {}, NOW)

    assert is_free(lane, meter) is free


@pytest.mark.parametrize(
    ("holds", "prefetch", "seconds"),
    [
        (202, 200, 0.2 * PREFETCH_SECONDS),
        (MAX_PREFETCHED_JOBS + 2, MAX_PREFETCHED_JOBS, 0.2 / 6 * PREFETCH_SECONDS),
        (135, 200, 0.0),
        (9, 0, 0.0),
    ],
)
def test_a_worker_has_room_again_when_a_fifth_of_its_buffer_is_empty(holds: int, prefetch: int, seconds: float) -> None:
    least = SETTLED_AFTER_SECONDS if prefetch else 0.0

    assert seconds_until_room(holds, 2, prefetch) == pytest.approx(max(least, seconds), abs=2e-3)
