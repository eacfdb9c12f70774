"""The leader looks ahead where there are many lanes: no job is given twice, none is forgotten, none waits for long."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recruiter.clock import StoppedClock
from recruiter.domain.job import JobId
from recruiter.domain.planning.arrivals import Arrival, Vacancies
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.lookahead import MAX_AGE, Lookahead
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
    "rules",
    [Rules(paused={"group:g5": Pause(NOW)}), Rules((Limit("task:add", at_once=2),))],
    ids=["paused", "limited"],
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
