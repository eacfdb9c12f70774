"""What the leader alone may do with jobs that nobody holds, and the mark that an at-most-once job carries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from recruiter.errors import Superseded
from recruiter.store.collections.leases import Lease
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch
from tests.samples import a_job, done, insert, places


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
