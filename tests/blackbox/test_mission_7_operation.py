"""Section 7 of the mission, operation: each row through the command line."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

from pymongo import MongoClient, monitoring
from pymongo.database import Database

from recruiter import Recruiter
from recruiter.testing import Sandbox
from tests.applications import mission
from tests.applications.mission import add, fail, hold, lines, record
from tests.blackbox.conftest import Fleet
from tests.cli_here import here
from tests.conftest import Process, eventually

BOOTSTRAP = str(mission.__file__)


def test_m60_every_option_of_the_seed_works_by_argument_environment_and_file(
    fleet_at_work: Fleet, tmp_path: Any
) -> None:
    start, target = fleet_at_work.start, fleet_at_work.target.replace("mission_", "mission_m60_")
    settings = tmp_path / "recruiter.toml"
    settings.write_text('lease_time = "2s"\nbackoff_from = "10ms"\n')
    leader = start(
        *("start", "recruiter", "--target", target, "--bootstrap", BOOTSTRAP, "--backoff-to", "1s"),
        *("--considered-dead-after", "10s", "--log-level", "info", "--config", str(settings)),
    )
    worker = start(
        *("start", "worker", "--target", target, "--bootstrap", BOOTSTRAP, "--work-on", "mail"),
        *("--memory-limit", "512MiB", "--log-level", "info"),
        RECRUITER_CONSIDERED_DEAD_AFTER="10s",
    )
    cleaner = start(
        *("start", "cleaner", "--target", target, "--clean-after", "5 days"),
        *("--wait-at-least", "1s", "--wait-at-most", "1m"),
    )
    worker.says("joined the roster")
    leader.says("is the leader now")
    cleaner.says("keeps the archive small")

    for process in (worker, cleaner, leader):
        assert process.stop() == 0
    host = target.split("/")[2]
    assert Recruiter(host).target.uri.startswith(f"mongodb://{host}")
    code, printed = here(target, "start", "worker", "--no-such-option", "1")
    assert (code, "--no-such-option" in printed) == (2, True)


def test_m62_a_worker_at_its_memory_limit_restarts_and_no_job_is_lost(fleet_at_work: Fleet) -> None:
    worker = fleet_at_work.start(
        "start", "worker", "--bootstrap", BOOTSTRAP, "--work-on", "m62", "--memory-limit", "1MiB"
    )
    worker.says("joined the roster")

    jobs = [record.job(str(fleet_at_work.folder), "m62", str(n)).in_group("m62").enqueue() for n in range(5)]

    assert all(job.wait(timeout=60).done for job in jobs)
    assert sorted(map(int, lines(fleet_at_work.folder, "m62"))) == list(range(5))


def test_m63_the_cleaner_removes_old_jobs_of_every_outcome(fleet_at_work: Fleet) -> None:
    target = fleet_at_work.target.replace("mission_", "mission_m63_")
    with Recruiter(target) as recruiter:
        recruiter.prepare()
        mission.recruiter.point_at(target)
        try:
            add.job(1, 1).here().execute()
            fail.job().here().execute()
        finally:
            mission.recruiter.point_at(fleet_at_work.target)
        assert recruiter.jobs.count().number == 2

        fleet_at_work.start(
            *("start", "cleaner", "--target", target, "--clean-after", "0.1s"),
            *("--wait-at-least", "0.1s", "--wait-at-most", "0.2s"),
        )

        eventually(lambda: recruiter.jobs.count().number == 0)


def test_m64_lists_are_read_through_indexes_that_were_made_by_themselves(fleet_at_work: Fleet) -> None:
    client: MongoClient[Any]
    with MongoClient(fleet_at_work.target) as client:
        database: Database[Any] = client.get_default_database()
        for name in ("scheduled", "archived"):
            assert len(list(database[f"recruiter.{name}"].list_indexes())) > 1
        database.command("profile", 2)
        recruiter = fleet_at_work.recruiter
        add.job(1, 1).tagged_as("m64").owned_by("ada").enqueue().wait(timeout=60)
        recruiter.jobs.list(task="add", state="failed")
        recruiter.jobs.list(tag="m64")
        recruiter.jobs.list(owner="ada", group="generic")
        recruiter.analytics()
        database.command("profile", 0)
        slow = {"ns": {"$regex": "recruiter\\.(scheduled|archived)$"}, "planSummary": "COLLSCAN"}
        assert [entry["command"] for entry in database["system.profile"].find(slow)] == []


def test_m65_no_uri_option_weakens_the_write_concern(fleet_at_work: Fleet) -> None:
    commands: list[Any] = []

    class Heard(monitoring.CommandListener):
        def started(self, event: monitoring.CommandStartedEvent) -> None:
            if event.command_name == "insert":
                commands.append(dict(event.command))

        def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...
        def failed(self, event: monitoring.CommandFailedEvent) -> None: ...

    client: MongoClient[Any]
    weak = fleet_at_work.target + "&w=0&journal=false"
    with MongoClient(weak, event_listeners=[Heard()]) as client, Recruiter(client) as recruiter:
        assert recruiter.job("add", [1, 1]).enqueue().result(timeout=60) == 2

    concerns = [command["writeConcern"] for command in commands if "writeConcern" in command]
    assert concerns
    assert all(concern == {"w": "majority", "j": True} for concern in concerns)


def test_m66_flush_runs_all_queued_jobs_in_schedule_order_and_reports_each(fleet_at_work: Fleet) -> None:
    target = fleet_at_work.target.replace("mission_", "mission_m66_")
    with Recruiter(target) as recruiter:
        ran: list[int] = []
        task = recruiter.task(name="note_down")(lambda number: ran.append(number))
        for number, delay in ((2, "2h"), (1, "1h"), (0, "0s")):
            task.job(number).schedule_in(delay).enqueue()

        reports = recruiter.flush_jobs_synchronously()

        assert ran == [0, 1, 2]
        assert [report.done for report in reports] == [True] * 3


def test_m67_the_sandbox_has_a_stopped_clock_and_assertions(fleet_at_work: Fleet) -> None:
    application = Recruiter()
    greet = application.task(name="greet")(lambda name: f"hello {name}")
    sandbox = Sandbox(application, fleet_at_work.target.replace("mission_", "mission_m67_"))

    greet.job("ada").schedule_in("1h").enqueue()

    sandbox.assert_enqueued(greet, "ada")
    assert sandbox.run_due() == []
    sandbox.stop_clock()
    sandbox.move_clock("1h")
    assert [report.result for report in sandbox.run_due()] == ["hello ada"]
    sandbox.close()


def _ended_after_a_signal(process: Process) -> bool:
    process.signal(signal.SIGTERM)
    return process.popen.poll() is not None


def test_m68_and_m48_a_second_signal_stops_a_worker_at_once(fleet_at_work: Fleet) -> None:
    worker = fleet_at_work.start(
        "start",
        "worker",
        "--bootstrap",
        BOOTSTRAP,
        "--work-on",
        "m68",
        "--grace",
        "10m",
        "--considered-dead-after",
        "3s",
    )
    worker.says("joined the roster")
    jobs = [hold.job(str(fleet_at_work.folder), f"m68-{n}").in_group("m68").enqueue() for n in range(3)]
    eventually(lambda: lines(fleet_at_work.folder, "m68-0"))

    worker.signal(signal.SIGTERM)
    worker.says("a second signal ends everything immediately")
    eventually(partial(_ended_after_a_signal, worker))

    again = fleet_at_work.start("start", "worker", "--bootstrap", BOOTSTRAP, "--work-on", "m68")
    again.says("joined the roster")
    for n in range(3):
        fleet_at_work.over(f"m68-{n}")
    assert all(job.wait(timeout=60).done for job in jobs)
    for command in (["job", "list"], ["worker", "list"], ["scheduler", "list"], ["analytics"], ["doctor"]):
        code, printed = here(fleet_at_work.target, *command)
        assert code in (0, 1), printed
        assert printed.strip()
