"""When a new job may be given without a round: only if the last round left nothing that could have run instead."""

from __future__ import annotations

import pytest

from recruiter.domain.planning.arrivals import Arrival, Vacancies
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.rules import Rules
from recruiter.domain.schedule.scheduler import Pause
from recruiter.steps.assign import assign, assign_new, fence_time_of
from recruiter.store.database import Store
from tests.samples import NOW, a_job, insert, on_the_roster

LIMITED = Rules((Limit("task:add", at_once=1),))


def test_a_round_that_gave_all_there_was_leaves_nothing(store: Store) -> None:
    on_the_roster(store, slots=2, prefetch=0)
    insert(store, a_job())

    assert assign(store, 1, NOW).exhausted


def test_jobs_at_their_limit_are_in_nobodys_way(store: Store) -> None:
    """Given a limit that is reached, when a round finds nothing else, then a new job of another task may be given."""
    on_the_roster(store, tasks=["add", "free"])
    insert(store, a_job(), a_job())
    assert not assign(store, 1, NOW, LIMITED).exhausted, "it has just given one of them"

    assert assign(store, 1, NOW, LIMITED).exhausted


def test_a_job_for_which_room_is_kept_comes_first(store: Store) -> None:
    """Given a job that waits for memory which another one takes, then no new job gets the slot that it waits for."""
    on_the_roster(store, slots=2, prefetch=0, resources="mem=100")
    insert(store, a_job(needs=Needs.of(mem=80)))
    assign(store, 1, NOW)
    insert(store, a_job(needs=Needs.of(mem=90)))

    assert not assign(store, 1, NOW).exhausted


@pytest.mark.parametrize(
    ("rules", "lane", "given"),
    [
        (Rules(), "generic/add", True),
        (LIMITED, "generic/add", False),
        (Rules(paused={"group:generic": Pause(NOW)}), "generic/add", False),
        (Rules(paused={"fleet": Pause(NOW)}), "generic/add", False),
        (Rules(), "generic/unknown", False),
        (Rules(), "/cancelled", False),
        (Rules(), "generic/add/mem=1", False),
    ],
)
def test_only_jobs_that_may_run_anywhere_at_once(store: Store, rules: Rules, lane: str, given: bool) -> None:
    on_the_roster(store)
    store.roster.raise_term(1)
    arrival = Arrival("a", lane, NOW, fence_time_of(store) + 1)

    answer = assign_new(store, 1, NOW, [arrival], Vacancies(store.roster.read()), rules)

    holding = store.roster.holding("w1")
    assert holding is not None
    assert (answer, holding.assigned) == (given, ["a"] if given else [])
