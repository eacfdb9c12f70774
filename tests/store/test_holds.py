"""Only who holds a job may start it, let it go, or say what became of it; also when a write arrives late."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from recruiter.domain.job import Job, JobId
from recruiter.errors import Superseded
from recruiter.store import outcomes
from recruiter.store.codec import job_document
from recruiter.store.collections.leases import Lease
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch
from tests.commands import Recorder, recorded
from tests.samples import NOW, a_job, document, done, hold, insert, marked_as_started, on_the_roster, places, to_retry


def held_by(store: Store, worker: str = "w1") -> list[JobId]:
    found = store.roster.holding(worker)
    assert found is not None
    return found.assigned


class TestHandingBack:
    def test_one_that_arrives_late_does_not_take_a_job_that_was_given_again(self, store: Store, target: str) -> None:
        (id,) = hold(store, a_job())
        arrives_late = sent_again(store, target, lambda watched: watched.transactions.hand_back("w1", [id]))
        store.roster.assign({"w1": [id]}, 1)

        arrives_late()

        assert held_by(store) == [id]


class TestSettling:
    @pytest.mark.parametrize("outcome", [done, to_retry])
    def test_nothing_is_written_of_a_job_that_is_not_held(self, store: Store, outcome: Callable[[Job], Any]) -> None:
        """Given a job that a failover has taken off the list, when its result comes, then it is not written."""
        mine, lost = a_job(), a_job()
        hold(store, mine)
        insert(store, lost)

        store.transactions.settle("w1", OutcomeBatch.of([(mine.id, done(mine)), (lost.id, outcome(lost))]), {})

        assert places(store, [mine.id, lost.id]) == {mine.id: "archived", lost.id: "scheduled"}
        assert document(store, lost.id) == job_document(lost)


class TestMarking:
    def test_the_first_to_mark_may_start(self, store: Store) -> None:
        first, second = hold(store, a_job("a", at_most_once=True), a_job("b", at_most_once=True))
        marked_as_started(store, "somebody before", first)

        marked = store.transactions.mark_started("w1", [first, second], NOW)

        assert (marked.may_start, marked.started_before) == (frozenset([second]), frozenset([first]))
        assert (document(store, second)["started_by"], document(store, second)["started_at"]) == ("w1", NOW)

    def test_one_that_is_not_held_is_not_marked(self, store: Store) -> None:
        """Given a job that has been given to somebody else, when the one who held it marks it, then nothing happens."""
        (id,) = hold(store, a_job(at_most_once=True))
        on_the_roster(store, "w2")

        marked = store.transactions.mark_started("w2", [id], NOW)

        assert (marked.may_start, marked.started_before) == (frozenset(), frozenset())
        assert "started_by" not in document(store, id)
        assert store.transactions.mark_started("w1", [id], NOW).may_start == {id}

    def test_one_who_was_retired_cannot_mark(self, store: Store) -> None:
        (id,) = hold(store, a_job(at_most_once=True))
        store.roster.leave("w1")

        with pytest.raises(Superseded, match="w1"):
            store.transactions.mark_started("w1", [id], NOW)

        assert "started_by" not in document(store, id)


def test_an_at_most_once_job_without_its_task_can_start_elsewhere(store: Store) -> None:
    """Given a worker that does not know the task of a job that it has marked, then another one may start it."""
    job = a_job(at_most_once=True)
    hold(store, job)
    store.transactions.mark_started("w1", [job.id], NOW)

    store.transactions.settle("w1", OutcomeBatch.of([(job.id, outcomes.misplaced(job_document(job), NOW))]), {})

    on_the_roster(store, "w2")
    store.roster.assign({"w2": [job.id]}, 1)
    assert store.transactions.mark_started("w2", [job.id], NOW).may_start == {job.id}


def sent_again(store: Store, target: str, call: Callable[[Store], object]) -> Callable[[], object]:
    """Makes the call, and returns what lets its write on the roster arrive once more."""
    recorder = Recorder()
    with closing(recorded(target, recorder)) as watched:
        call(watched)
    (command,) = recorder.named("findAndModify")
    write = {name: value for name, value in command.items() if name not in ("lsid", "txnNumber", "$clusterTime", "$db")}
    return lambda: store.database.command(write)


class TestArchiveUnheld:
    def lead(self, store: Store, seen: Lease | None, holder: str) -> Lease:
        lease = store.leases.acquire(seen, holder, {})
        assert lease is not None
        return lease

    def test_an_old_leader_may_not(self, store: Store) -> None:
        """Given a leader that was deposed, when it archives, then the fence holds and nothing is written."""
        job = a_job()
        insert(store, job)
        lease = self.lead(store, None, "one")
        self.lead(store, lease, "two")

        with pytest.raises(Superseded, match="term 1 is over"):
            store.transactions.archive_unheld(OutcomeBatch({job.id: done(job)}), lease.term, "one")

        assert places(store, [job.id]) == {job.id: "scheduled"}

    def test_the_term_alone_is_not_enough(self, store: Store) -> None:
        job = a_job()
        insert(store, job)
        lease = self.lead(store, None, "one")

        with pytest.raises(Superseded):
            store.transactions.archive_unheld(OutcomeBatch({job.id: done(job)}), lease.term, "another attempt")

        assert places(store, [job.id]) == {job.id: "scheduled"}

    def test_a_takeover_while_it_archives_makes_it_fail(self, store: Store) -> None:
        """Given the fence passed inside a transaction, when another leader takes over, then one of both fails."""
        lease = self.lead(store, None, "one")
        with store.client.start_session() as session, session.start_transaction():
            assert store.leases.fence(lease.term, "one", session)
            with ThreadPoolExecutor(1) as threads:
                takeover = threads.submit(store.leases.acquire, lease, "two", {})
                session.commit_transaction()
                assert takeover.result() is None, "the lease had moved: the fence raised its counter"
