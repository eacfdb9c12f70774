"""Section 5 of the mission, repetition: each row on a fleet of real processes.

M53, occurrences missed during downtime, needs hours to pass: `tests/property/test_schedule.py`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from recruiter import Cron, Every, EveryMinutes, RetryManyTimes
from tests.applications.mission import record
from tests.blackbox.conftest import Fleet
from tests.cli_here import here
from tests.conftest import eventually

NEVER = Cron("0 6 1 1 *")


def test_m51_a_scheduler_created_twice_at_once_exists_once_and_is_updated_in_place(fleet_at_work: Fleet) -> None:
    job = record.job(str(fleet_at_work.folder), "m51", "line")

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: job.repeat_with_policy(NEVER).with_urn("m51").create(), range(10)))
    changed = job.repeat_with_policy(EveryMinutes(15)).retry_with_policy(RetryManyTimes(1, 5)).with_urn("m51").create()

    (row,) = [row for row in fleet_at_work.command("scheduler", "list") if row["urn"] == "m51"]
    assert "15" in str(row["schedule"])
    changed.remove()


def test_m52_each_occurrence_runs_once_with_two_recruiters(fleet_at_work: Fleet) -> None:
    fleet_at_work.start("start", "recruiter")
    scheduler = record.job(str(fleet_at_work.folder), "m52", "x").repeat_with_policy(Every("1s")).with_urn("m52")

    handle = scheduler.create()
    recruiter = fleet_at_work.recruiter
    eventually(lambda: recruiter.jobs.count(urn="m52", state="succeeded").number >= 3)
    handle.remove()

    moments = [job.scheduled_at for job in recruiter.jobs.iterate(urn="m52")]
    assert len(moments) == len(set(moments))


@pytest.mark.parametrize(
    ("zone", "expression", "after", "expected"),
    [
        ("Europe/Rome", "30 2 * * *", "2027-03-27T12:00", "2027-03-28T03:30"),
        ("Europe/Rome", "30 2 * * *", "2027-10-30T12:00", "2027-10-31T02:30"),
        ("America/New_York", "30 2 * * *", "2027-03-13T12:00", "2027-03-14T03:30"),
    ],
)
def test_m54_a_time_that_does_not_exist_runs_once_and_a_time_that_exists_twice_runs_once(
    zone: str, expression: str, after: str, expected: str
) -> None:
    policy = Cron(expression, tz=zone)

    moment = policy.next_after(datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC))
    assert moment is not None
    following = policy.next_after(moment)
    assert following is not None

    assert moment.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%dT%H:%M")[:13] == expected[:13]
    assert following - moment > timedelta(hours=20)


def test_m55_a_scheduler_is_listed_paused_resumed_run_and_removed(fleet_at_work: Fleet) -> None:
    target = fleet_at_work.target
    record.job(str(fleet_at_work.folder), "m55", "x").repeat_with_policy(NEVER).with_urn("m55").create()

    assert len(fleet_at_work.command("scheduler", "next", "m55")) > 0
    for word in ("pause", "resume", "run"):
        code, printed = here(target, "scheduler", word, "m55")
        assert code == 0, printed
    eventually(lambda: fleet_at_work.recruiter.jobs.count(urn="m55", state="succeeded").number == 1)
    assert here(target, "scheduler", "remove", "m55", "--yes")[0] == 0
    assert "m55" not in {row["urn"] for row in fleet_at_work.command("scheduler", "list")}
