"""`recruiter import apscheduler` reads a store that APScheduler itself has written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from recruiter import Cron, Every, Recruiter
from recruiter.domain.arguments.values import from_bson
from recruiter.domain.schedule.scheduler import SchedulePolicy
from recruiter.store.connection import Target
from tests.acceptance.test_import import address, imported, left
from tests.acceptance.test_import import origin as origin

pytestmark = pytest.mark.usefixtures("store")  # prepared

ROME = ZoneInfo("Europe/Rome")
FIRST_RUN = datetime(2026, 1, 1, 0, 2, 3, tzinfo=ROME)
THEN = datetime(2038, 1, 19, 3, 14, 7, tzinfo=ROME)

SCHEDULES: dict[str, tuple[dict[str, Any], SchedulePolicy]] = {
    "report:daily": ({"trigger": "cron", "hour": 6}, Cron("0 6 * * *", tz=ROME)),
    "workdays": (
        {"trigger": "cron", "day_of_week": "mon-fri", "hour": "6,18-20/2"},
        Cron("0 6,18-20/2 * * mon-fri", tz=ROME),
    ),
    "sundays": ({"trigger": CronTrigger.from_crontab("*/15 * * * sun", ROME)}, Cron("*/15 * * * sun", tz=ROME)),
    "month-end": ({"trigger": "cron", "day": "last"}, Cron("0 0 L * *", tz=ROME)),
    "winter": ({"trigger": "cron", "month": "jan-mar", "day": 1}, Cron("0 0 1 jan-mar *", tz=ROME)),
    "monday": ({"trigger": "cron", "day_of_week": "0", "timezone": "UTC"}, Cron("0 0 * * mon")),
    "weekend": ({"trigger": "cron", "day_of_week": "5-6"}, Cron("0 0 * * sat,sun", tz=ROME)),
    "odd days": ({"trigger": "cron", "day_of_week": "*/2"}, Cron("0 0 * * mon,wed,fri,sun", tz=ROME)),
    "often": ({"trigger": "interval", "minutes": 5, "start_date": FIRST_RUN}, Every("5 minutes", anchor=FIRST_RUN)),
    "second-friday": ({"trigger": "cron", "day": "2nd fri"}, Cron("0 0 * * fri#2", tz=ROME)),
    "last-friday": ({"trigger": "cron", "day": "last fri"}, Cron("0 0 * * 5L", tz=ROME)),
    "ticks": ({"trigger": "cron", "second": "*/5"}, Cron("*/5 * * * * *", tz=ROME)),
}


@pytest.fixture
def scheduler(origin: Any, target: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackgroundScheduler]:
    """A scheduler of APScheduler that runs no job; its functions are in the module `shop`."""
    shop = ModuleType("shop")
    exec("def daily_report(*args, **kwargs): return 'sent'", vars(shop))
    shop.daily_report.__module__ = "shop"
    monkeypatch.setitem(sys.modules, "shop", shop)
    found = BackgroundScheduler(timezone=ROME)
    store = address(target)
    found.add_jobstore("mongodb", database=Target.parse(store).database, host=store)
    found.start(paused=True)
    yield found
    if found.running:
        found.shutdown()


def test_every_schedule_of_a_real_store_arrives_as_it_was(
    scheduler: BackgroundScheduler, target: str, recruiter: Recruiter
) -> None:
    for urn, (options, _) in SCHEDULES.items():
        scheduler.add_job("shop:daily_report", id=urn, **options)

    report = imported(target, "apscheduler")

    assert left(report) == {}
    found = {each.urn: each for each in recruiter.schedulers()}
    assert {urn: each.schedule for urn, each in found.items()} == {
        urn: recruiter.schedules.dump(policy) for urn, (_, policy) in SCHEDULES.items()
    }
    assert {each.template.task for each in found.values()} == {"daily_report"}
    for urn in SCHEDULES:  # the next run is the one that APScheduler would have made
        there = scheduler.get_job(urn).next_run_time.astimezone(UTC).replace(microsecond=0)
        assert found[urn].next_at is not None
        assert abs(found[urn].next_at - there) <= timedelta(minutes=5 if urn == "often" else 1), urn


def test_dates_and_arguments_of_a_real_store_arrive_as_they_were(
    scheduler: BackgroundScheduler, target: str, recruiter: Recruiter
) -> None:
    when = datetime(2030, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))
    scheduler.add_job("shop:daily_report", "date", run_date=THEN, id="in Rome", args=["hello"])
    scheduler.add_job("shop:daily_report", "date", run_date=THEN, id="with a date", kwargs={"when": when})

    report = imported(target, "apscheduler")

    assert left(report) == {}
    jobs = {job.id: job for job in recruiter.jobs.list()}
    assert {job.scheduled_at for job in jobs.values()} == {THEN.astimezone(UTC)}
    assert jobs["apscheduler:in Rome"].args == ["hello"]
    assert from_bson(jobs["apscheduler:with a date"].args) == {"when": when}


def test_a_paused_job_of_a_real_store_stays_paused(
    scheduler: BackgroundScheduler, target: str, recruiter: Recruiter
) -> None:
    scheduler.add_job("shop:daily_report", "interval", minutes=5, id="often")
    scheduler.add_job("shop:daily_report", "date", run_date=THEN, id="then")
    scheduler.pause_job("often")
    scheduler.pause_job("then")

    report = imported(target, "apscheduler")

    assert left(report) == {"then": "it is paused there: resume it, and import again"}
    assert recruiter.scheduler("often").find().paused is not None
    # when a person resumes it here, then importing again does not pause it
    recruiter.scheduler("often").resume()
    imported(target, "apscheduler")
    assert recruiter.scheduler("often").find().paused is None


def test_parts_of_a_real_store_without_a_counterpart_are_named(scheduler: BackgroundScheduler, target: str) -> None:
    add = scheduler.add_job
    add("shop:daily_report", "interval", minutes=5, jitter=10, end_date=THEN, id="jitter")
    add("shop:daily_report", "cron", week=3, id="week")
    add("shop:daily_report", "cron", day=13, day_of_week="fri", id="friday 13")
    add("shop:daily_report", "cron", hour=1, timezone=timezone(timedelta(hours=2)), id="offset")
    add("shop:daily_report", OrTrigger([CronTrigger(hour=1), CronTrigger(hour=2)]), id="either")

    report = imported(target, "apscheduler")

    told = {line["id"].partition(":")[2]: line["told"] for line in report["documents"]}
    assert told["jitter"] == "not kept: end_date, jitter"
    assert "week=3" in told["week"]
    assert "has a day and a day of the week" in told["friday 13"]
    assert "has no name in the time zone database" in told["offset"]
    assert "OrTrigger" in told["either"]
