"""Who gets which job: free slots first, fairly, nobody more than it has room for; and to whom a new job is offered."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recruiter.domain.planning.arrivals import Arrival, Vacancies, is_free
from recruiter.domain.planning.limits import Limit, Meter
from recruiter.domain.planning.prefetch import (
    MAX_PREFETCHED_JOBS,
    PREFETCH_SECONDS,
    SETTLED_AFTER_SECONDS,
    seconds_until_room,
)
from recruiter.domain.planning.workers import RosterWorker, WorkerPool, pools
from recruiter.steps.assign import Round, lacks_takers
from tests.samples import NOW


def worker(id: str = "w", *, slots: int = 2, prefetch: int = 0, holds: int = 0, **facts: Any) -> RosterWorker:
    groups = facts.pop("groups", None)
    tasks = facts.pop("tasks", frozenset({"add"}))
    return RosterWorker(id, groups, tasks, slots, prefetch, holds, beats=0, **facts)


class TestRoom:
    @pytest.mark.parametrize(
        ("slots", "prefetch", "holds", "room"),
        [
            (2, 0, 0, 2),
            (2, 0, 2, 0),
            (2, 0, 5, 0),
            (2, 10, 0, 12),
            (2, 10, 1, 11),
            # slots busy: a buffer takes more only when more than a fifth of it is empty
            (2, 10, 2, 10),
            (2, 10, 6, 6),
            (2, 10, 7, 5),
            (2, 10, 9, 3),
            (2, 10, 10, 2),
            (2, 10, 11, 0),
            (2, 10, 12, 0),
            (2, 1, 2, 1),
            (2, 1, 3, 0),
        ],
    )
    def test_a_nearly_full_buffer_takes_none(self, slots: int, prefetch: int, holds: int, room: int) -> None:
        assert worker(slots=slots, prefetch=prefetch, holds=holds).room == room


class TestTakers:
    """Whether the leader must hear of somebody who joins, or makes room."""

    @pytest.mark.parametrize(
        ("lanes", "workers", "lacking"),
        [
            ((), [], False),
            (("generic/add",), [], True),
            (("generic/add",), [worker()], False),
            (("generic/add", "/cancelled"), [worker()], False),
            (("generic/add", "generic/other"), [worker()], True),
            (("generic/add",), [worker(holds=2)], True),
            (("generic/add",), [worker("a", holds=2), worker("b")], False),
            (("generic/add",), [worker(ready=False)], True),
            (("generic/add",), [worker(draining=True)], True),
            (None, [worker(holds=2)], True),
        ],
    )
    def test_jobs_that_nobody_could_take_now(
        self, lanes: tuple[str, ...] | None, workers: list[RosterWorker], lacking: bool
    ) -> None:
        round = Round(NOW, tuple(workers), lanes)
        assert lacks_takers(round) is lacking


class TestOpenings:
    def test_the_worker_with_the_fewest_lanes_is_served_first(self) -> None:
        """So that who serves everything does not take the only jobs that another could have."""
        anything = worker("anything", tasks=frozenset({"add", "sub"}))
        one_task = worker("one task")
        two_groups = worker("two groups", groups=frozenset({"a", "b"}))
        one_group = worker("one group", groups=frozenset({"a"}))

        found = pools([anything, one_task, two_groups, one_group])

        order = [opening.workers[0].id for opening in found]
        assert order == ["one group", "two groups", "one task", "anything"]


class TestDealing:
    def test_free_slots_before_buffers(self) -> None:
        """Given a busy worker with a large buffer and an idle one, then nothing waits behind the busy one."""
        busy, idle = worker("busy", slots=1, prefetch=10, holds=1), worker("idle", slots=2, prefetch=10)

        assert WorkerPool((busy, idle)).distribute([1, 2]) == {"idle": [1, 2]}


numbers = st.integers(min_value=0, max_value=12)
registrations = st.lists(
    st.builds(
        lambda slots, prefetch, holds, groups, ready: (slots, prefetch, holds, groups, ready),
        st.integers(min_value=1, max_value=6),
        numbers,
        numbers,
        st.sampled_from([None, frozenset({"a"}), frozenset({"a", "b"})]),
        st.booleans(),
    ),
    max_size=6,
)


@given(registrations, st.integers(min_value=0, max_value=60))
def test_nobody_gets_too_much_and_no_job_goes_twice(facts: list[Any], count: int) -> None:
    roster = [
        worker(str(number), slots=slots, prefetch=prefetch, holds=holds, groups=groups, ready=ready)
        for number, (slots, prefetch, holds, groups, ready) in enumerate(facts)
    ]
    by_id = {each.id: each for each in roster}
    jobs = list(range(count))

    for opening in pools(roster):
        hands = opening.distribute(jobs)

        dealt = [job for hand in hands.values() for job in hand]
        assert Counter(dealt) == Counter(jobs[: min(count, opening.room)]), (
            "the first jobs, each once, and all that fit"
        )
        for id, hand in hands.items():
            assert hand == sorted(hand), "in order"
            assert 0 < len(hand) <= by_id[id].room
            assert by_id[id].ready
        into_buffers = any(len(hand) > by_id[id].free_slots for id, hand in hands.items())
        free_slots_left = any(len(hands.get(each.id, ())) < each.free_slots for each in opening.workers)
        assert not (into_buffers and free_slots_left), "a job waits behind a busy slot while another one is free"


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
