"""A process that is killed in the middle of a transaction leaves it open on the server, with everything it locked.

The server keeps such a transaction for a minute. Nobody may wait for that.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from pymongo.client_session import ClientSession

from recruiter.clock import SystemClock
from recruiter.domain.job import JobId
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.events import Event
from recruiter.settings import Settings
from recruiter.steps.lead import Leadership
from recruiter.steps.rescue import Rescue
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.conftest import eventually
from tests.leading import leading
from tests.samples import NOW, a_job, beat, insert, on_the_roster

DIES = """
import os, sys
from recruiter.clock import SystemClock
from recruiter.steps.lead import Leadership
from recruiter.store.database import Store
from recruiter.store.connection import Target
from recruiter.store.connection import Target
from tests.samples import facts_of_a_worker

store = Store(Target.parse(sys.argv[1]))
if sys.argv[2] == "worker":
    store.roster.join("dead", facts_of_a_worker(session=store.transactions.session_id))
    store.roster.become_ready("dead", 0)
    write = lambda session: store.roster.release("dead", [], session, {})
else:
    lead = Leadership(store, SystemClock(), 5.0)
    assert lead.attend()
    write = lambda session: store.leases.fence(lead.term, lead.holder, session)
store.transactions._transaction(lambda session: (write(session), os.kill(os.getpid(), 9)))
"""


def die_in_a_transaction(target: str, role: str) -> None:
    died = subprocess.run([sys.executable, "-c", DIES, target, role], capture_output=True, text=True)
    assert died.returncode == -9, died.stderr


def test_a_worker_dead_in_its_settlement_does_not_keep_the_others_from_their_jobs(store: Store, target: str) -> None:
    # given a worker that died while it settled, long before anybody can know, and one that lives
    die_in_a_transaction(target, "worker")
    alive = on_the_roster(store, "alive", slots=100)
    ids = insert(store, *(a_job(scheduled_at=NOW.replace(year=2020)) for _ in range(20)))

    # when a leader begins
    with leading(store, Settings(lease_time=2.0, considered_dead_after=30.0)):
        # then the living one gets jobs, and the dead one's document can be written to
        def given() -> bool:
            beat(store, alive, {})
            held = store.roster.held()
            return set(ids) <= held

        eventually(given, within=25)


def test_everybody_else_gets_jobs_soon_and_the_leader_stays(store: Store, target: str) -> None:
    # given two recruiters with default settings, and a worker that is given jobs
    alive = on_the_roster(store, "alive", slots=1000)
    first, second = Store(Target.parse(target)), Store(Target.parse(target))
    told: list[Event] = []

    def given(ids: list[JobId]) -> bool:
        beat(store, alive, {})
        return set(ids) <= store.roster.held()

    def some_jobs() -> list[JobId]:
        return insert(store, *(a_job(scheduled_at=NOW.replace(year=2020)) for _ in range(20)))

    with leading(first, Settings(), told.append), leading(second, Settings(), told.append):
        eventually(lambda: given(some_jobs()))

        # when another worker dies while it settles
        die_in_a_transaction(target, "worker")
        died_at = time.monotonic()
        ids = some_jobs()
        eventually(lambda: given(ids))
        took = time.monotonic() - died_at
        elected = [event for event in told if event.name == "leader.elected"]

    # then everybody else's jobs went on at once, and nobody else took the lead
    assert took < 20  # the server would keep its locks for a minute; benchmarks/recovery.py measures how soon
    assert len(elected) == 1
    assert [event.fields["worker"] for event in told if event.name == "session.ended"] == ["dead"]
    first.close()
    second.close()


def test_a_dead_worker_is_retired_at_once_when_it_is_time(store: Store, target: str) -> None:
    die_in_a_transaction(target, "worker")
    rescue = Rescue(store, SystemClock(), 0.3, PolicyRegistry())

    eventually(lambda: rescue.retire_silent(store.roster.read()), within=10)

    assert store.roster.read() == []


def test_the_lead_of_one_who_died_in_a_transaction_is_taken_over_within_the_lease(store: Store, target: str) -> None:
    die_in_a_transaction(target, "leader")
    next_one = Leadership(store, SystemClock(), 2.0)

    eventually(next_one.attend, within=10)

    assert next_one.term == 2


def test_the_session_of_one_who_lives_can_be_ended(store: Store) -> None:
    """Given a worker that only seemed dead, when its session is ended in mid-transaction, then it settles anyway."""
    on_the_roster(store, "w1", session=store.transactions.session_id)
    other = Store(store.target)
    tries: list[int] = []

    def write(session: object) -> int:
        store.roster.release("w1", [], session, {})  # type: ignore[arg-type]
        if not tries:
            other.transactions.end_session_of(store.transactions._session.session_id["id"].as_uuid())  # type: ignore[union-attr]
        tries.append(1)
        return len(tries)

    assert store.transactions._transaction(write) == 2
    other.close()


def test_a_leader_in_a_long_transaction_keeps_the_lead(store: Store, target: str) -> None:
    """Given a leader whose transaction takes longer than the lease, when a follower looks all the time, then the lead
    stays, and the transaction is not ended."""
    leader, other = Leadership(store, SystemClock(), 2.0), Store(Target.parse(target))
    follower = Leadership(other, SystemClock(), 2.0)
    assert leader.attend()
    assert not follower.attend()
    tries: list[int] = []

    def write(session: ClientSession) -> None:
        tries.append(1)
        until = time.monotonic() + 3.5
        while time.monotonic() < until:
            store.roster.touch("nobody", session)
            time.sleep(0.1)

    thread = threading.Thread(target=store.transactions.lead, args=(leader.term, leader.holder, write))
    thread.start()
    taken_over = False
    while thread.is_alive():
        taken_over |= follower.attend()
        time.sleep(follower.look_every)
    other.close()

    assert not taken_over
    assert len(tries) == 1
    assert leader.verify()
