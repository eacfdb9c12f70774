"""Workers and children that die: every job ends, each is archived once, and only the guilty one pays."""

from __future__ import annotations

from recruiter.domain.job import ArchivedJob
from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Starter

JOBS = jobs.__file__


def archived(store: Store) -> list[ArchivedJob]:
    ids = [document["_id"] for document in store.archived.collection.find({}, {"_id": 1})]
    return list(store.archived.get_many(ids).values())


def test_a_job_that_holds_the_interpreter_is_not_declared_dead(start: Starter, store: Store) -> None:
    # given a job that lets no other thread of its process run, for longer than the dead-after time
    quick = {"RECRUITER_HEARTBEAT": "300ms", "RECRUITER_CONSIDERED_DEAD_AFTER": "1500ms"}
    start("start", "recruiter", "--bootstrap", JOBS, **quick)
    worker = start("start", "worker", "--bootstrap", JOBS, **quick)
    worker.says("joined the roster")
    (id_before,) = [entry.id for entry in store.roster.entries()]

    # when it runs
    end = jobs.hold_the_interpreter.enqueue(2.0).wait(timeout=60)

    # then nobody was declared dead, and it ended at the first attempt
    assert end.done
    assert end.result > 1.5
    assert len(end.executions) == 1
    assert [entry.id for entry in store.roster.entries()] == [id_before]
    assert worker.popen.poll() is None
