"""Lead: one at a time in the eyes of the roster, however many believe that they do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError

from recruiter.clock import StoppedClock
from recruiter.domain.planning.limits import Limit, Rate
from recruiter.errors import StoreUnreachable, Superseded
from recruiter.steps.assign import assign
from recruiter.steps.lead import Leadership
from recruiter.store.codec import job_document
from recruiter.store.collections.leases import Lease
from recruiter.store.collections.roster import PATIENCE
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.samples import NOW, a_job, insert, on_the_roster

LEASE = 5.0


class Candidate(Leadership):
    """A recruiter with a clock and a connection of its own."""

    def __init__(self, target: str) -> None:
        self.clock = StoppedClock(NOW)
        self.store = Store(Target.parse(target))
        super().__init__(self.store, self.clock, LEASE)

    def watches_for(self, seconds: float) -> bool:
        """Looks at the lease as often as it should, for so long; true as soon as it leads."""
        for _ in range(round(seconds / self.look_every)):
            self.clock.move(timedelta(seconds=self.look_every))
            if self.attend():
                return True
        return False


@pytest.fixture
def candidates(target: str, store: Store) -> Iterator[tuple[Candidate, Candidate]]:
    assert store.leases.read() is None
    pair = Candidate(target), Candidate(target)
    yield pair
    for candidate in pair:
        candidate.store.close()


def lease(store: Store) -> Lease:
    found = store.leases.read()
    assert found is not None
    return found


def test_a_lease_that_nobody_watches_is_renewed_less_often(candidates: tuple[Candidate, Candidate]) -> None:
    """Given a leader alone, then it renews seldom; when another recruiter watches, then often; when that one is gone,
    seldom again."""
    one, two = candidates
    one.attend()
    quick = one.interval

    for _ in range(2):  # the first renewal learns that nobody watches, the second announces the longer interval
        one.clock.move(timedelta(seconds=quick))
        one.attend()
    assert one.interval > 3 * quick, "nobody watches"

    assert not two.attend()
    one.clock.move(timedelta(seconds=one.interval))
    one.attend()
    assert one.interval == quick, "somebody watches"

    one.store.leases.collection.update_one({}, [{"$set": {"watched_at": {"$subtract": ["$watched_at", 10_001]}}}])
    for _ in range(2):
        one.clock.move(timedelta(seconds=one.interval))
        one.attend()
    assert one.interval > 3 * quick, "the other one is gone"


def test_a_leader_that_begins_to_renew_seldom_is_not_taken_for_silent(candidates: tuple[Candidate, Candidate]) -> None:
    """Given a leader alone, when it renews for the first time and a recruiter starts, then that one does not lead."""
    one, two = candidates
    one.attend()
    one.clock.move(timedelta(seconds=one.interval))
    one.attend()

    assert not two.watches_for(0.9 * one.interval)


def test_a_leader_that_renews_seldom_is_not_taken_for_silent(candidates: tuple[Candidate, Candidate]) -> None:
    """Given a leader alone that falls silent, when another recruiter comes, then it waits for the next renewal and half
    as long again."""
    one, two = candidates
    one.attend()
    for _ in range(2):
        one.clock.move(timedelta(seconds=one.interval))
        one.attend()

    assert not two.watches_for(1.2 * one.interval)
    assert two.watches_for(0.6 * one.interval), "well within the lease time"


def test_an_hour_without_looking_is_no_silence(candidates: tuple[Candidate, Candidate]) -> None:
    """Given a follower that was frozen for an hour, when it looks again, then the leader gets its chance first."""
    one, two = candidates
    one.attend()
    two.attend()

    two.clock.move(timedelta(hours=1))

    assert not two.attend()


def test_an_old_leader_cannot_assign(store: Store, candidates: tuple[Candidate, Candidate]) -> None:
    """Given two that believe to lead, when the old one assigns, then no worker takes it, and it finds out."""
    one, two = candidates
    job, another = insert(store, a_job(), a_job())
    on_the_roster(store, "w1", slots=1, prefetch=0)
    one.attend()
    two.watches_for(2 * LEASE)
    assert one.leading
    assert two.leading

    refused = assign(one.store, one.term, NOW)
    assert (refused.refused, store.roster.held()) == (True, set())
    assert not one.verify()

    taken = assign(two.store, two.term, NOW)
    assert (taken.refused, taken.assigned) == (False, 1)
    assert store.roster.held() < {job, another}


def test_resigning_lets_the_next_one_lead_at_once(store: Store, candidates: tuple[Candidate, Candidate]) -> None:
    one, two = candidates
    one.attend()
    two.attend()

    one.resign()

    assert not one.leading
    assert two.attend()
    assert (lease(store).term, lease(store).holder) == (2, two.holder)


def test_doubt_ends_the_term(store: Store, candidates: tuple[Candidate, Candidate]) -> None:
    """Given an assignment with unknown outcome, when the leader goes on, then with a new term on every worker."""
    one, _ = candidates
    on_the_roster(store, "w1")
    one.attend()
    first = (one.term, one.holder)

    one.doubt()
    assert not one.leading
    assert one.attend(), "nobody else has the lease, so there is nothing to wait for"

    assert one.term == first[0] + 1
    assert one.holder != first[1], "the holder is unique to an attempt"
    assert not store.roster.assign({"w1": ["late"]}, first[0]), "the late write no longer matches"


def test_doubt_after_somebody_took_over_ends_in_following(candidates: tuple[Candidate, Candidate]) -> None:
    one, two = candidates
    one.attend()
    two.watches_for(2 * LEASE)

    one.doubt()

    assert not one.attend()
    assert one.term == 0
    assert two.verify()


def test_every_attempt_has_a_holder_of_its_own(candidates: tuple[Candidate, Candidate]) -> None:
    one, _ = candidates
    holders = set()
    for _ in range(5):
        one.attend()
        holders.add(one.holder)
        one.resign()

    assert len(holders) == 5
    assert one.attend()
    assert one.term == 6


def test_terms_never_go_back_even_without_a_lease(store: Store, candidates: tuple[Candidate, Candidate]) -> None:
    """Given a lease that somebody removed, when one leads again, then with a term above all that workers have seen."""
    one, two = candidates
    on_the_roster(store, "w1", term=41)
    one.attend()
    store.leases.collection.delete_many({})

    assert two.attend()

    assert two.term > one.term > 41
    assert not store.roster.assign({"w1": ["late"]}, one.term)
    assert store.roster.assign({"w1": ["job"]}, two.term)


def test_a_new_leader_raises_the_term_of_every_worker_first(
    store: Store, candidates: tuple[Candidate, Candidate]
) -> None:
    for number in range(3):
        on_the_roster(store, f"w{number}", term=0)
    one, two = candidates
    one.attend()
    one.resign()

    two.attend()

    terms = [document["term"] for document in store.roster.collection.find()]
    assert terms == [2, 2, 2]


def test_a_server_that_is_away_makes_nobody_a_leader() -> None:
    clock, nowhere = StoppedClock(NOW), Store(Target.parse("127.0.0.1:1"), patience=0.05)
    leadership = Leadership(nowhere, clock, LEASE)

    with pytest.raises(StoreUnreachable):
        leadership.attend()

    assert not leadership.leading
    nowhere.close()


def test_a_leader_that_resigned_keeps_its_session(candidates: tuple[Candidate, Candidate]) -> None:
    """Given a leader that resigned and goes on as a worker, when the next one leads, then its transaction lives."""
    one, two = candidates
    job = a_job()
    one.attend()
    tries = 0

    def write(session: ClientSession) -> None:
        nonlocal tries
        tries += 1
        one.store.scheduled.collection.insert_one(job_document(job), session=session)
        if tries == 1:
            one.resign()
            assert two.attend()

    one.store.transactions._transaction(write)

    assert tries == 1


def test_a_lease_restored_from_a_backup_is_raised_above_the_roster(
    store: Store, candidates: tuple[Candidate, Candidate]
) -> None:
    # given a leader whose lease was replaced by an old one, while the workers have seen a higher term
    one, _ = candidates
    on_the_roster(store, "w1", term=41, slots=1, prefetch=0)
    job, another = insert(store, a_job(), a_job())
    one.attend()
    store.leases.collection.update_one({}, {"$set": {"term": 7}})
    store.roster.collection.update_one({}, {"$set": {"term": 50}})
    one.verify()
    assert one.watches_for(LEASE)

    # when an assignment is refused nevertheless, then the next term is above what refused it
    store.roster.collection.update_one({}, {"$set": {"term": 60}})
    assert assign(one.store, one.term, NOW).refused
    assert not one.verify()
    assert one.attend()
    assert one.term == 61
    assert assign(one.store, one.term, NOW).assigned == 1
    assert store.roster.held() < {job, another}


@pytest.mark.parametrize("term", [99, "x", 2**62, 5.5, None])
def test_counts_of_starts_with_any_term_hold_nobody_up(
    store: Store, candidates: tuple[Candidate, Candidate], term: object
) -> None:
    """Given counts of starts with a term that is not the leader's, when it assigns under that rate, then it can, at the
    latest with its next term."""
    one, _ = candidates
    on_the_roster(store, "w1", slots=1, prefetch=0)
    insert(store, a_job())
    store.limits.set(Limit("task:add", rate=Rate(5, 60.0)), None, NOW)
    one.attend()
    store.limits.collection.insert_one({"_id": "starts:task:add", "log": [], "term": term})

    try:
        round = assign(one.store, one.term, NOW, store.limits.read())
    except Superseded:
        assert not one.verify()
        assert one.attend()
        assert one.term == 100
        round = assign(one.store, one.term, NOW, store.limits.read())

    assert round.assigned == 1


def test_a_lease_that_is_lost_while_the_term_is_raised_is_given_up(
    store: Store, candidates: tuple[Candidate, Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a recruiter that has just acquired the lease, and reads the roster before it raises the term
    one, _ = candidates
    on_the_roster(store, "w1")
    read = one.store.roster.read

    def read_slowly() -> object:
        # when another one takes over meanwhile, and the thread that renews the lease notices
        store.leases.collection.update_one({}, {"$set": {"holder": "another"}, "$inc": {"term": 1, "beats": 1}})
        one.clock.move(timedelta(seconds=one.interval))
        one.keep()
        return read()

    monkeypatch.setattr(one.store.roster, "read", read_slowly)

    # then it follows, and says nothing of a mistake
    assert not one.attend()
    assert one.term == 0


def test_a_worker_that_was_slow_and_then_dies_in_its_settlement_blocks_nobody_for_long(
    store: Store, target: str, candidates: tuple[Candidate, Candidate]
) -> None:
    """Given a worker whose session was ended because it settled slowly, when it holds a lock again, then its session is
    ended again after a second; each time it is spared for twice as long, so that one that lives comes to an end."""
    leader, _ = candidates
    leader.attend()
    worker = Store(Target.parse(target))
    on_the_roster(store, "w1", session=worker.transactions.session_id)

    session = worker.transactions._own_session()

    def ended_within(most: float) -> float:
        """Locks its document, and waits on the clock of the leader until its session is ended."""
        if session.in_transaction:
            with suppress(PyMongoError):
                session.abort_transaction()
        session.start_transaction()
        worker.roster.touch("w1", session)
        waited = 0.0
        while not leader.unblock():
            assert waited < most, "everybody waits"
            leader.clock.move(timedelta(seconds=0.5))
            waited += 0.5
        return waited

    assert ended_within(0.5) == 0.0
    assert ended_within(1.5) >= 0.5
    assert ended_within(3.0) >= 1.5
    assert leader.store.roster.patience == PATIENCE, "the server is not slow"
    worker.close()
