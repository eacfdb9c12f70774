"""Jobs that are given from the events of their inserts: each rule of domain/planning/arrivals.py, with real events.
At last leaders that assign from events and by rounds depose each other at will; protocol_world.py has the other actors.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from pymongo.change_stream import CollectionChangeStream
from pymongo.read_concern import ReadConcern

from recruiter.domain.job import JobId
from recruiter.domain.planning.arrivals import Arrival, Vacancies
from recruiter.domain.planning.rules import Rules
from recruiter.errors import StoreUnreachable, Superseded
from recruiter.processes.loop import Stop
from recruiter.processes.recruiter import RecruiterProcess
from recruiter.processes.worker.held_job import HeldJob
from recruiter.processes.worker.held_jobs import HeldJobs
from recruiter.settings import Settings
from recruiter.steps.assign import assign, assign_new
from recruiter.steps.cancel import archive_cancelled, cancel
from recruiter.steps.lead import Leadership
from recruiter.store.change_stream import Change, _change
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.store.roster_fields import Holding
from tests.conftest import eventually
from tests.depth import examples
from tests.leading import a_leader
from tests.property.protocol_world import LATER, World, canceller, drain, late_writes, retirer, worker
from tests.samples import a_job, insert, on_the_roster


class Stream:
    """The events of a collection, as a change waiter would tell of them."""

    def __init__(self, store: Store) -> None:
        agreed = store.scheduled.collection.with_options(read_concern=ReadConcern("majority"))
        self._stream: CollectionChangeStream[Any] = agreed.watch(max_await_time_ms=10)
        self.seen: list[Any] = []

    def arrivals(self, least: int = 1) -> list[Arrival]:
        """What has come since the last time."""
        return [change.arrival for change in self.changes(least) if change.arrival is not None]

    def changes(self, least: int = 1) -> list[Change]:
        """At least so many."""
        before = len(self.seen)
        eventually(lambda: self._read() - before >= least, within=10.0)
        return [_change(event) for event in self.seen[before:]]

    def again(self) -> list[Arrival]:
        """Everything once more, as a stream does that is resumed."""
        return [change.arrival for change in map(_change, self.seen) if change.arrival is not None]

    def _read(self) -> int:
        while (event := self._stream.try_next()) is not None:
            self.seen.append(event)
        return len(self.seen)

    def close(self) -> None:
        self._stream.close()


class Leader:
    """One that leads, with a connection of its own."""

    def __init__(self, target: str) -> None:
        self.store = Store(Target.parse(target))
        self.leadership = Leadership(self.store, self.store.clock, lease_time=5.0)

    def lead(self) -> None:
        """Takes the lease, whoever has it."""
        self.leadership._acquire(self.store.leases.look())
        assert self.leadership.leading

    def round(self) -> None:
        assign(self.store, self.leadership.term, LATER)

    def hear(self, arrivals: list[Arrival], *workers: str) -> bool:
        """Gives jobs from their events to these workers, or to any."""
        roster = [worker for worker in self.store.roster.read() if not workers or worker.id in workers]
        term = self.leadership.term
        return assign_new(self.store, term, LATER, arrivals, Vacancies(roster), Rules())


@pytest.fixture
def stream(store: Store) -> Iterator[Stream]:
    stream = Stream(store)
    yield stream
    stream.close()


@pytest.fixture
def leaders(target: str, store: Store) -> Iterator[tuple[Leader, Leader]]:
    pair = Leader(target), Leader(target)
    yield pair
    for leader in pair:
        leader.store.close()


def a_recruiter(store: Store) -> RecruiterProcess:
    return a_leader(store, Stop(), Settings(), listen=False)


def lists(store: Store) -> dict[str, list[JobId]]:
    return {entry["_id"]: entry["assigned"] for entry in store.roster.collection.find({}, {"assigned": 1})}


def is_held_twice(store: Store, id: JobId) -> bool:
    return sum(assigned.count(id) for assigned in lists(store).values()) > 1


def test_an_insert_from_before_the_term_is_not_used(
    store: Store, stream: Stream, leaders: tuple[Leader, Leader]
) -> None:
    """Given a job that an older leader has given away, when the next one hears of its insert, then it lets it be."""
    old, new = leaders
    on_the_roster(store, "w1", slots=1, prefetch=0)
    on_the_roster(store, "w2")
    old.lead()
    (id,) = insert(store, a_job())
    assert old.hear(stream.arrivals(), "w1")
    new.lead()

    new.hear(stream.again(), "w2")

    assert not is_held_twice(store, id)


def test_the_fence_time_is_where_the_term_was_raised_not_where_the_lease_was_taken(
    store: Store, stream: Stream, leaders: tuple[Leader, Leader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a leader that has the lease and has not raised the term yet, when the older one gives a new job away in
    this moment, then the event of that job is not used."""
    old, new = leaders
    on_the_roster(store, "w1")
    on_the_roster(store, "w2")
    old.lead()
    raise_term, ids = new.store.roster.raise_term, list[JobId]()

    def raises_late(term: int) -> None:
        ids.extend(insert(store, a_job()))
        assert old.hear(stream.arrivals(), "w1")
        raise_term(term)

    monkeypatch.setattr(new.store.roster, "raise_term", raises_late)
    new.lead()

    new.hear(stream.again(), "w2")

    assert not is_held_twice(store, ids[0])


def test_a_round_that_gave_jobs_moves_the_fence_time(
    store: Store, stream: Stream, leaders: tuple[Leader, Leader]
) -> None:
    leader, _ = leaders
    on_the_roster(store, "w1", slots=1, prefetch=0)
    leader.lead()
    (id,) = insert(store, a_job())
    leader.round()
    on_the_roster(store, "w2")

    leader.hear(stream.arrivals(), "w2")

    assert not is_held_twice(store, id)


def test_a_round_moves_the_fence_time_to_its_write_not_to_its_beginning(
    store: Store, stream: Stream, leaders: tuple[Leader, Leader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a round that has begun, when a job comes that it still finds, then the event of that job is not used."""
    leader, _ = leaders
    on_the_roster(store, "w1", slots=1, prefetch=0)
    on_the_roster(store, "w2", term=1)
    leader.lead()
    lanes, ids = leader.store.due_jobs.lanes_to_plan, list[JobId]()

    def after_the_roster() -> Any:
        ids.extend(insert(store, a_job()))
        return lanes()

    monkeypatch.setattr(leader.store.due_jobs, "lanes_to_plan", after_the_roster)
    leader.round()

    leader.hear(stream.arrivals(), "w2")

    assert not is_held_twice(store, ids[0])


def test_an_event_that_was_used_is_not_used_again(store: Store, stream: Stream, leaders: tuple[Leader, Leader]) -> None:
    """A stream that is resumed delivers events twice."""
    leader, _ = leaders
    on_the_roster(store, "w1")
    leader.lead()
    (id,) = insert(store, a_job())
    arrivals = stream.arrivals()
    assert leader.hear(arrivals)

    leader.hear(arrivals)

    assert not is_held_twice(store, id)


def test_archiving_a_cancelled_job_moves_the_fence_time(
    store: Store, stream: Stream, leaders: tuple[Leader, Leader]
) -> None:
    """Given a job that the leader has archived as cancelled, when its insert is heard of, then no worker is given the
    ended id: it may be made of its content, and be inserted again."""
    leader, _ = leaders
    on_the_roster(store, "w1")
    leader.lead()
    (id,) = insert(store, a_job())
    cancel(store, store.clock, id)
    assert archive_cancelled(leader.store, store.clock, leader.leadership.term, leader.leadership.holder) == [id]

    leader.hear(stream.arrivals())

    assert lists(store)["w1"] == []


def test_only_inserts_count(store: Store, stream: Stream, leaders: tuple[Leader, Leader]) -> None:
    """Given a job that a worker holds, when its document is replaced, then the event names its lane, and no new job."""
    leader, _ = leaders
    on_the_roster(store, "w1", slots=1, prefetch=0)
    leader.lead()
    (id,) = insert(store, a_job())
    leader.round()
    on_the_roster(store, "w2")
    stream.arrivals()
    document = store.scheduled.collection.find_one({"_id": id})
    assert document is not None
    store.scheduled.collection.replace_one({"_id": id}, {**document, "progress": 0.5})

    (change,) = stream.changes()
    assert (change.lane, change.arrival) == ("generic/add", None)
    leader.hear([])

    assert not is_held_twice(store, id)


def test_the_thread_that_hears_of_a_job_does_not_give_it(store: Store, stream: Stream) -> None:
    """The recruiter's change waiter has a thread of its own: it only notes what has come."""
    on_the_roster(store, "w1")
    process = a_recruiter(store)
    process._step()
    insert(store, a_job(scheduled_at=store.clock.now() - timedelta(seconds=1)))

    process._arrived(stream.changes())
    untouched = lists(store)
    process._step()
    process._close()

    assert untouched == {"w1": []}
    assert len(lists(store)["w1"]) == 1


def test_an_unknown_outcome_costs_the_term(store: Store, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given an offer that nobody answered, when it arrives late, after the job was given to another worker, then it
    changes nothing: the leader has taken a new term before it went on."""
    on_the_roster(store, "w1", slots=1, prefetch=0)
    process = a_recruiter(store)
    process._step()
    (id,) = insert(store, a_job(scheduled_at=store.clock.now() - timedelta(seconds=1)))
    offer, late = store.roster.offer, list[Callable[[], bool]]()

    def unanswered(*what: Any) -> bool:
        late.append(lambda: offer(*what))
        raise StoreUnreachable("nobody knows")

    with monkeypatch.context() as patch:
        patch.setattr(store.roster, "offer", unanswered)
        process._arrived(stream.changes())
        with suppress(StoreUnreachable):
            process._step()
    assert len(late) == 1
    store.roster.set_drained("w1", {"by": "a person"})
    on_the_roster(store, "w2", term=store.leases.term())
    process._step()
    assert lists(store) == {"w1": [], "w2": [id]}
    store.roster.set_drained("w1", None)
    late.pop()()
    process._close()

    assert not is_held_twice(store, id)


def test_a_worker_believes_the_document_not_the_event(
    store: Store, stream: Stream, leaders: tuple[Leader, Leader]
) -> None:
    """Given a job that was cancelled after its insert, when it is given from the event all the same, then its worker,
    which fetches it, does not start it."""
    leader, _ = leaders
    on_the_roster(store, "w1")
    leader.lead()
    (id,) = insert(store, a_job())
    cancel(store, store.clock, id)
    assert leader.hear(stream.arrivals())
    held = HeldJobs("w1")
    held.hear(Holding([id], 0, 1))

    held.fetched(held.to_fetch(), [HeldJob.read(*job) for job in store.scheduled.fetch([id])])

    assert not held.waiting


# -- all of it together, in any order --------------------------------------------------------------------------------

SEEDS, STEPS = examples(4), 300


def producer(world: World) -> Iterator[None]:
    while True:
        yield
        if len(world.jobs) < 40:
            (id,) = insert(world.store, a_job(f"new {next(world.numbers)}"))
            world.jobs.add(id)
            world.attempts[id] = 0


def leader(world: World, me: Leader, stream: Stream) -> Iterator[None]:
    """Deposes whoever leads, then gives jobs by rounds and from events, and archives; every write may go wrong."""
    store, chance = me.store, world.random
    while True:
        yield
        me.lead()
        term, holder = me.leadership.term, me.leadership.holder
        vacancies = Vacancies(store.roster.read())
        answer: bool | None = True
        while answer is not None and chance.random() < 0.95:  # of an unknown outcome: a new term
            yield
            kind = chance.random()
            if kind < 0.1:
                with suppress(Superseded):
                    archive_cancelled(store, world.clock, term, holder)
            elif kind < 0.3:
                vacancies = Vacancies(store.roster.read())
                answer = yield from a_round(world, store, term)
            else:
                arrivals = stream.again()[-20:] if chance.random() < 0.2 else stream.arrivals(least=0)
                rest = (arrivals[-3:], vacancies, Rules())
                answer = world.unreliable(
                    lambda term=term, rest=rest: assign_new(store, term, LATER, *rest)  # type: ignore[misc]
                )


def noting(offer: Callable[..., bool], answers: list[bool]) -> Callable[..., bool]:
    def note(*what: Any) -> bool:
        answers.append(offer(*what))
        return answers[-1]

    return note


def a_round(world: World, store: Store, term: int) -> Generator[None, None, bool | None]:
    held = store.roster.held()
    yield
    free = list(store.due_jobs.due(["generic/add"], LATER, 3, held))
    workers = [worker.id for worker in store.roster.read() if worker.ready]
    yield
    if not free or not workers:
        return True
    hands = {world.random.choice(workers): free}
    return world.unreliable(lambda: store.roster.assign(hands, term))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_job_is_lost_doubled_or_held_twice(
    store: Store, leaders: tuple[Leader, Leader], stream: Stream, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, given = World(store, seed), list[bool]()
    for each in leaders:
        monkeypatch.setattr(each.store.roster, "offer", noting(each.store.roster.offer, given))
    other = Stream(store)
    actors = 3 * [leader(world, leaders[0], stream), leader(world, leaders[1], other)]
    actors += [worker(world), worker(world), producer(world), retirer(world), canceller(world), late_writes(world)]

    for _ in range(STEPS):
        next(world.random.choice(actors))
        world.check()
    other.close()
    drain(world, len(world.jobs))

    world.check()
    assert any(given), "too little was given from events: this run says nothing"
    assert store.scheduled.collection.count_documents({}) == 0
