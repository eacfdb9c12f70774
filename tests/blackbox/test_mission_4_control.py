"""Section 4 of the mission, control: each row on a fleet of real processes."""

from __future__ import annotations

import signal
from datetime import UTC, datetime

import pytest

from recruiter import InvalidFilter, JobNotFound, JobSucceeded, RecruiterError, RetryManyTimes
from tests.applications import mission
from tests.applications.mission import Letter, add, endless, fail, hold, lines
from tests.blackbox.conftest import Fleet
from tests.cli_here import here
from tests.conftest import eventually

BOOTSTRAP = str(mission.__file__)


def test_m44_a_cancelled_job_never_runs_or_really_stops(fleet_at_work: Fleet) -> None:
    recruiter, folder = fleet_at_work.recruiter, str(fleet_at_work.folder)
    waiting = add.job(1, 1).schedule_in("1h").enqueue()
    running = endless.enqueue(folder, "m44")
    eventually(lambda: lines(fleet_at_work.folder, "m44"))

    recruiter.cancel(waiting.id, by="ada", reason="no longer needed")
    recruiter.cancel(running.id)

    assert waiting.wait(timeout=60).why == running.wait(timeout=60).why == "cancelled"
    assert lines(fleet_at_work.folder, "m44")[1:] == ["JobCancelled"]
    done = add.enqueue(1, 1)
    done.wait(timeout=60)
    with pytest.raises(RecruiterError, match=r"ended|succeeded"):
        recruiter.cancel(done.id)
    many = [add.job(1, 1).tagged_as("m44").schedule_in("1h").enqueue() for _ in range(30)]
    recruiter.jobs.cancel(tag="m44")
    assert {job.wait(timeout=60).why for job in many} == {"cancelled"}


def test_m45_and_m50_finalizers_and_events_come_in_order_and_their_errors_change_nothing(fleet_at_work: Fleet) -> None:
    letter = Letter(str(fleet_at_work.folder), "m45")
    job = letter.as_job_of(fleet_at_work.recruiter).retry_with_policy(RetryManyTimes(1, 0)).in_background().explode()

    ended = job.wait(timeout=60)

    assert (ended.attempts, ended.why) == (2, "tried-too-many-times")
    assert lines(fleet_at_work.folder, "m45") == [
        "failure m45",
        "finalize m45",
        "failure m45",
        "last failure m45",
        "finalize m45",
    ]
    events = lines(fleet_at_work.folder, "m45.events")
    assert (events.count("job.started"), events.count("job.failure.last")) == (2, 1)


def test_m46_a_recovered_job_has_a_new_id_its_history_and_its_provenance(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    failed = fail.enqueue()
    failed.wait(timeout=60)

    moment = datetime(2040, 1, 1, tzinfo=UTC)
    later = recruiter.recover(failed.id, schedule_at=moment)

    found = recruiter.find(later.id)
    assert (found.recovered_from, found.scheduled_at, found.key) == (failed.id, moment, failed.id)
    assert recruiter.find(failed.id).state == "failed", "the old one stays"
    done = add.enqueue(1, 1)
    done.wait(timeout=60)
    with pytest.raises(JobSucceeded):
        recruiter.recover(done.id)


def test_m47_only_finished_jobs_are_removed_and_an_empty_filter_must_be_said_aloud(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    done = add.job(1, 1).tagged_as("m47").enqueue()
    done.wait(timeout=60)
    waiting = add.job(1, 1).tagged_as("m47").schedule_in("1h").enqueue()

    with pytest.raises(InvalidFilter):
        recruiter.jobs.remove()
    with pytest.raises(RecruiterError):
        recruiter.remove(waiting.id)
    recruiter.jobs.remove(tag="m47", state="succeeded")

    with pytest.raises(JobNotFound):
        recruiter.find(done.id)
    assert recruiter.find(waiting.id).state == "waiting"
    recruiter.cancel(waiting.id)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_m48_a_worker_that_is_asked_to_stop_hands_back_its_jobs_unharmed(
    fleet_at_work: Fleet, number: signal.Signals
) -> None:
    group = f"m48-{number.name}"
    worker = fleet_at_work.start("start", "worker", "--bootstrap", BOOTSTRAP, "--work-on", group, "--grace", "0.2s")
    worker.says("joined the roster")
    jobs = [hold.job(str(fleet_at_work.folder), f"{group}-{n}").in_group(group).enqueue() for n in range(3)]
    eventually(lambda: any(lines(fleet_at_work.folder, f"{group}-{n}") for n in range(3)))

    worker.signal(number)
    assert worker.wait() == 0

    again = fleet_at_work.start("start", "worker", "--bootstrap", BOOTSTRAP, "--work-on", group)
    again.says("joined the roster")
    for n in range(3):
        fleet_at_work.over(f"{group}-{n}")
    for job in jobs:
        ended = job.wait(timeout=60)
        assert (ended.done, ended.attempts) == (True, 1), "no attempt was burnt"


def test_m49_a_paused_group_starts_no_new_job_and_all_starts_can_be_blocked(fleet_at_work: Fleet) -> None:
    recruiter = fleet_at_work.recruiter
    assert here(fleet_at_work.target, "group", "pause", "shared", "--reason", "maintenance")[0] == 0
    paused = add.job(1, 1).in_group("shared").enqueue()
    assert add.enqueue(1, 1).result(timeout=60) == 2
    assert "maintenance" in recruiter.explain(paused.id)

    recruiter.controls.block_starts(reason="all of it")
    recruiter.controls.resume_group("shared")
    assert "all of it" in recruiter.explain(paused.id)
    assert recruiter.find(paused.id).attempts == 0
    recruiter.controls.allow_starts()
    assert paused.result(timeout=60) == 2
