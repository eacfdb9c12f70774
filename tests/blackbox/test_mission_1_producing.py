"""Section 1 of the mission, producing jobs: each row on a fleet of real processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from recruiter import (
    ArchivedJob,
    Cron,
    InvalidArguments,
    InvalidJob,
    InvalidName,
    JobNotFound,
    JobsRefused,
    RetryManyTimes,
)
from recruiter.workables.outcomes import AlwaysFail, AlwaysSucceed, ExitAbruptly, FailsInConstructor, LazyBones
from recruiter.workables.shell import ShellCommand
from tests.applications import mission
from tests.applications.mission import Letter, add, add_async, fail, lines, record, with_defaults
from tests.blackbox.conftest import Fleet
from tests.conftest import eventually


def test_m1_a_workable_is_rebuilt_in_another_process_and_any_method_can_run(fleet_at_work: Fleet) -> None:
    letter = Letter(str(fleet_at_work.folder), "Hello")

    executed: Any = letter.as_job_of(fleet_at_work.recruiter).in_background().execute()
    whispered: Any = letter.as_job_of(fleet_at_work.recruiter).in_background().whisper()

    assert (executed.result(timeout=60), whispered.result(timeout=60)) == ("sent Hello", "hello")
    with pytest.raises((AttributeError, InvalidArguments), match="shout"):
        letter.as_job_of(fleet_at_work.recruiter).in_background().shout()


def test_m2_wrong_arguments_fail_at_the_call_and_nothing_is_stored(fleet_at_work: Fleet) -> None:
    assert add(1, 2) == 3, "a plain call runs here"
    before = fleet_at_work.recruiter.jobs.count(task="add").number

    with pytest.raises(InvalidArguments):
        add.enqueue("one", 2)  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments):
        add.enqueue(1)  # type: ignore[call-arg]

    assert fleet_at_work.recruiter.jobs.count(task="add").number == before


def test_m3_a_background_job_runs_once(fleet_at_work: Fleet) -> None:
    jobs = [record.enqueue(str(fleet_at_work.folder), "m3", str(number)) for number in range(50)]

    assert add_async.enqueue(20, 22).result(timeout=60) == 42
    for job in jobs:
        job.wait(timeout=60)
    assert sorted(map(int, lines(fleet_at_work.folder, "m3"))) == list(range(50))


@pytest.mark.usefixtures("fleet_at_work")
def test_m4_a_scheduled_job_never_starts_early() -> None:
    moment = datetime.now(UTC) + timedelta(seconds=1)

    at = add.job(1, 1).schedule_at(moment).in_background().execute()
    later = add.job(1, 1).schedule_in("1s").enqueue()

    for ended in (at.wait(timeout=60), later.wait(timeout=60)):
        assert ended.last_execution is not None
        assert ended.last_execution.started_at is not None
        assert ended.last_execution.started_at >= ended.scheduled_at >= moment - timedelta(milliseconds=50)


def test_m5_an_optimistic_job_runs_here_and_retries_in_the_background(fleet_at_work: Fleet) -> None:
    recruiter, folder = fleet_at_work.recruiter, str(fleet_at_work.folder)

    done = Letter(folder, "M5").as_job_of(recruiter).execute()
    assert recruiter.find(done.id).state == "succeeded", "before the call returned"
    without_policy = fail.job().here().execute()
    assert recruiter.find(without_policy.id).state == "failed"
    waiting = fail.job().retry_with_policy(RetryManyTimes(1, "1 hour")).here().execute()
    assert recruiter.find(waiting.id).state == "waiting"


def test_m6_a_worker_on_a_group_takes_only_that_group(fleet_at_work: Fleet) -> None:
    bootstrap = str(mission.__file__)
    worker = fleet_at_work.start("start", "worker", "--bootstrap", bootstrap, "--work-on", "elsewhere")
    worker.says("joined the roster")

    jobs = [add.job(1, 1).in_group(group).enqueue() for group in ("elsewhere", "generic")]

    workers = {entry["worker"]: entry["groups"] for entry in fleet_at_work.command("worker", "list")}
    for job in jobs:
        execution = job.wait(timeout=60).last_execution
        assert execution is not None
        assert workers[str(execution.worker)] in (["defaults", "generic", "shared"], ["elsewhere"])
        if job is jobs[1]:
            assert workers[str(execution.worker)] != ["elsewhere"]
    with pytest.raises(InvalidName):
        add.job(1, 1).in_group(["a", "b"])  # type: ignore[arg-type]
    assert worker.stop() == 0


def test_m7_tags_of_job_and_workable_are_merged(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    builder = Letter(str(fleet_at_work.folder), "M7").as_job_of(recruiter)
    job = builder.tagged_as("post", "m7").in_background().execute()

    job.wait(timeout=60)

    assert sorted(recruiter.find(job.id).tags) == ["letter", "m7", "post"]
    assert [found.id for found in recruiter.jobs.list(tag="m7")] == [job.id]


def test_m8_urn_and_provenance_name_the_scheduler_or_the_recovered_job(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    failed = fail.job().with_urn("order:7").enqueue()
    failed.wait(timeout=60)

    again = recruiter.recover(failed.id)
    assert (again.wait(timeout=60).recovered_from, recruiter.find(again.id).urn) == (failed.id, "order:7")
    scheduler = add.job(1, 1).repeat_with_policy(Cron("0 6 1 1 *")).with_urn("m8").create()
    occurrence = scheduler.run_now()
    assert occurrence.wait(timeout=60).urn == "m8"
    scheduler.remove()


def test_m9_priority_decides_inside_a_group_and_age_among_equals(fleet_at_work: Fleet) -> None:
    folder = str(fleet_at_work.folder)
    jobs = [
        record.job(folder, "m9", f"{priority}/{number}").in_group("m9").with_priority(priority).enqueue()
        for number in range(5)
        for priority in (0, 5)
    ]
    worker = fleet_at_work.start("start", "worker", "--bootstrap", str(mission.__file__), "--work-on", "m9")
    for job in jobs:
        job.wait(timeout=60)
    assert worker.stop() == 0

    expected = [f"{priority}/{number}" for priority in (5, 0) for number in range(5)]
    assert lines(fleet_at_work.folder, "m9") == expected


def test_m10_fifty_concurrent_creators_make_one_job(fleet_at_work: Fleet) -> None:
    data = {"folder": str(fleet_at_work.folder), "name": "m10", "line": "once"}
    turned = dict(reversed(data.items()))

    with ThreadPoolExecutor(50) as pool:
        handles = list(
            pool.map(lambda n: fleet_at_work.recruiter.create("record", turned if n % 2 else data), range(50))
        )

    assert sum(handle.created for handle in handles) == 1
    assert len({handle.id for handle in handles}) == 1
    handles[0].wait(timeout=60)
    assert lines(fleet_at_work.folder, "m10") == ["once"]
    assert fleet_at_work.recruiter.create("record", data, id="m10 again").created


@pytest.mark.usefixtures("fleet_at_work")
def test_m11_a_bad_item_of_a_bulk_is_named_and_stops_no_other() -> None:
    calls: list[Any] = [(1, 1), ("bad", 1), (2, 2)]

    with pytest.raises((JobsRefused, InvalidArguments)) as refused:
        add.enqueue_many(calls)

    assert "1" in str(refused.value)
    handles = add.create_many([(110, 1), (110, 1), (111, 1)])
    assert [handle.created for handle in handles] == [True, False, True]


@pytest.mark.usefixtures("fleet_at_work")
def test_m11_a_bulk_takes_jobs_whose_arguments_are_checked_where_they_are_written() -> None:
    handles = add.enqueue_many([add.job(1, 1), add.job(a=2, b=3)])
    assert [handle.result(timeout="20s") for handle in handles] == [2, 5]

    jobs: list[Any] = [add.job(1, 1).in_group("mail"), with_defaults.job()]
    answers = add.enqueue_many(jobs, errors="return")
    assert ["without options of its own" in str(answer) for answer in answers] == [True, True]


def test_m12_and_m13_options_come_from_the_task_and_the_job_can_change_them(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    plain, own = with_defaults.enqueue(), with_defaults.job().owned_by("m12").with_priority(1).timeout("1m").enqueue()
    found, changed = recruiter.find(plain.id), recruiter.find(own.id)

    assert (found.group, found.priority, found.tags, found.timeout) == ("defaults", 7, ("a", "b"), 300.0)
    assert (changed.priority, changed.timeout, changed.owner) == (1, 60.0, "m12")
    assert [job.id for job in recruiter.jobs.list(owner="m12")] == [own.id]
    row = fleet_at_work.command("job", "show", str(own.id))
    assert row["needs"] == {"proc": 0.5}
    for job in (plain, own):
        job.wait(timeout=60)


def test_m14_ready_made_workables_do_what_their_names_promise(fleet_at_work: Fleet) -> None:
    def ended(workable: Any) -> ArchivedJob:
        handle: Any = workable.as_job_of(fleet_at_work.recruiter).in_background().execute()
        archived: ArchivedJob = handle.wait(timeout=60)
        return archived

    assert ended(ShellCommand(["echo", "hello"])).result["stdout"] == "hello\n"
    assert ended(LazyBones.wait_for("1ms")).done
    assert ended(AlwaysSucceed()).done
    assert not ended(AlwaysFail()).done
    assert not ended(FailsInConstructor(fails=False)).done
    assert ended(ExitAbruptly()).why == "crashed-too-many-times"


def test_m15_a_job_of_a_rolled_back_transaction_never_existed(fleet_at_work: Fleet) -> None:
    client: MongoClient[Any]
    with MongoClient(fleet_at_work.target) as client, client.start_session() as session:
        session.start_transaction()
        lost = add.job(1, 1).enqueue(session=session)
        session.abort_transaction()
        with session.start_transaction():
            kept = add.job(1, 1).enqueue(session=session)

    assert kept.result(timeout=60) == 2
    with pytest.raises(JobNotFound):
        fleet_at_work.recruiter.find(lost.id)


def test_m16_a_plain_document_is_a_job_and_a_malformed_one_harms_nothing(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    client: MongoClient[Any]
    with MongoClient(fleet_at_work.target) as client:
        scheduled: Collection[dict[str, Any]] = client.get_default_database()["recruiter.scheduled"]
        scheduled.insert_one({"_id": "plain", "task": "add", "args": {"a": 2, "b": 3}})
        scheduled.insert_one({"_id": "odd", "tusk": "add"})
        now = datetime.now(UTC)
        full = {"group": "generic", "priority": 0, "attempts": 0, "created_at": now, "scheduled_at": now}
        lane = {"lane": "generic/record"}  # of another task
        scheduled.insert_one({"_id": "wrong lane", "task": "add", "args": {"a": 4, "b": 5}, **full, **lane})

    assert recruiter.handle("plain").result(timeout=60) == 5
    assert recruiter.handle("wrong lane").result(timeout=60) == 9
    eventually(lambda: recruiter.find("odd").state == "failed")
    odd = recruiter.find("odd")
    assert isinstance(odd, ArchivedJob)
    assert "malformed" in odd.why


@pytest.mark.usefixtures("fleet_at_work")
def test_a_job_with_two_ids_of_one_producer_is_refused() -> None:
    add.job(1, 1).with_id("taken").schedule_in("1h").enqueue()
    with pytest.raises(InvalidJob, match="taken"):
        add.job(1, 1).with_id("taken").schedule_in("1h").enqueue()
