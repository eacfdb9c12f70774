"""Where there are many lanes the leader looks ahead; a new job is given without a round if no other job comes first."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recruiter.clock import StoppedClock
from recruiter.domain.job import JobId
from recruiter.domain.planning.arrivals import Arrival, Vacancies
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.lookahead import MAX_AGE, Lookahead
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.rules import Rules
from recruiter.domain.schedule.scheduler import Pause
from recruiter.steps.assign import Round, assign, assign_new, fence_time_of
from recruiter.steps.cancel import archive_cancelled, cancel
from recruiter.store.database import Store
from tests.samples import NOW, a_job, insert, on_the_roster

GROUPS = 12
TERM = 1
RULES = Rules()


@pytest.fixture
def lookahead() -> Lookahead:
    return Lookahead(many_lanes=GROUPS - 1)


@pytest.fixture
def jobs(store: Store) -> list[JobId]:
    """Forty jobs in twelve groups, the oldest first; and a worker that takes five."""
    store.roster.raise_term(TERM)
    on_the_roster(store, slots=5, prefetch=0)
    moments = [NOW - timedelta(seconds=100 - number) for number in range(40)]
    return insert(store, *(a_job(group=f"g{n % GROUPS}", scheduled_at=at) for n, at in enumerate(moments)))


def round_of(store: Store, lookahead: Lookahead, rules: Rules = RULES, *, after: timedelta = timedelta()) -> Round:
    return assign(store, TERM, NOW + after, rules, must_query=False, lookahead=lookahead)


def held(store: Store) -> list[JobId]:
    return [job for jobs in store.roster.holders().values() for job in jobs]


def end_all(store: Store) -> list[JobId]:
    """The worker has run what it holds."""
    ended = held(store)
    store.roster.collection.update_many({}, {"$set": {"assigned": []}})
    store.scheduled.collection.delete_many({"_id": {"$in": ended}})
    return ended


def given(store: Store, lookahead: Lookahead, rules: Rules = RULES, *, after: timedelta = timedelta()) -> list[JobId]:
    round_of(store, lookahead, rules, after=after)
    return end_all(store)


def test_all_are_given_once_and_in_order(store: Store, jobs: list[JobId], lookahead: Lookahead) -> None:
    rounds = [given(store, lookahead) for _ in range(9)]

    assert [job for some in rounds for job in some] == jobs


@pytest.mark.parametrize(("after", "found"), [(MAX_AGE / 2, False), (MAX_AGE, True), (-MAX_AGE, True)])
def test_an_urgent_job_that_comes_later_is_next_after_a_short_time(
    store: Store, jobs: list[JobId], lookahead: Lookahead, after: timedelta, found: bool
) -> None:
    """Given jobs that are known, when one comes that is more urgent, then it is next after a short time."""
    given(store, lookahead)
    (urgent,) = insert(store, a_job(priority=9, group="new", scheduled_at=NOW - 2 * MAX_AGE))

    next_ones = given(store, lookahead, after=after)

    assert (next_ones[0] == urgent) is found
    assert next_ones[-1] in jobs


def test_a_round_that_must_look_does(store: Store, jobs: list[JobId], lookahead: Lookahead) -> None:
    given(store, lookahead)
    insert(store, a_job(group="new"))

    round = assign(store, TERM, NOW, RULES, must_query=True, lookahead=lookahead)

    assert "new/add" in (round.lanes or ())
    assert held(store) == jobs[5:10]


def test_another_term_begins_anew(store: Store, jobs: list[JobId], lookahead: Lookahead) -> None:
    """Given a leader that lost the lead and has it again, then it does not give what another may have given."""
    given(store, lookahead)
    store.roster.raise_term(TERM + 1)
    on_the_roster(store, "other", groups=["elsewhere"])
    assert store.roster.assign({"other": jobs[5:7]}, TERM + 1)

    assign(store, TERM + 2, NOW, RULES, must_query=False, lookahead=lookahead)

    assert held(store) == [*jobs[5:7], *jobs[7:12]] or held(store) == [*jobs[7:12], *jobs[5:7]]


@pytest.mark.parametrize(
    "rules", [Rules(paused={"group:g5": Pause(NOW)}), Rules((Limit("task:add", at_once=2),))], ids=["paused", "limited"]
)
def test_other_rules_count_at_once(store: Store, jobs: list[JobId], lookahead: Lookahead, rules: Rules) -> None:
    given(store, lookahead)

    round_of(store, lookahead, rules)

    assert len([id for id in held(store) if jobs.index(id) % GROUPS in (5, 6)]) == 1 + len(rules.limits)


def test_jobs_that_the_leader_has_archived_are_not_given(store: Store, jobs: list[JobId], lookahead: Lookahead) -> None:
    given(store, lookahead)
    clock = StoppedClock(NOW)
    lease = store.leases.acquire(None, "leader", {})
    assert lease is not None
    cancel(store, clock, jobs[6])
    assert archive_cancelled(store, clock, lease.term, "leader") == [jobs[6]]

    assert given(store, lookahead) == [jobs[5], *jobs[7:11]]


def test_jobs_given_from_their_events_are_not_given_again(
    store: Store, jobs: list[JobId], lookahead: Lookahead
) -> None:
    """Given a list that has a new job, when that is given from its event, then the list is not used any more."""
    given(store, lookahead)
    round_of(store, lookahead)
    floor = fence_time_of(store)
    store.roster.collection.update_many({}, {"$set": {"assigned": []}})
    arrival = Arrival(jobs[10], "g10/add", NOW, floor + 1)
    vacancies = Vacancies(store.roster.read())
    assert assign_new(store, TERM, NOW, [arrival], vacancies, RULES)

    round_of(store, lookahead)

    assert sorted(held(store), key=jobs.index) == [*jobs[5:9], jobs[10]]


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
