"""Section 2 of the mission, dispatch and execution: each row on a fleet of real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import psutil
import pytest

from recruiter import ResultTimeout, RetryManyTimes
from tests.applications import mission
from tests.applications.mission import add, hold, know_yourself, lines, program, program_that_stays, record, staged
from tests.blackbox.conftest import Fleet
from tests.conftest import eventually

BOOTSTRAP = str(mission.__file__)


def test_m17_five_recruiters_never_give_one_job_to_two_workers(fleet_at_work: Fleet) -> None:
    others = [fleet_at_work.start("start", "recruiter", "--bootstrap", BOOTSTRAP) for _ in range(4)]
    second = fleet_at_work.start("start", "worker", "--bootstrap", BOOTSTRAP)
    second.says("joined the roster")

    jobs = [record.enqueue(str(fleet_at_work.folder), "m17", str(number)) for number in range(200)]
    for job in jobs:
        assert job.wait(timeout=60).attempts == 1

    assert sorted(map(int, lines(fleet_at_work.folder, "m17"))) == list(range(200))
    for process in (second, *others):
        assert process.stop() == 0


def test_m18_another_recruiter_takes_over_after_a_kill_and_a_paused_leader_changes_nothing(
    fleet_at_work: Fleet,
) -> None:
    start = fleet_at_work.start
    target = fleet_at_work.target.replace("mission_", "mission_m18_")
    environment = {"RECRUITER_TARGET": target, "RECRUITER_LEASE_TIME": "1s"}
    first = start("start", "recruiter", **environment)
    first.says("is the leader now")
    second = start("start", "recruiter", **environment)
    worker = start("start", "worker", "--bootstrap", BOOTSTRAP, **environment)
    worker.says("joined the roster")

    first.signal(signal.SIGSTOP)
    second.says("is the leader now")
    mission.recruiter.point_at(target)
    try:
        assert add.enqueue(1, 1).result(timeout=60) == 2
        first.signal(signal.SIGCONT)
        first.says("is no longer the leader")
        second.signal(signal.SIGKILL)
        second.wait()
        assert add.enqueue(2, 2).result(timeout=60) == 4
    finally:
        mission.recruiter.point_at(fleet_at_work.target)


def test_m19_hooks_are_called_on_each_change_and_their_errors_harm_nothing(
    fleet_at_work: Fleet, tmp_path: Path
) -> None:
    assert lines(fleet_at_work.folder, "hooks") == ["became"], (fleet_at_work.folder / "process-0.log").read_text()
    target = fleet_at_work.target.replace("mission_", "mission_m19_")
    leader = fleet_at_work.start(
        "start", "recruiter", "--bootstrap", BOOTSTRAP, RECRUITER_TARGET=target, MISSION_HOOKS=str(tmp_path)
    )
    eventually(lambda: lines(tmp_path, "hooks") == ["became"])

    assert leader.stop() == 0

    assert lines(tmp_path, "hooks") == ["became", "stept back"]


def test_m20_the_roster_shows_each_worker_and_forgets_it_after_shutdown(fleet_at_work: Fleet) -> None:
    worker = fleet_at_work.start("start", "worker", "--bootstrap", BOOTSTRAP, "--work-on", "m20", "--concurrency", "3")
    worker.says("joined the roster")
    job = hold.job(str(fleet_at_work.folder), "m20").in_group("m20").enqueue()

    def entry() -> dict[str, object]:
        entries = {entry["pid"]: entry for entry in fleet_at_work.command("worker", "list")}
        found: dict[str, object] = entries[worker.pid]
        return found

    eventually(lambda: entry()["runs"])
    assert (entry()["groups"], entry()["slots"], entry()["host"]) == (["m20"], 3, os.uname().nodename)
    fleet_at_work.over("m20")
    job.wait(timeout=60)
    eventually(lambda: not entry()["runs"])
    assert worker.stop() == 0
    assert worker.pid not in {entry["pid"] for entry in fleet_at_work.command("worker", "list")}


def test_m22_a_worker_never_runs_more_jobs_than_it_has_slots(fleet_at_work: Fleet) -> None:
    worker = fleet_at_work.start("start", "worker", "--bootstrap", BOOTSTRAP, "--work-on", "m22")
    worker.says("joined the roster")
    jobs = [hold.job(str(fleet_at_work.folder), f"m22-{number}").in_group("m22").enqueue() for number in range(3)]

    for number, job in enumerate(jobs):
        eventually(partial(lines, fleet_at_work.folder, f"m22-{number}"))
        assert not any(lines(fleet_at_work.folder, f"m22-{later}") for later in range(number + 1, 3))
        fleet_at_work.over(f"m22-{number}")
        job.wait(timeout=60)
    assert worker.stop() == 0


def test_m23_to_m25_jobs_wait_for_resources_and_limits_and_the_report_equals_the_running_jobs(
    fleet_at_work: Fleet,
) -> None:
    recruiter, folder = fleet_at_work.recruiter, str(fleet_at_work.folder)
    recruiter.controls.set_limit("resource:licence", 1)
    recruiter.controls.set_limit("task:record", 1)
    worker = fleet_at_work.start(
        "start", "worker", "--bootstrap", BOOTSTRAP, "--work-on", "m23", "--processes", "3", "--resources", "licence=5"
    )
    worker.says("joined the roster")
    jobs = [hold.job(folder, f"m23-{n}").in_group("m23").needing(licence=1).enqueue() for n in range(2)]
    eventually(lambda: lines(fleet_at_work.folder, "m23-0") or lines(fleet_at_work.folder, "m23-1"))

    eventually(lambda: any("licence" in recruiter.explain(job.id) for job in jobs))
    rows = [row for row in fleet_at_work.command("limit", "resources") if row["resource"] == "licence"]
    assert {(row["limit"], row["used"], row["available"]) for row in rows} == {(1, 1, 0), (5, 1, 4)}, "fleet and host"
    assert add.job(1, 2).in_group("m23").enqueue().result(timeout=60) == 3, "others are not held up"
    impossible = add.job(1, 1).in_group("m23").needing(licence=9).enqueue()
    eventually(lambda: "9" in recruiter.explain(impossible.id) and "licence" in recruiter.explain(impossible.id))
    for number in range(2):
        fleet_at_work.over(f"m23-{number}")
    assert all(job.wait(timeout=60).done for job in jobs)
    recruiter.cancel(impossible.id)
    for subject in ("resource:licence", "task:record"):
        recruiter.controls.remove_limit(subject)
    assert worker.stop() == 0


def test_m26_a_task_that_no_worker_knows_is_never_taken_and_is_reported(fleet_at_work: Fleet) -> None:
    job = fleet_at_work.recruiter.job("unheard_of").enqueue()

    assert "no worker" in fleet_at_work.recruiter.explain(job.id)
    with pytest.raises(ResultTimeout):
        job.wait(timeout="0.5s")
    assert fleet_at_work.recruiter.find(job.id).attempts == 0
    fleet_at_work.recruiter.cancel(job.id)


def test_m27_jobs_run_in_the_calling_process_beside_a_fleet(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    recruiter.controls.pause_group("shared")
    jobs = [add.job(n, n).in_group("shared").enqueue() for n in range(20)]
    recruiter.controls.resume_group("shared")

    here = recruiter.run_all(add)

    assert all(job.wait(timeout=60).attempts == 1 for job in jobs)
    assert all(report.done for report in here)
    assert recruiter.run("add") is None


def test_m28_and_m29_stages_progress_and_log_are_visible_while_the_job_runs(fleet_at_work: Fleet) -> None:
    job = staged.enqueue(str(fleet_at_work.folder))
    recruiter = fleet_at_work.recruiter

    eventually(lambda: recruiter.find(job.id).stage == "store" and recruiter.find(job.id).progress == 0.8)
    running = recruiter.find(job.id)
    assert [line.text for line in running.log] == ["loading", "storing"]
    fleet_at_work.over("staged")
    ended = job.wait(timeout=60)
    assert ended.progress == 1.0
    stages = [entry.stage for entry in ended.status if entry.stage]
    assert (stages.index("load") < stages.index("store"), stages.count("load")) == (True, 1)
    assert [line.text for line in ended.log] == ["loading", "storing"]


def test_m30_a_subprocess_fails_clearly_and_dies_with_its_job(fleet_at_work: Fleet) -> None:
    assert program.enqueue("echo", "hello").result(timeout=60) == "hello\n"
    failed = program.enqueue("sh", "-c", "echo broken >&2; exit 4").wait(timeout=60)
    assert failed.last_execution is not None
    assert "code 4" in str(failed.last_execution.message)
    stays = program_that_stays.enqueue(str(fleet_at_work.folder))
    pid = int(eventually(lambda: lines(fleet_at_work.folder, "program.pid"))[0])

    fleet_at_work.recruiter.cancel(stays.id)

    assert stays.wait(timeout=60).why == "cancelled"
    eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.usefixtures("fleet_at_work")
def test_m31_a_job_knows_itself_and_can_enqueue_more() -> None:
    job = know_yourself.job().retry_with_policy(RetryManyTimes(1, 0)).enqueue()

    known = job.result(timeout=60)

    assert known["id"] == str(job.id)
    assert (known["attempt"], known["last"], known["before"]) == (2, True, "first")


@pytest.mark.usefixtures("fleet_at_work")
def test_m32_results_can_be_waited_for_sync_and_async() -> None:
    async def both() -> list[int]:
        job = await add.aenqueue(3, 4)
        return [await job.aresult(timeout=60), job.result(timeout=60)]

    assert asyncio.run(both()) == [7, 7]
    with pytest.raises(ResultTimeout):
        add.job(1, 1).schedule_in("1h").enqueue().result(timeout="0.1s")
