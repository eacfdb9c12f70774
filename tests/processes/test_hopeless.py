"""A leader that is idle: what wakes it, and what it says of jobs that nobody can run, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from recruiter import Recruiter
from recruiter.domain.job import Execution, JobId
from recruiter.domain.planning.needs import Needs
from recruiter.events import Event
from recruiter.processes import maintenance
from recruiter.settings import Settings
from recruiter.steps.settle import settle
from recruiter.store import outcomes
from recruiter.store.collections import flows
from recruiter.store.database import Store
from tests.commands import WHOLE_DATABASE, Recorder, recorded
from tests.conftest import eventually
from tests.leading import leading
from tests.samples import a_job, insert, on_the_roster

Told = list[tuple[str, ...]]


@pytest.fixture
def told(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What a leader says of jobs that nobody can run; it looks often, and does not wait for long."""
    monkeypatch.setattr(maintenance, "_HOPELESS_AFTER_SECONDS", 0.2)
    told: Told = []

    def listen(event: Event) -> None:
        if event.name in ("lane.unserved", "lane.never_fits"):
            told.append((event.name, *event.fields.values()))

    with leading(store, Settings(considered_dead_after=300.0, backoff_to=0.1), listen):
        yield told


def the_leader_looks_again(store: Store) -> None:
    """Several times: each of these jobs is given by a later round."""
    for _ in range(3):
        eventually(partial(_is_held, store, *an_ordinary_job(store)))


def _is_held(store: Store, job: JobId) -> bool:
    return job in store.roster.held()


def an_ordinary_job(store: Store, **options: Any) -> list[JobId]:
    return insert(store, a_job(scheduled_at=store.clock.now(), **options))


def test_a_task_that_nobody_knows_and_a_group_that_nobody_works_on(store: Store, told: Told) -> None:
    # given a worker, and jobs that it does not serve, several of each kind
    on_the_roster(store, "w1", groups=["generic"], slots=100)
    for number in range(3):
        an_ordinary_job(store, task="unheard_of", limited_by=f"customer:{number}")
        an_ordinary_job(store, group="mail", needs=Needs.of(proc=number))

    # then both are told, once, however long it lasts
    expected = {("lane.unserved", "generic", "unheard_of"), ("lane.unserved", "mail", "add")}
    eventually(lambda: set(told) == expected)
    the_leader_looks_again(store)
    assert len(told) == 2

    # and nobody has taken them
    assert store.scheduled.collection.count_documents({"_id": {"$nin": list(store.roster.held())}}) == 6


def test_jobs_that_fit_nowhere(store: Store, told: Told) -> None:
    # given a worker whose host has four processors and all slots busy, and jobs that need eight
    on_the_roster(store, "w1", host="h1", resources="mem=100,proc=4", slots=100)
    for number in range(3):
        an_ordinary_job(store, needs=Needs.of(proc=8), limited_by=f"customer:{number}")

    # then it is told once, however long it lasts
    eventually(lambda: told)
    the_leader_looks_again(store)
    reason = "needs 8 of proc, and no host that serves it has more than 4"
    assert told == [("lane.never_fits", "generic", "add", reason)]

    # and again when it is otherwise
    on_the_roster(store, "w2", term=store.leases.term(), host="h2", resources="mem=100,proc=6", slots=100)
    eventually(lambda: len(told) == 2)
    assert told[1][-1] == reason.replace("4", "6")

    # and not when they fit
    on_the_roster(store, "w3", term=store.leases.term(), host="h3", resources="mem=100,proc=8", slots=100)
    eventually(lambda: len(store.roster.holders()["w3"]) >= 1)
    the_leader_looks_again(store)
    assert len(told) == 2


LONG = 300.0


@contextmanager
def watched(target: str) -> Iterator[Recorder]:
    """A leader whose commands are recorded."""
    recorder = Recorder()
    options = Settings(lease_time=LONG, considered_dead_after=LONG, backoff_from=0.005, backoff_to=LONG / 3)
    with closing(recorded(target, recorder)) as store, leading(store, options):
        yield recorder


def listens_to(recorder: Recorder, collection: str) -> bool:
    """Its change stream is open, and the server holds a question about it."""
    return any(command["collection"] == collection for command in recorder.named("getMore"))


def test_a_job_from_a_host_whose_clock_is_ahead_is_not_slept_over(target: str, store: Store) -> None:
    """Given an idle leader, when a job arrives that is due at once for whoever enqueued it and a little later for the
    leader, then it is found though nothing rings any more."""
    on_the_roster(store)
    with watched(target) as leader:
        eventually(lambda: listens_to(leader, WHOLE_DATABASE))
        soon = store.clock.now() + timedelta(milliseconds=300)
        (job,) = insert(store, a_job(created_at=soon, scheduled_at=soon))

        eventually(lambda: store.roster.held() == {job}, within=10)


def test_a_step_that_may_start_is_given_before_the_leader_looks_on(
    target: str, store: Store, recruiter: Recruiter
) -> None:
    """Given a flow of two steps, when the first has ended, then the second is given to a worker, and only after that
    does the leader do what is left of its look."""
    on_the_roster(store, "mine", tasks=["work"])
    flow = recruiter.flow("chain")
    first = flow.add("work")
    second = flow.add("work", after=first)
    flow.start()
    roster, markers = store.roster.collection.name, store.name_of(flows.MARKERS)
    with watched(target) as leader:
        eventually(lambda: store.roster.held() == {first.id})
        document, now = store.scheduled.collection.find_one({"_id": first.id}), store.clock.now()
        assert document is not None
        ended = outcomes.succeeded(document, Execution(now, now, "mine"), now, None)
        settle(store, "mine", [(first.id, ended)], {})

        eventually(lambda: store.roster.held() == {second.id})
        eventually(lambda: any(each["delete"] == markers for each in leader.named("delete")))

    writes = [next(iter(each.items())) for each in leader.named("update", "delete")]
    assert writes.index(("delete", markers)) > len(writes) - 1 - writes[::-1].index(("update", roster))
