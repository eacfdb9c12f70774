"""What wakes a leader that sleeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from recruiter import Recruiter
from recruiter.domain.job import Execution
from recruiter.domain.policy_registry import PolicyRegistry, SchedulePolicyRegistry
from recruiter.events import Events
from recruiter.processes.loop import Stop
from recruiter.processes.recruiter import RecruiterProcess
from recruiter.settings import Settings
from recruiter.steps.settle import settle
from recruiter.store import outcomes
from recruiter.store.collections import flows
from recruiter.store.database import Store
from tests.commands import WHOLE_DATABASE, Recorder, recorded
from tests.conftest import eventually
from tests.samples import a_job, insert, on_the_roster

LONG = 300.0


@contextmanager
def leading(target: str, backoff_from: float) -> Iterator[Recorder]:
    recorder, stop = Recorder(), Stop()
    store = recorded(target, recorder)
    options = Settings(lease_time=LONG, considered_dead_after=LONG, backoff_from=backoff_from, backoff_to=LONG / 3)
    policies, schedules = PolicyRegistry(), SchedulePolicyRegistry()
    process = RecruiterProcess(store, Events(), stop, options, policies=policies, schedules=schedules)
    thread = threading.Thread(target=process.run)
    thread.start()
    yield recorder
    stop.ask()
    thread.join(timeout=20)
    assert not thread.is_alive()
    store.close()


def listens_to(recorder: Recorder, collection: str) -> bool:
    """Its change stream is open, and the server holds a question about it."""
    return any(command["collection"] == collection for command in recorder.named("getMore"))


def test_a_job_from_a_host_whose_clock_is_ahead_is_not_slept_over(target: str, store: Store) -> None:
    """Given an idle leader, when a job arrives that is due at once for whoever enqueued it and a little later for the
    leader, then it is found though nothing rings any more."""
    on_the_roster(store)
    with leading(target, backoff_from=0.005) as leader:
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
    with leading(target, backoff_from=0.005) as leader:
        eventually(lambda: store.roster.held() == {first.id})
        document, now = store.scheduled.collection.find_one({"_id": first.id}), store.clock.now()
        assert document is not None
        ended = outcomes.succeeded(document, Execution(now, now, "mine"), now, None)
        settle(store, "mine", [(first.id, ended)], {})

        eventually(lambda: store.roster.held() == {second.id})
        eventually(lambda: any(each["delete"] == markers for each in leader.named("delete")))

    writes = [next(iter(each.items())) for each in leader.named("update", "delete")]
    assert writes.index(("delete", markers)) > len(writes) - 1 - writes[::-1].index(("update", roster))
