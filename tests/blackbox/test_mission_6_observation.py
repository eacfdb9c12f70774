"""Section 6 of the mission, observation: each row on a fleet of real processes."""

from __future__ import annotations

import json
from typing import Any

from recruiter import JobHandle, RetryManyTimes
from tests.applications import mission
from tests.applications.mission import add, fail, hold, lines
from tests.blackbox.conftest import Fleet
from tests.cli_here import here
from tests.conftest import eventually


def test_m56_analytics_equal_a_count_by_hand(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    done: list[JobHandle[Any]] = [add.job(1, 1).in_group("shared").enqueue() for _ in range(7)]
    failed: list[JobHandle[Any]] = [fail.job().in_group("shared").enqueue() for _ in range(3)]
    for job in [*done, *failed]:
        job.wait(timeout=60)
    recruiter.controls.pause_group("shared")
    add.job(1, 1).in_group("shared").enqueue()
    later = [add.job(1, 1).in_group("shared").schedule_in("1h").enqueue() for _ in range(2)]

    numbers = recruiter.analytics("shared", within="5 minutes")

    assert (numbers.jobs.queued, numbers.jobs.postponed, numbers.jobs.zombies) == (1, 2, 0)
    assert (numbers.ended["succeeded"], numbers.ended["failed"]) == (7, 3)
    assert numbers.throughput.value > 0
    assert numbers.latency.average >= 0
    assert numbers.execution_time.average >= 0
    shown = fleet_at_work.command("analytics", "--group", "shared")
    assert (shown["jobs"]["queued"], shown["jobs"]["postponed"]) == (1, 2)
    recruiter.jobs.cancel(group="shared", state="waiting")
    for job in later:
        job.wait(timeout=60)


def test_m57_and_m58_jobs_are_found_and_counted_by_what_is_known_of_them(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    retried: JobHandle[Any] = (
        fail.job().retry_with_policy(RetryManyTimes(2, 0)).tagged_as("m57").owned_by("ada").enqueue()
    )
    plain: list[JobHandle[Any]] = [add.job(n, n).tagged_as("m57").owned_by("bob").enqueue() for n in range(5)]
    for job in (retried, *plain):
        job.wait(timeout=60)

    assert [job.id for job in recruiter.jobs.list(tag="m57", attempts=3)] == [retried.id]
    assert recruiter.jobs.count(tag="m57", owner="bob").number == 5
    first = recruiter.jobs.list(tag="m57", limit=4)
    second = recruiter.jobs.list(tag="m57", limit=4, after=first.next)
    assert {job.id for job in (*first, *second)} == {job.id for job in (retried, *plain)}
    assert (len(first), len(second), second.next) == (4, 2, None)
    listed = fleet_at_work.command("job", "list", "--tag", "m57", "--owner", "bob")
    assert {str(job.id) for job in plain} == {row["id"] for row in listed}
    counted = fleet_at_work.command("job", "count", "--tag", "m57", "--state", "succeeded")
    assert counted["number"] == 5


def test_m58_a_full_document_has_the_arguments_and_a_minimal_one_has_not(fleet_at_work: Fleet) -> None:
    job = add.job(40, 2).enqueue()
    job.wait(timeout=60)

    shown = fleet_at_work.command("job", "show", str(job.id))

    assert (shown["args"], shown["result"], shown["state"]) == ({"a": 40, "b": 2}, 42, "succeeded")


def test_m59_logs_are_structured_and_name_process_and_job(fleet_at_work: Fleet) -> None:
    worker = fleet_at_work.start(
        "start", "worker", "--bootstrap", str(mission.__file__), "--work-on", "m59", "--log-format", "json"
    )
    worker.says("joined the roster")
    job = hold.job(str(fleet_at_work.folder), "m59").in_group("m59").enqueue()
    eventually(lambda: lines(fleet_at_work.folder, "m59"))
    fleet_at_work.over("m59")
    job.wait(timeout=60)
    assert worker.stop() == 0

    records = [json.loads(line) for line in worker.log.splitlines() if line.startswith("{")]
    assert records
    assert {"time", "level", "host", "pid", "program"} <= set(records[0])


def test_an_operator_reads_why_a_job_does_not_run(fleet_at_work: Fleet) -> None:
    job = add.job(1, 1).schedule_in("1h").enqueue()

    code, printed = here(fleet_at_work.target, "job", "show", str(job.id))

    assert code == 0
    assert "postponed" in printed
    assert fleet_at_work.recruiter.explain(job.id) in " ".join(printed.split())
