"""Section 8 of the mission, beyond the seeds: each row that a fleet and the command line can show.

The others have suites of their own: M75, M87, M88 the console (`tests/web`), M77 `tests/contrib`, M78
`tests/acceptance/test_development.py`, M80 and M89 the proof and the benchmarks, M90 `make versions`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from recruiter import FlowState, JobReport, Recruiter, RetryManyTimes, current_job
from recruiter.crypto import AesGcm
from tests.applications import mission
from tests.applications.mission import add, durable, fail, fail_until, hold, lines, transfer
from tests.blackbox.conftest import Fleet
from tests.conftest import eventually


def test_m69_a_flow_fans_out_and_in_and_is_resumed_by_recovering_a_step(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    flow = recruiter.flow("m69")
    first = flow.add(add, 1, 1)
    parts = [flow.add(add, first.result, number) for number in range(5)]
    total = flow.add(add, parts[0].result, parts[4].result, after=parts)
    handle = flow.start()
    assert handle.wait(timeout=60).state == FlowState.SUCCEEDED
    assert recruiter.handle(total.id).result(timeout=60) == 8

    broken = recruiter.flow("m69 broken")
    step = broken.add(fail)
    after = broken.add(add, 1, 1, after=step)
    started = broken.start()
    assert started.wait(timeout=60).state == FlowState.FAILED
    assert recruiter.find(after.id).state == "failed"
    started.retry()
    assert started.wait(timeout=60).state == FlowState.FAILED, "the step fails again"


def test_m70_steps_sleeps_and_signals_survive_and_free_the_slot(fleet_at_work: Fleet) -> None:
    job = durable.enqueue(str(fleet_at_work.folder), "m70")
    recruiter = fleet_at_work.recruiter

    eventually(lambda: recruiter.find(job.id).waits_for is not None)
    assert recruiter.find(job.id).locked_by is None
    recruiter.signal(job.id, "approved", "by ada")

    assert job.result(timeout=60) == "1 by ada"
    assert lines(fleet_at_work.folder, "m70") == ["once"]


def test_m71_a_jobs_own_writes_commit_once_with_its_end(fleet_at_work: Fleet) -> None:
    client: MongoClient[Any]
    with MongoClient(fleet_at_work.target) as client:
        accounts: Collection[Any] = client.get_default_database()["accounts"]
        accounts.insert_one({"_id": "ada", "balance": 0})
        jobs = [transfer.enqueue(1) for _ in range(40)]
        assert all(job.wait(timeout=60).done for job in jobs)
        assert accounts.find_one({"_id": "ada"}) == {"_id": "ada", "balance": 40}


@pytest.mark.usefixtures("fleet_at_work")
def test_m72_fifty_producers_make_one_unique_job_and_debounce_keeps_the_last_arguments() -> None:
    def produce(number: int) -> bool:
        return add.job(number, 0).unique("m72").schedule_in("1h").enqueue().created

    with ThreadPoolExecutor(50) as pool:
        assert sum(pool.map(produce, range(50))) == 1
    debounced = [add.job(number, 0).debounce("0.5s", key="m72").enqueue() for number in range(5)]
    assert len({job.id for job in debounced}) == 1
    assert debounced[0].result(timeout=60) == 4
    expired = add.job(1, 1).in_group("nobody").expires_in("0.1s").enqueue()
    assert expired.wait(timeout=60).why == "expired"


def test_m73_a_tenant_with_few_jobs_is_not_starved(fleet_at_work: Fleet) -> None:
    recruiter, folder = fleet_at_work.recruiter, str(fleet_at_work.folder)
    recruiter.controls.share_group("shared", "owner")
    recruiter.controls.pause_group("shared")
    task = mission.record
    big = [task.job(folder, "m73", "big").in_group("shared").owned_by("big").enqueue() for _ in range(200)]
    small = [task.job(folder, "m73", "small").in_group("shared").owned_by("small").enqueue() for _ in range(5)]
    recruiter.controls.resume_group("shared")
    for job in (*big, *small):
        job.wait(timeout=60)

    order = lines(fleet_at_work.folder, "m73")
    assert max(place for place, tenant in enumerate(order) if tenant == "small") < 100


def test_m74_arguments_are_unreadable_in_the_database(fleet_at_work: Fleet) -> None:
    target = fleet_at_work.target.replace("mission_", "mission_m74_")
    with Recruiter(target, codec=AesGcm({"k": b"0" * 32}, current="k"), clear=["order"]) as recruiter:
        pay = recruiter.task(name="pay")(lambda order, card: f"{order} {card[-4:]}")
        job = pay.job(7, "4111-1111").enqueue()
        client: MongoClient[Any]
        with MongoClient(target) as client:
            stored = client.get_default_database()["recruiter.scheduled"].find_one({"_id": job.id})
        assert "4111-1111" not in str(stored)
        (report,) = recruiter.run_all("pay")
        assert report.result == "7 1111"


def test_m79_and_m85_limits_in_code_hold_per_key(fleet_at_work: Fleet) -> None:
    target = fleet_at_work.target.replace("mission_", "mission_m85_")
    with Recruiter(target) as recruiter:
        running, most = {"a": 0, "b": 0}, {"a": 0, "b": 0}
        lock = threading.Lock()

        @recruiter.task(limits={"customer": 1}, keep_failed="30 days")
        def call(customer: str) -> None:
            with lock:
                running[customer] += 1
                most[customer] = max(most[customer], running[customer])
            with lock:
                running[customer] -= 1

        for _ in range(5):
            for customer in ("a", "b"):
                call.job(customer).limited_by(customer=customer).enqueue()
        reports: list[JobReport] = recruiter.run_all(call)
        assert len(reports) == 10
        assert most == {"a": 1, "b": 1}


def test_m83_the_key_survives_retries_and_recovery(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    folder = str(fleet_at_work.folder)
    job = fail_until.job(folder, "m83", 9).retry_with_policy(RetryManyTimes(1, 0)).enqueue()
    job.wait(timeout=60)

    again = recruiter.recover(job.id)
    again.wait(timeout=60)
    third = recruiter.recover(again.id)

    assert third.wait(timeout=60).key == recruiter.find(again.id).key == job.id
    assert not bool(current_job)


def test_m84_a_waiting_job_is_rescheduled_reprioritised_and_run_now(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    job = add.job(20, 22).schedule_in("1h").enqueue()

    recruiter.reprioritise(job.id, 9, by="ada")
    recruiter.reschedule(job.id, in_="2h", by="ada")
    assert recruiter.find(job.id).priority == 9
    recruiter.run_now(job.id, by="ada")

    assert job.result(timeout=60) == 42


def test_m91_the_history_tells_every_change_in_order(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    job = hold.job(str(fleet_at_work.folder), "m91").schedule_in("1h").enqueue()
    recruiter.reprioritise(job.id, 3, by="ada")
    recruiter.run_now(job.id, by="bob")
    fleet_at_work.over("m91")
    job.wait(timeout=60)

    history = recruiter.find(job.id).history
    moments = [entry.at for entry in history]

    assert moments == sorted(moments)
    assert {"ada", "bob"} <= {str(entry.by) for entry in history}
    assert len(fleet_at_work.command("job", "show", str(job.id))["history"]) == len(history)
