"""Documents of flows that somebody has spoiled: whatever is wrong with one, the other flows go on, and the log stays
short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from recruiter import FlowHandle, FlowState, InvalidFlow, Recruiter, Step
from recruiter.events import Event
from recruiter.processes.loop import Stop
from recruiter.settings import Settings
from recruiter.steps.cancel import FLAGS_AT_ONCE
from recruiter.store import batches
from recruiter.store.codec import encode
from tests.conftest import eventually
from tests.flows import Stage
from tests.leading import a_leader
from tests.samples import on_the_roster

Flow = tuple[FlowHandle, Step[Any], Step[Any]]


@pytest.fixture
def stage(recruiter: Recruiter) -> Stage:
    @recruiter.task
    def work(name: str) -> str:
        return name

    return Stage(recruiter)


def chain(stage: Stage, **options: Any) -> Flow:
    """Two steps: the first can start."""
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    second = flow.add("work", "second", after=first)
    for end, job in options.items():
        getattr(flow, end)(job)
    return flow.start(), first, second


class Leader:
    """A leading process that is moved by hand, and all that it has logged."""

    def __init__(self, stage: Stage) -> None:
        stage.store.leases.collection.delete_many({})
        self.store = stage.store
        self.logged: list[Event] = []
        self.process = a_leader(stage.store, Stop(), Settings(), self.logged.append, listen=False)

    def steps_until(self, happened: Callable[[], object], most: int = 200) -> None:
        for _ in range(most):
            if happened():
                return
            self.process.wake()
            self.process._step()
        pytest.fail(f"it has not happened in {most} steps of the leader")

    def is_after_a_step(self, happened: Callable[[], bool]) -> bool:
        self.process.wake()
        self.process._step()
        return happened()

    def errors(self) -> list[str]:
        return [event.name for event in self.logged if event.name in ("loop.failed", "flow.broken")]


@pytest.fixture
def leader(stage: Stage) -> Iterator[Leader]:
    leader = Leader(stage)
    on_the_roster(stage.store, "w9", 0, tasks=["work"], slots=100)
    yield leader
    leader.process._close()


def spoil_step(stage: Stage, step: Step[Any], **fields: Any) -> None:
    stage.store.scheduled.collection.update_one({"_id": step.id}, {"$set": fields}, bypass_document_validation=True)


# -- what somebody does to a flow whose first step has ended ----------------------------------------------------------


def a_marker_whose_id_is_a_document(stage: Stage, bad: Flow) -> None:
    stage.store.flows.markers.insert_one({"_id": {"a": 1}, "flow": bad[0].id})


def markers_of_flows_that_never_were(stage: Stage, _: Flow) -> None:
    """They are older than all others, and so come first."""
    old = (ObjectId(f"{number:024x}") for number in range(5_000))
    stage.store.flows.markers.insert_many([{"_id": id, "flow": ObjectId()} for id in old])


def a_task_that_is_no_text(stage: Stage, bad: Flow) -> None:
    """Its name is not UTF-8."""
    step = stage.store.scheduled.collection.find_one({"_id": bad[2].id})
    assert step is not None
    raw = encode(step).replace(b"\x05\x00\x00\x00work\x00", b"\x05\x00\x00\x00\xff\xferk\x00")
    assert raw != encode(step)
    stage.store.scheduled.collection.delete_one({"_id": bad[2].id})
    stage.store.scheduled.collection.insert_one(RawBSONDocument(raw), bypass_document_validation=True)


def an_expiry_that_is_no_number(stage: Stage, bad: Flow) -> None:
    spoil_step(stage, bad[2], expires_in=float("nan"))


def an_expiry_that_is_text(stage: Stage, bad: Flow) -> None:
    spoil_step(stage, bad[2], expires_in="soon")


def a_very_long_task(stage: Stage, bad: Flow) -> None:
    spoil_step(stage, bad[2], task="x" * 30_000)


def a_time_that_is_missing(stage: Stage, bad: Flow) -> None:
    stage.store.scheduled.collection.update_one(
        {"_id": bad[2].id}, {"$unset": {"scheduled_at": ""}}, bypass_document_validation=True
    )


def an_archived_step_with_a_strange_id(stage: Stage, bad: Flow) -> None:
    """It failed for its dependency, which has succeeded since."""
    step = stage.store.scheduled.collection.find_one({"_id": bad[2].id})
    assert step is not None
    ended = {
        **step,
        "_id": {"strange": 1},
        "done": False,
        "why": "dependency-failed",
        "archived_at": step["created_at"],
    }
    stage.store.scheduled.collection.delete_one({"_id": bad[2].id})
    stage.store.archived.collection.insert_one(ended, bypass_document_validation=True)


def an_archived_step_that_cannot_be_read(stage: Stage, bad: Flow) -> None:
    step = stage.store.scheduled.collection.find_one({"_id": bad[2].id})
    assert step is not None
    ended = {**step, "done": False, "why": "dependency-failed", "archived_at": step["created_at"], "priority": "high"}
    stage.store.scheduled.collection.delete_one({"_id": bad[2].id})
    stage.store.archived.collection.insert_one(ended, bypass_document_validation=True)


def a_flow_that_cannot_be_read(stage: Stage, bad: Flow) -> None:
    stage.store.flows.collection.update_one(
        {"_id": bad[0].id}, {"$set": {"ends": ["x"], "run": "y"}}, bypass_document_validation=True
    )


def a_flow_that_is_removed(stage: Stage, bad: Flow) -> None:
    stage.store.flows.collection.delete_one({"_id": bad[0].id})


DAMAGE = [
    a_marker_whose_id_is_a_document,
    markers_of_flows_that_never_were,
    a_task_that_is_no_text,
    an_expiry_that_is_no_number,
    an_expiry_that_is_text,
    a_very_long_task,
    a_time_that_is_missing,
    an_archived_step_with_a_strange_id,
    an_archived_step_that_cannot_be_read,
    a_flow_that_cannot_be_read,
    a_flow_that_is_removed,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda each: each.__name__)
def test_other_flows_go_on_and_the_log_stays_short(
    stage: Stage, leader: Leader, damage: Callable[[Stage, Flow], None]
) -> None:
    """Given a flow that somebody has spoiled, when its first step has ended, then the flow that comes after it ends."""
    bad, good = chain(stage), chain(stage)
    stage.run(bad[1].id)
    damage(stage, bad)
    stage.run(good[1].id)

    leader.steps_until(lambda: good[2].id in stage.store.roster.held())
    stage.worker = "w9"
    stage.settle(good[2].id)
    leader.steps_until(lambda: good[0].report().state is FlowState.SUCCEEDED)
    for _ in range(8):
        leader.process.wake()
        leader.process._step()

    assert len(leader.errors()) <= 1, leader.logged
    assert stage.store.archived.collection.estimated_document_count() < 10


def test_a_flow_that_cannot_be_read_waits_until_somebody_repairs_it(stage: Stage) -> None:
    handle, first, second = chain(stage)
    stage.run(first.id)
    a_flow_that_cannot_be_read(stage, (handle, first, second))
    report = stage.look()
    assert [flow for flow, _ in report.broken] == [handle.id]

    stage.store.flows.collection.update_one({"_id": handle.id}, {"$unset": {"ends": "", "run": ""}})
    stage.settle_down()

    assert stage.ready() == [second.id]


def test_steps_of_a_flow_that_is_gone_are_archived_and_stay_there(stage: Stage) -> None:
    handle, first, second = chain(stage)
    stage.run(first.id)
    a_flow_that_is_removed(stage, (handle, first, second))

    stage.settle_down()

    assert stage.why(second.id) == "dependency-failed"
    assert stage.store.archived.collection.count_documents({}) == 2


def test_one_step_that_mongodb_refuses_keeps_no_other_step(stage: Stage) -> None:
    """Given steps that fail for their dependency, one of which would be too large for the archive with the reason, then
    all are archived, the large one with as much as can be kept."""
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    others = [flow.add("work", str(number), after=first) for number in range(5)]
    flow.start()
    large = 16 * 1024 * 1024 - len(encode(stage.store.scheduled.collection.find_one({"_id": others[2].id}) or {})) - 40
    spoil_step(stage, others[2], filling=b"x" * large)
    stage.run(first.id, fails=[first.id])

    stage.settle_down()

    assert [stage.why(step.id) for step in others] == [
        *["dependency-failed"] * 2,
        "malformed",
        *["dependency-failed"] * 2,
    ]


# -- the end of a flow ------------------------------------------------------------------------------------------------


# -- batches ----------------------------------------------------------------------------------------------------------


def test_cancelled_jobs_are_archived_in_batches_of_few_bytes(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_BATCH_BYTES", 100_000)
    jobs = [stage.recruiter.job("work", ["x" * 40_000]).enqueue() for _ in range(6)]
    for job in jobs:
        stage.recruiter.cancel(job.id)

    ended = [stage.archive_cancelled() for _ in range(3)]

    assert ended[0] == 3 < FLAGS_AT_ONCE
    assert sum(ended) == 6


def test_a_flow_with_large_steps_is_failed_and_retried_in_batches_of_few_bytes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MAX_BATCH_BYTES", 100_000)
    flow = stage.recruiter.flow("f")
    first = flow.add("work", "first")
    flow.add_many("work", [("x" * 40_000,)] * 6, after=first)
    handle = flow.start()
    stage.run(first.id, fails=[first.id])
    stage.settle_down()
    assert handle.report().counts == {"failed": 1, "skipped": 6}

    handle.retry()
    stage.settle_down()
    stage.run(*stage.ready())
    stage.settle_down()
    parts = stage.ready()
    stage.run(*parts, fails=parts)
    stage.settle_down()

    assert handle.retry() == 6


# -- a transaction of somebody else -----------------------------------------------------------------------------------


def test_a_flow_that_another_transaction_holds_keeps_no_other_flow(stage: Stage, leader: Leader, target: str) -> None:
    """Given a caller that recovers a step in a transaction of its own and leaves it open, then other flows go on and
    nothing is logged; the flow goes on when the transaction has ended."""
    held, good = chain(stage), chain(stage)
    stage.run(held[1].id, fails=[held[1].id])
    leader.steps_until(lambda: held[0].report().state is FlowState.FAILED)
    client: MongoClient[Any]
    with MongoClient(target) as client, client.start_session() as session:
        session.start_transaction()
        again = stage.recruiter.recover(held[1].id, session=session)
        stage.store.flows.markers.insert_one({"flow": held[0].id, "all": True})
        leader.steps_until(lambda: good[1].id in stage.store.roster.held())
        stage.worker = "w9"
        stage.settle(good[1].id)

        leader.steps_until(lambda: good[2].id in stage.store.roster.held())

        session.commit_transaction()
    eventually(lambda: leader.is_after_a_step(lambda: again.id in stage.store.roster.held()))
    assert leader.errors() == []


def test_two_jobs_of_a_flow_cannot_have_one_id(stage: Stage) -> None:
    job = stage.recruiter.job("work", ["end"]).with_id("mine")

    with pytest.raises(InvalidFlow, match="two steps"):
        chain(stage, on_end=job, on_failure=job)
