"""Flows, from the first step to the end, with a leader and a worker that are moved by hand."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient
from pymongo.monitoring import CommandListener, CommandSucceededEvent

from recruiter import (
    Every,
    FlowHandle,
    FlowNotFound,
    FlowState,
    InvalidArguments,
    InvalidFlow,
    JobExists,
    JobHandle,
    JobTooLarge,
    Recruiter,
    ResultTimeout,
    Step,
)
from recruiter.crypto import Zlib
from recruiter.domain.job import JobId
from recruiter.domain.state import Why
from recruiter.steps.clean import forget_flows
from recruiter.steps.release import releasing
from recruiter.store.codec import Document
from recruiter.store.flow_steps import MAX_STEPS_PER_TRANSACTION
from tests.flows import Stage
from tests.samples import a_job, insert


@pytest.fixture
def stage(recruiter: Recruiter) -> Stage:
    @recruiter.task
    def fetch(url: str) -> int:
        return len(url)

    @recruiter.task
    def resize(size: int, width: int) -> int:
        return size * width

    @recruiter.task
    def merge(parts: list[int]) -> int:
        return sum(parts)

    @recruiter.task
    def double(size: int) -> int:
        return 2 * size

    @recruiter.task
    def say(text: str) -> None: ...

    return Stage(recruiter)


def double(size: int) -> int:
    return 2 * size


def add(flow: object, text: str, **options: object) -> Step[None]:
    """A step that says something."""
    return flow.add("say", text, **options)  # type: ignore[attr-defined, no-any-return]


class TestStarting:
    def test_a_flow_with_one_bad_step_stores_no_step(self, stage: Stage) -> None:
        """Given a job with an id of its own, when a flow has a step with this id, then none of it is stored."""
        stage.recruiter.job("say", ["first"]).with_id("mine").enqueue()
        flow = stage.recruiter.flow("f")
        add(flow, "a")
        flow.add(stage.recruiter.job("say", ["second"]).with_id("mine"))

        with pytest.raises(JobExists):
            flow.start()

        assert [job.id for job in stage.store.scheduled.waiting()] == ["mine"]
        assert stage.recruiter.flows.latest() == []

    def test_a_caller_that_goes_on_after_a_refusal_stores_no_part_of_it(self, stage: Stage, target: str) -> None:
        flow = stage.recruiter.flow("f")
        add(flow, "a")
        add(flow, "x" * 16_000_000)
        client: MongoClient[Document] = MongoClient(target)

        with client, client.start_session() as session, session.start_transaction():
            with pytest.raises(JobTooLarge):
                flow.start(session=session)
            client.get_default_database().notes.insert_one({"text": "mine"}, session=session)

        assert stage.store.scheduled.waiting() == []
        assert stage.recruiter.flows.latest() == []

    def test_in_the_callers_transaction(self, stage: Stage, target: str) -> None:
        client: MongoClient[Document] = MongoClient(target)
        with client, client.start_session() as session:
            for commits in (False, True):
                flow = stage.recruiter.flow("f")
                a = add(flow, "a")
                session.start_transaction()
                handle = flow.start(session=session)
                assert stage.ready() == []
                session.commit_transaction() if commits else session.abort_transaction()
                assert stage.ready() == ([a.id] if commits else [])
        assert handle.report().total == 1

    def test_a_flow_starts_once(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f")
        add(flow, "a")
        flow.start()

        with pytest.raises(InvalidFlow, match="started already"):
            flow.start()
        with pytest.raises(InvalidFlow, match="started already"):
            add(flow, "b")

    def test_steps_have_the_owner_of_the_flow_and_options_of_their_own(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f", owner="ada")
        a = add(flow, "a")
        b = flow.add(stage.recruiter.job("say", ["b"]).with_priority(7).owned_by("bob"), after=a)
        flow.start()

        jobs = stage.store.scheduled.get_many([a.id, b.id])

        assert (jobs[a.id].owner, jobs[b.id].owner, jobs[b.id].priority) == ("ada", "bob", 7)

    def test_a_flow_starts_in_an_async_transaction(self, stage: Stage, target: str) -> None:
        handle = asyncio.run(self._start_async(stage, target))

        assert handle.report().counts == {"blocked": 1, "waiting": 1}

    def test_a_cycle_is_refused_and_nothing_stored(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f")
        a = add(flow, "a")
        b = add(flow, "b", after=a)
        flow.let_wait(a, after=b)

        with pytest.raises(InvalidFlow, match=r"say .* → say "):
            flow.start()

        assert stage.store.scheduled.waiting() == []
        assert stage.recruiter.flows.latest() == []

    async def _start_async(self, stage: Stage, target: str) -> FlowHandle:
        flow = stage.recruiter.flow("f")
        add(flow, "b", after=add(flow, "a"))
        client: AsyncMongoClient[Document] = AsyncMongoClient(target)
        async with client, client.start_session() as session, await session.start_transaction():
            return await flow.astart(session=session)


class TestRefused:
    """What cannot be a job, or a step, is refused where it is made."""

    @pytest.mark.parametrize(
        "made",
        [
            lambda task, result: task.enqueue(result),
            lambda task, result: asyncio.run(task.aenqueue(result)),
            lambda task, result: task.job(result).schedule_in("1h").enqueue(),
            lambda task, result: task.job(result).with_id("mine").enqueue(),
            lambda task, result: task.job(result).unique().enqueue(),
            lambda task, result: task.job(result).here().execute(),
            lambda task, result: task.create(result),
            lambda task, result: task.job(result).repeat_with_policy(Every("1h")).create(),
        ],
        ids=["enqueue", "aenqueue", "scheduled", "id", "unique", "here", "create", "repeated"],
    )
    @pytest.mark.parametrize("codec", [None, Zlib()], ids=["plain", "sealed"])
    def test_the_result_of_a_step_outside_of_its_flow(
        self, stage: Stage, target: str, made: Callable[..., object], codec: Zlib | None
    ) -> None:
        with Recruiter(target, codec=codec) as recruiter:
            task = recruiter.task(name="double")(double)
            step = recruiter.flow("f").add(task, 1)

            with pytest.raises(InvalidArguments, match=r"double: .* must be a step of its flow"):
                made(task, step.result)

            assert stage.store.scheduled.waiting() == []
            assert recruiter.schedulers() == []

    @pytest.mark.parametrize("codec", [None, Zlib()], ids=["plain", "sealed"])
    @pytest.mark.parametrize("options", [{}, {"unique": True}, {"ids": ["x", "y"]}], ids=["plain", "unique", "ids"])
    def test_among_many_the_others_are_stored(
        self, stage: Stage, target: str, codec: Zlib | None, options: dict[str, Any]
    ) -> None:
        with Recruiter(target, codec=codec) as recruiter:
            task = recruiter.task(name="double")(double)
            step = recruiter.flow("f").add(task, 1)

            refused, stored = task.enqueue_many([(step.result,), (2,)], errors="return", **options)

            assert isinstance(refused, InvalidArguments)
            assert isinstance(stored, JobHandle)
            assert stage.ready() == [stored.id]


class TestReleasing:
    def test_a_failure_archives_what_depends_on_it(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f")
        a, other = add(flow, "a"), add(flow, "other")
        b = add(flow, "b", after=[a, other])
        c = add(flow, "c", after=b)
        cleanup = add(flow, "cleanup", after_any=c)
        handle = flow.start()

        stage.run(a.id, fails=[a.id])
        stage.settle_down()

        assert (stage.why(b.id), stage.why(c.id)) == ("dependency-failed", "dependency-failed")
        assert stage.recruiter.explain(b.id).startswith("was given up at ")
        assert (
            f": step {a.id} has not succeeded, and this one waited for it. Recover the step"
            in stage.recruiter.explain(b.id)
        )
        assert sorted(stage.ready()) == sorted([other.id, cleanup.id])
        stage.run(other.id, cleanup.id)
        stage.settle_down()
        assert handle.report().state is FlowState.FAILED
        assert handle.report().counts == {"succeeded": 2, "failed": 1, "skipped": 2}

    def test_a_delay_counts_from_the_release(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f")
        a = add(flow, "a")
        b = flow.add(stage.recruiter.job("say", ["b"]).schedule_in("1 hour").expires_in("1 minute"), after=a)
        handle = flow.start()
        assert stage.store.scheduled.collection.find_one({"_id": b.id}).get("expires_at") is None  # type: ignore[union-attr]

        before = stage.store.clock.now()
        stage.run(a.id)
        stage.settle_down()

        job = stage.recruiter.find(b.id)
        assert job.scheduled_at >= before + timedelta(hours=1)
        assert job.expires_at == job.scheduled_at + timedelta(minutes=1)
        assert not job.blocked

        handle.pause()
        handle.resume()
        stage.settle_down()
        assert stage.recruiter.find(b.id).scheduled_at == job.scheduled_at, "no delay begins again"

    def test_arguments_that_grow_too_large_fail_the_step(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f")
        parts = [flow.add("fetch", "x") for _ in range(2)]
        whole = flow.add("merge", [part.result for part in parts])
        handle = flow.start()
        stage.run(*(part.id for part in parts))
        large = {"$set": {"result": "x" * 9_000_000}}
        stage.store.archived.collection.update_many({"flow.id": handle.id}, large)

        stage.settle_down()

        assert stage.why(whole.id) == "malformed"
        assert "at most 15,728,640 can be stored" in stage.recruiter.explain(whole.id)

    def test_a_pass_that_is_cut_off_is_completed_by_the_next(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f")
        a = add(flow, "a")
        flow.add_many("say", [(str(n),) for n in range(MAX_STEPS_PER_TRANSACTION + 10)], after=a)
        flow.start()
        stage.run(a.id)
        lease, clock = stage.lease, stage.store.clock

        parts = releasing(stage.store, clock.now, lease.term, lease.holder or "")
        while not next(parts).released:
            pass
        assert len(stage.ready()) == MAX_STEPS_PER_TRANSACTION
        stage.look()
        assert len(stage.ready()) == MAX_STEPS_PER_TRANSACTION + 10


class TestTheEnd:
    def ends(self, stage: Stage, *ends: str) -> tuple[Step[None], FlowHandle]:
        flow = stage.recruiter.flow("f")
        a = add(flow, "a")
        for end in ends:
            getattr(flow, end)("say", end)
        return a, flow.start()

    def said(self, stage: Stage) -> set[str]:
        """What the steps say that can run now."""
        jobs = stage.store.scheduled.get_many(stage.ready()).values()
        return {job.args["text"] for job in jobs}  # type: ignore[call-overload]

    def test_failure_then_recovery_runs_each_once(self, stage: Stage) -> None:
        a, handle = self.ends(stage, "on_success", "on_failure", "on_end")
        stage.run(a.id, fails=[a.id])
        stage.settle_down()
        assert self.said(stage) == {"on_failure", "on_end"}
        stage.run(*stage.ready())

        again = stage.recruiter.recover(a.id)
        stage.settle_down()
        assert handle.report().state is FlowState.RUNNING
        assert stage.ready() == [again.id]
        stage.run(again.id)
        stage.settle_down()

        assert self.said(stage) == {"on_success"}
        assert handle.report().state is FlowState.SUCCEEDED
        stage.run(*stage.ready())
        stage.settle_down()
        assert stage.ready() == []

    @pytest.mark.parametrize(
        "goes_on",
        [
            lambda handle, _: handle.retry(),
            lambda handle, a: handle._recruiter.recover(a.id),
            lambda handle, _: add(handle, "late"),
        ],
        ids=["retry", "recover", "add"],
    )
    def test_a_flow_that_goes_on_has_not_ended(self, stage: Stage, goes_on: Callable[..., object]) -> None:
        """Given a flow that has ended, when a step is retried, recovered or added, then waiting for the flow waits for
        that step, also before the leader has looked."""
        a, handle = self.ends(stage)
        stage.run(a.id, fails=[a.id])
        stage.settle_down()
        ended = handle.report()
        assert (ended.state, handle.wait(0)) == (FlowState.FAILED, ended)

        goes_on(handle, a)

        for report in (handle.report(), *stage.recruiter.flows.latest()):
            assert (report.state, report.ended_at) == (FlowState.RUNNING, None)
        with pytest.raises(ResultTimeout):
            handle.wait(0)
        stage.settle_down()
        stage.run(*stage.ready())
        with pytest.raises(ResultTimeout):
            handle.wait(0)
        stage.settle_down()
        assert handle.wait(0).state.ended

    def test_it_has_ended_when_the_leader_has_looked(self, stage: Stage) -> None:
        """Given a step that was recovered and has ended again, then the flow has not ended before the leader says so:
        other steps may come back."""
        a, handle = self.ends(stage)
        stage.run(a.id, fails=[a.id])
        stage.settle_down()
        again = stage.recruiter.recover(a.id)
        stage.recruiter.cancel(again.id)
        stage.archive_cancelled()

        assert handle.report().counts == {"cancelled": 1}
        assert handle.report().state is FlowState.RUNNING
        with pytest.raises(ResultTimeout):
            handle.wait(0)
        stage.settle_down()
        assert handle.wait(0).state is FlowState.FAILED


class TestRecovering:
    def test_people_are_told_the_last_job_of_a_step(self, stage: Stage) -> None:
        """Given a step that failed, was recovered and failed again, then the advice names the job that can be
        recovered, and recovering the first one says which that is."""
        flow = stage.recruiter.flow("f")
        a = add(flow, "a")
        b = add(flow, "b", after=a)
        c = add(flow, "c", after=b)
        handle = flow.start()
        stage.run(a.id, fails=[a.id])
        stage.settle_down()
        recovered = stage.recruiter.recover(a.id)
        refused = f"{a.id}, a step of flow {handle.id}, was recovered before; the last job of this step is "
        with pytest.raises(InvalidFlow, match=re.escape(f"{refused}{recovered.id}, which has not ended yet")):
            stage.recruiter.recover(a.id)
        stage.settle_down()
        last_b, last_c = handle.job(b).id, handle.job(c).id
        assert f": say ({recovered.id}); 0 of 1 have ended" in stage.recruiter.explain(last_b)
        assert f": say ({last_b}); 0 of 1 have ended" in stage.recruiter.explain(last_c)

        stage.run(recovered.id, fails=[recovered.id])
        stage.settle_down()

        explain = stage.recruiter.explain
        failed = "has not succeeded, and this one waited for it"
        retry = f"recruiter flow recover {handle.id}"
        advice = f"Recover the step that failed first to resume the flow, or all that failed: {retry}"
        assert explain(last_b).endswith(f": step {recovered.id} {failed}. {advice}")
        assert explain(last_c).endswith(f": step {recovered.id} {failed}. {advice}")  # which failed first
        for step, last in ((a, recovered.id), (b, last_b), (c, last_c)):
            assert explain(step.id).endswith(f"; it was recovered, and the last job of its step is {last}")
        assert {step.job: step.error for step in handle.steps()}[last_b] == f"step {recovered.id} {failed}"
        with pytest.raises(InvalidFlow, match=re.escape(f"{refused}{recovered.id}, which can be recovered")):
            stage.recruiter.recover(a.id)
        again = stage.recruiter.recover(recovered.id)
        stage.settle_down()
        stage.run(again.id)
        with pytest.raises(InvalidFlow, match=re.escape(f"{refused}{again.id}, which has succeeded")):
            stage.recruiter.recover(a.id)

    def test_in_the_callers_transaction(self, stage: Stage, target: str) -> None:
        flow = stage.recruiter.flow("f")
        a = add(flow, "a")
        flow.start()
        stage.run(a.id, fails=[a.id])
        stage.settle_down()

        client: MongoClient[Document] = MongoClient(target)
        with client, client.start_session() as session, session.start_transaction():
            again = stage.recruiter.recover(a.id, session=session)

        stage.settle_down()
        assert stage.ready() == [again.id]

    def test_lost_steps_are_retried_only_when_somebody_asks_for_it(self, stage: Stage) -> None:
        """Given a flow with a step that failed and one that was lost, when it is retried, then the lost one does not
        run again; until it is asked for."""
        flow = stage.recruiter.flow("f")
        failed, lost = add(flow, "failed"), add(flow, "lost")
        add(flow, "last", after=[failed, lost])
        handle = flow.start()
        stage.run(failed.id, fails=[failed.id])
        stage.run(lost.id, fails=[lost.id], why=Why.LOST)
        stage.settle_down()

        assert handle.retry() == 1
        stage.settle_down()
        stage.run(*stage.ready())
        stage.settle_down()
        assert handle.report().counts == {"succeeded": 1, "lost": 1, "skipped": 1}
        assert handle.retry() == 0

        assert handle.retry(lost=True) == 1
        for _ in range(2):
            stage.settle_down()
            stage.run(*stage.ready())
        assert handle.report().counts == {"succeeded": 3}


class TestAdding:
    def test_an_unknown_step_is_refused(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f")
        add(flow, "a")
        handle = flow.start()
        stranger: Step[None] = Step(handle.id, ObjectId(), "say")

        with pytest.raises(InvalidFlow, match="is not a step of flow"):
            add(handle, "b", after=stranger)
        with pytest.raises(FlowNotFound):
            add(FlowHandle(stage.recruiter, ObjectId()), "b")

    def test_a_step_with_an_id_of_its_own_is_added_once(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f")
        add(flow, "a")
        handle = flow.start()

        first, second = (handle.add(stage.recruiter.job("say", ["x"]).with_id("page-1")) for _ in range(2))

        assert first.id == second.id == "page-1"
        assert handle.report().total == 2


class TestControl:
    def flow_of(self, stage: Stage) -> tuple[list[JobId], FlowHandle]:
        flow = stage.recruiter.flow("f")
        a, b = add(flow, "a"), add(flow, "b")
        c = add(flow, "c", after=[a, b])
        return [a.id, b.id, c.id], flow.start()

    def test_a_flow_that_has_ended_cannot_be_cancelled(self, stage: Stage) -> None:
        _, handle = self.flow_of(stage)
        handle.cancel(by="ada", reason="enough")
        stage.settle_down()

        with pytest.raises(InvalidFlow, match=r"has ended already \(cancelled\); nothing to cancel"):
            handle.cancel(by="root")
        assert handle.report().note == "cancelled by ada: enough"

        handle.retry()
        assert handle.cancel(by="root") == 3

    def test_a_flow_that_is_being_cancelled_is_retried_when_it_has_ended(self, stage: Stage) -> None:
        """Given a cancelled flow with a step that still runs, when it is retried, then that is refused, and the flow
        ends as cancelled."""
        (a, _, _), handle = self.flow_of(stage)
        stage.give(a)
        handle.cancel()

        with pytest.raises(InvalidFlow, match="is being cancelled, and some of its steps have not ended yet"):
            handle.retry()
        stage.settle_down()
        with pytest.raises(InvalidFlow, match="is being cancelled"):
            handle.retry()
        stage.settle(a, fails=[a], why=Why.CANCELLED)
        stage.settle_down()

        assert handle.report().state is FlowState.CANCELLED
        assert handle.retry() == 3

    def test_a_paused_flow_starts_no_step_until_it_is_resumed(self, stage: Stage) -> None:
        """Given a flow with a step that waits and one that runs, when it is paused, then the first does not start, the
        other ends, and nothing follows; until it is resumed."""
        (a, b, c), handle = self.flow_of(stage)
        stage.give(a)

        handle.pause(by="ada", reason="lunch")

        assert stage.ready() == []
        assert stage.recruiter.explain(b) == f"its flow 'f' ({handle.id}) is paused by ada: lunch"
        stage.settle(a)
        stage.settle_down()
        assert stage.ready() == []
        assert handle.report().state is FlowState.PAUSED
        handle.resume()
        stage.settle_down()
        assert stage.ready() == [b]
        stage.run(b)
        stage.settle_down()
        assert stage.ready() == [c]

    def test_if_whoever_paused_or_cancelled_dies_the_leader_goes_on(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (_, b, _), handle = self.flow_of(stage)

        with monkeypatch.context() as patch:
            patch.setattr(type(stage.store.flow_steps), "hold", _dies)
            with pytest.raises(KeyboardInterrupt):
                handle.pause()
        assert b in stage.ready()
        stage.settle_down()
        assert stage.ready() == []

        with monkeypatch.context() as patch:
            patch.setattr(type(stage.store.flow_steps), "flag", _dies)
            with pytest.raises(KeyboardInterrupt):
                handle.cancel()
        stage.settle_down()
        assert handle.report().state is FlowState.CANCELLED


def _dies(*_: object) -> None:
    raise KeyboardInterrupt


class AfterEachRead(CommandListener):
    """Does something whenever MongoDB has answered a read of jobs or the roster."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do

    def started(self, event: object) -> None: ...

    def failed(self, event: object) -> None: ...

    def succeeded(self, event: CommandSucceededEvent) -> None:
        if event.command_name in ("find", "aggregate"):
            self._do()


class TestCounting:
    def test_each_step_counts_once_also_if_it_ends_between_two_reads(self, stage: Stage, target: str) -> None:
        """Given a running step that ends whenever a report has read something, then each report adds up."""
        flow = stage.recruiter.flow("f")
        steps = [step.id for step in flow.add_many("say", [("x",)] * 60)]
        handle = flow.start()
        stage.give(*steps[:40])
        running = iter(steps[:40])
        client: MongoClient[Document] = MongoClient(
            target, event_listeners=[AfterEachRead(lambda: stage.settle(next(running)))]
        )

        with client, Recruiter(client.get_default_database()) as watching:
            watching.store.roster.held()  # connected
            reports = [watching.flows.find(handle.id).report(), *watching.flows.latest()]

        for report in reports:
            assert report.total == 60
            assert report.counts["waiting"] == 20
            assert report.counts["running"] + report.counts["succeeded"] == 40
        ended = [report.counts["succeeded"] for report in reports]
        assert 0 < ended[0] < ended[1], "none has ended meanwhile"


class TestExplaining:
    def test_explain_names_the_steps_that_a_step_waits_for(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("thumbnails")
        a, b = add(flow, "a"), add(flow, "b")
        c = add(flow, "c", after=[a, b])
        handle = flow.start()
        stage.run(a.id)

        told = stage.recruiter.explain(c.id)

        assert told == (f"waits for other steps of flow 'thumbnails' ({handle.id}): say ({b.id}); 1 of 2 have ended")
        stage.run(b.id)
        assert "every step of flow 'thumbnails' that it waits for has ended" in stage.recruiter.explain(c.id)

    def test_a_step_whose_dependencies_have_ended_says_what_any_due_job_would(self, stage: Stage) -> None:
        """Given a step that may start and is not released, then it says what holds it up; if nothing does, that the
        leader releases it."""
        flow = stage.recruiter.flow("f")
        a = add(flow, "a")
        b = add(flow, "b", after=a)
        flow.start()
        stage.run(a.id)
        roster, controls = stage.store.roster.collection, stage.recruiter.controls
        others = insert(stage.store, *(a_job(task="say", args={"text": "x"}) for _ in range(4)))

        def told() -> str:
            return stage.recruiter.explain(b.id).removeprefix("every step of flow 'f' that it waits for has ended; ")

        assert told() == "no worker knows the task 'say': start one whose --bootstrap defines it"
        roster.update_one({"_id": stage.worker}, {"$set": {"tasks": ["say"], "prefetch": 0}})
        assert told() == "the leader releases it in a moment"
        controls.set_limit("task:say", 0)
        assert told() == "task say is stopped by its limit of 0"
        controls.remove_limit("task:say")
        controls.pause_group("generic", by="ada", reason="lunch")
        assert told().startswith("group generic is paused by ada since ")
        controls.resume_group("generic")
        stage.give(*others)
        assert told() == "no slot is free where it could run (the one worker that serves it)"
        stage.store.leases.collection.delete_many({})
        assert told().startswith("there is no leader")

    def test_a_step_that_cannot_start_is_not_told_to_wait_for_a_slot(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f")
        a = add(flow, "a")
        b = add(flow, "b", after=a)
        flow.start()

        stage.run(a.id, fails=[a.id])

        told = "a step of flow 'f' that it waits for has failed; the leader archives it in a moment"
        assert stage.recruiter.explain(b.id) == told


class TestForgetting:
    def test_a_flow_is_forgotten_as_a_whole(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f")
        a = add(flow, "a")
        b = add(flow, "b", after=a)
        handle = flow.start()
        stage.run(a.id)
        stage.settle_down()
        later = stage.store.clock.now() + timedelta(days=2)

        assert forget_flows(stage.store, later, timedelta(days=1)) == 0
        with pytest.raises(InvalidFlow, match="a step of flow"):
            stage.recruiter.remove(a.id)
        stage.run(b.id)
        stage.settle_down()

        assert forget_flows(stage.store, later, timedelta(days=1)) == 2
        assert stage.store.flows.collection.count_documents({}) == 0
        assert stage.why(a.id) is None
        with pytest.raises(FlowNotFound):
            handle.report()

    def test_one_that_failed_is_kept_for_longer(self, stage: Stage) -> None:
        flow = stage.recruiter.flow("f")
        a = add(flow, "a")
        flow.start()
        stage.run(a.id, fails=[a.id])
        stage.settle_down()
        later = stage.store.clock.now() + timedelta(days=2)

        assert forget_flows(stage.store, later, timedelta(days=1), timedelta(days=9)) == 0
        assert forget_flows(stage.store, later, timedelta(days=1), timedelta(days=1)) == 1
