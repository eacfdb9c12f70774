"""A leader and a worker for flows, moved by hand, one step at a time: no processes, and a real MongoDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from bson import ObjectId

from recruiter import Recruiter
from recruiter.domain.job import Execution, JobId
from recruiter.domain.names import ASIDE
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry.decision import Archive, Decision, Retry
from recruiter.domain.state import Why
from recruiter.steps.cancel import archive_cancelled, archive_expired
from recruiter.steps.release import Released, release
from recruiter.steps.rescue import Rescue
from recruiter.steps.settle import settle
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode
from recruiter.store.collections.leases import Lease
from recruiter.store.database import Store
from recruiter.store.outcomes import Outcome
from tests.samples import on_the_roster

MOST_LOOKS = 500
"""After so many there should be nothing left to do."""


class Stage:
    """Whoever leads and works, on one database."""

    def __init__(self, recruiter: Recruiter) -> None:
        self.recruiter = recruiter
        self.store: Store = recruiter.store
        self.lease = self.take_the_lead()
        self.worker = "w1"
        on_the_roster(self.store, self.worker, self.lease.term)

    # -- the leader ----------------------------------------------------------------------------------------------

    def take_the_lead(self) -> Lease:
        """A new term, whoever led before."""
        leases = self.store.leases
        mine = leases.acquire(leases.look(), str(ObjectId()), {"host": "here", "pid": 1})
        assert mine is not None
        self.store.roster.raise_term(mine.term)
        self.lease = mine
        return mine

    def look(self, lease: Lease | None = None) -> Released:
        """One look at the markers."""
        lease = lease or self.lease
        return release(self.store, self.store.clock.now(), lease.term, lease.holder or "")

    def settle_down(self) -> None:
        """The leader looks and archives until there is nothing more to do."""
        for _ in range(MOST_LOOKS):
            ended = self.archive_cancelled()
            if not self.look().markers and not ended:
                return
        pytest.fail(f"after {MOST_LOOKS} looks there is still something to do")

    def archive_cancelled(self) -> int:
        """Archives what was cancelled or has expired; returns how many."""
        given = self.store, self.store.clock, self.lease.term, self.lease.holder or ""
        return len(archive_cancelled(*given)) + len(archive_expired(*given))

    # -- the worker ----------------------------------------------------------------------------------------------

    def ready(self) -> list[JobId]:
        """Jobs that a worker may be given, in the order in which they were made."""
        query = {"lane": {"$gt": "", "$nin": list(ASIDE)}, "_id": {"$nin": list(self.store.roster.held())}}
        return [document["_id"] for document in self.store.scheduled.collection.find(query, {"_id": 1}).sort("_id", 1)]

    def give(self, *ids: JobId) -> None:
        assert self.store.roster.assign({self.worker: list(ids)}, self.lease.term)

    def run(self, *ids: JobId, fails: Sequence[JobId] = (), why: Why = Why.TRIED_TOO_MANY_TIMES) -> dict[JobId, Any]:
        """Gives these jobs to the worker and settles them: they succeed, but for those that fail. Returns what each of
        them was given as its arguments."""
        self.give(*ids)
        return self.settle(*ids, fails=fails, why=why)

    def settle(
        self, *ids: JobId, fails: Sequence[JobId] = (), again: Sequence[JobId] = (), why: Why = Why.TRIED_TOO_MANY_TIMES
    ) -> dict[JobId, Any]:
        """The worker has run these; those in `again` have failed and are tried again."""
        ended: list[tuple[JobId, Outcome | None]] = []
        arguments: dict[JobId, Any] = {}
        for id, raw in self.store.scheduled.fetch(list(ids)):
            document = decode(raw)
            decision: Decision | None = Retry(self.store.clock.now()) if id in again else None
            ended.append((id, self.outcome(document, Archive(why) if id in fails else decision)))
            arguments[id] = self.arguments(document)
        settle(self.store, self.worker, ended, {})
        return arguments

    def outcome(self, document: Document, decision: Decision | None) -> Outcome:
        now = self.store.clock.now()
        exception = None if decision is None else "ValueError"
        execution = Execution(now, now, self.worker, exception=exception, message="no good")
        if decision is not None:
            return outcomes.failed(document, execution, now, decision)
        return outcomes.succeeded(document, execution, now, str(document["_id"]))

    def arguments(self, document: Document) -> Any:
        from recruiter.steps.execute import _arguments  # noqa: PLC0415

        return _arguments(document)

    def dies(self, *running: JobId) -> None:
        """The worker is retired while it holds jobs, and runs some of them; another one joins."""
        runs = [{"job": id, "task": "?", "since": self.store.clock.now()} for id in running]
        self.store.roster.collection.update_one({"_id": self.worker}, {"$set": {"running": runs}})
        rescue = Rescue(self.store, self.store.clock, 0.0, PolicyRegistry())
        (retired,) = rescue.retire_silent(self.store.roster.read())
        assert retired.worker == self.worker
        self.worker = f"{self.worker}+"
        on_the_roster(self.store, self.worker, self.lease.term)

    # -- what there is -------------------------------------------------------------------------------------------

    def tasks(self) -> list[str]:
        """The tasks of the jobs that a worker may be given."""
        return [
            str(document["task"]) for _, raw in self.store.scheduled.fetch(self.ready()) for document in [decode(raw)]
        ]

    def why(self, id: JobId) -> str | None:
        """Why a job ended; None while it waits or runs."""
        ended = self.store.archived.get(id)
        return None if ended is None else ended.why

    def lane(self, id: JobId) -> str:
        found = self.store.scheduled.collection.find_one({"_id": id})
        assert found is not None
        return str(found["lane"])
