"""Connections that must be let go: those without sessions, and those to a server that is no longer the primary."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, ConfigurationError

from recruiter.events import Event, Events
from recruiter.steps.settle import settle
from recruiter.store.connection import drop_connections
from recruiter.store.database import Store
from recruiter.store.in_session import Creation, in_own_transaction
from tests.conftest import eventually
from tests.prepared import connected
from tests.samples import a_job, document, done, hold, insert, places, to_retry

__all__ = ["connected"]


def forget_sessions(store: Store) -> int:
    """Makes every pooled connection one that was opened while its server was neither primary nor secondary."""
    pools = [server.pool for server in store.client._topology._servers.values()]
    connections = [connection for pool in pools for connection in pool.conns]
    for connection in connections:
        connection.supports_sessions = False
    return len(connections)


def test_the_driver_says_of_such_a_connection_that_there_are_no_sessions(store: Store) -> None:
    """What the other tests here rest on."""
    assert forget_sessions(store)

    with store.client.start_session() as session, pytest.raises(ConfigurationError, match="Sessions are not supported"):
        store.scheduled.collection.find_one({}, session=session)


def test_outcomes_survive_a_connection_without_sessions(store: Store) -> None:
    # given a worker with a result and a retry to settle, whose pooled connections cannot have sessions
    ended, again = a_job(), a_job()
    ids = hold(store, ended, again)
    heard: list[Event] = []
    events = Events()
    events.listen(heard.append)
    assert forget_sessions(store)

    # when it settles
    settle(
        store,
        "w1",
        [(ended.id, done(ended)), (again.id, to_retry(again))],
        {},
        lambda id, _: events.emit("job.reduced", job=id),
    )

    # then both outcomes are what they were
    assert [event.name for event in heard] == []
    assert places(store, ids) == {ended.id: "archived", again.id: "scheduled"}
    archived = store.archived.get(ended.id)
    assert archived is not None
    assert (archived.why, archived.result) == ("done", 3)
    assert document(store, again.id)["attempts"] == 1


def test_every_transaction_survives_it(store: Store) -> None:
    """A job made once ever, and one that never waited."""
    job, other = a_job(), a_job()
    store.due_jobs.lanes()
    assert forget_sessions(store)
    assert in_own_transaction(store, lambda here: here.create([Creation(job)])) == [(job.id, True)]

    assert forget_sessions(store)
    store.transactions.archive_new(other.id, done(other))

    assert places(store, [job.id, other.id]) == {job.id: "scheduled", other.id: "archived"}


def test_dropped_connections_are_replaced(store: Store) -> None:
    store.due_jobs.lanes()
    pools = [server.pool for server in store.client._topology._servers.values()]
    before = [connection for pool in pools for connection in pool.conns]

    drop_connections(store.client)
    store.due_jobs.lanes()

    after = [connection for pool in pools for connection in pool.conns]
    assert after
    assert not any(one is other for one in before for other in after)


def test_a_call_under_way_ends_when_it_is_interrupted(store: Store) -> None:
    # given a call that waits for its answer, and that the driver does not repeat
    insert(store, a_job())
    slow = {"find": store.scheduled.collection.name, "filter": {"$where": "sleep(20000) || true"}}
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            store.database.command(slow)
        except AutoReconnect as error:
            raised.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    under_way: list[dict[str, Any]] = [{"$currentOp": {}}, {"$match": {"command.filter.$where": {"$exists": True}}}]
    eventually(lambda: store.client.admin.aggregate(under_way).to_list())

    # when the connections are dropped with an interruption
    drop_connections(store.client, interrupt=True)

    # then it ends at once, long before the server answers
    thread.join(timeout=10)
    assert [type(error) for error in raised]


class TestEndedSessions:
    def test_an_outcome_survives_when_its_session_is_ended_again_and_again(self, store: Store) -> None:
        # given a worker that settles one job after the other
        jobs = [a_job() for _ in range(60)]
        ids = hold(store, *jobs)
        heard: list[Event] = []
        events = Events()
        events.listen(heard.append)
        session = store.transactions.session_id
        stop = threading.Event()
        ended = settled = 0

        def end() -> None:
            nonlocal ended
            other = Store(store.target)
            while not stop.wait(0.003):
                if ended <= 5 * settled:  # however slow the machine is, an outcome has its turn
                    other.transactions.end_session_of(session)
                    ended += 1
            other.close()

        thread = threading.Thread(target=end)
        thread.start()

        # when its session is ended meanwhile, hundreds of times
        try:
            for job in jobs:
                outcome = done(job) if jobs.index(job) % 2 else to_retry(job)
                settle(store, "w1", [(job.id, outcome)], {}, lambda id, _: events.emit("job.reduced", job=id))
                settled += 1
        finally:
            stop.set()
            thread.join()

        # then every outcome is stored as it was
        assert ended
        assert [event.name for event in heard] == []
        assert [places(store, ids)[id] for id in ids] == ["scheduled", "archived"] * 30
        assert store.archived.collection.count_documents({"why": "done"}) == 30
        assert store.scheduled.collection.count_documents({"attempts": 1}) == 30
