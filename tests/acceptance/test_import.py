"""`recruiter import`: documents as Agenda, Recruiter for PHP and APScheduler write them become jobs and schedulers."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId, json_util

from recruiter import Cron, Every, EveryMinutes, Recruiter, RetryManyTimes, TimeTable
from recruiter.domain.arguments.values import from_bson
from recruiter.domain.migration import NotMoved, from_apscheduler
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.cli_here import here

ROME = "Europe/Rome"
THEN = datetime(2038, 1, 19, tzinfo=UTC)


@pytest.fixture
def origin(target: str) -> Iterator[Any]:
    """The database of the other program."""
    place = Target.parse(target).in_database(f"{Target.parse(target).database}_origin")
    with closing(Store(place)) as store:
        yield store.client[place.database]
        store.client.drop_database(place.database)


def address(target: str) -> str:
    parsed = Target.parse(target)
    return parsed.in_database(f"{parsed.database}_origin").uri


def imported(target: str, source: str, *options: str) -> dict[str, Any]:
    code, said = here(target, "import", source, address(target), "--output", "json", *options)
    assert code == 0, said
    return dict(json.loads(said))


def left(report: dict[str, Any]) -> dict[str, str]:
    return {line["id"].partition(":")[2]: line["told"] for line in report["documents"] if line["what"] == "left"}


def test_jobs_of_agenda_are_imported_or_named_with_a_reason(origin: Any, target: str, recruiter: Recruiter) -> None:
    # given what Agenda has: jobs that wait, repeat, run, have ended, and one that cannot be
    waiting, repeating, running, ended = (ObjectId() for _ in range(4))
    base = {"type": "single", "priority": 0, "lockedAt": None, "data": None, "nextRunAt": THEN}
    origin.agendaJobs.insert_many(
        [
            {**base, "_id": waiting, "name": "send welcome", "data": {"to": "ada@example.org"}, "priority": 10},
            {
                **base,
                "_id": repeating,
                "name": "report",
                "repeatInterval": "0 6 * * *",
                "repeatTimezone": "Europe/Rome",
            },
            {**base, "_id": running, "name": "report", "lockedAt": THEN},
            {**base, "_id": ended, "name": "report", "nextRunAt": None, "lastFinishedAt": THEN},
            {**base, "_id": "odd", "name": "odd", "repeatInterval": "on tuesdays"},
            {**base, "_id": "ms", "name": "tick", "repeatInterval": 300_000, "skipDays": "6,0", "endDate": THEN},
        ]
    )

    # when a dry run says what would be done, then nothing is stored
    dry = imported(target, "agenda", "--dry-run")
    assert (dry["dry_run"], dry["counts"]) == (True, {"job": 1, "scheduler": 2, "left": 3})
    assert (recruiter.store.scheduled.waiting(), recruiter.schedulers()) == ([], [])

    # when it is imported, then the jobs and schedulers are there, and what is left has its reason
    report = imported(target, "agenda", "--rename", "send welcome=send_welcome")
    assert report["counts"] == dry["counts"]
    (job,) = recruiter.store.scheduled.waiting()
    assert (job.id, job.task, job.args) == (f"agenda:{waiting}", "send_welcome", {"to": "ada@example.org"})
    assert (job.scheduled_at, job.priority) == (THEN, 10)
    policies = {each.urn: each.schedule for each in recruiter.schedulers()}
    assert policies["agenda:report"] == recruiter.schedules.dump(Cron("0 6 * * *", tz=ROME))
    assert policies["agenda:tick"] == recruiter.schedules.dump(Every("5 minutes", anchor=THEN))
    told = {line["id"]: line["told"] for line in report["documents"]}
    assert told["agenda:ms"] == "not kept: skipDays, endDate"
    assert left(report)[str(running)] == "it is running there: stop Agenda, and import again"
    assert left(report)[str(ended)] == "it has ended"
    assert left(report)["odd"].startswith("its interval is not understood")

    # when it is imported again, then nothing is made twice, and its own documents are as they were
    again = imported(target, "agenda", "--rename", "send welcome=send_welcome")
    assert left(again)[str(waiting)] == "it was imported before"
    _, said = here(target, "import", "agenda", address(target), "--rename", "send welcome=send_welcome")
    assert re.search(r"0 jobs and \d schedulers? imported from agendaJobs of database \w+, ", said)
    assert re.search(r"\d of these \d+ had been imported before", said)
    assert (len(recruiter.store.scheduled.waiting()), len(recruiter.schedulers())) == (1, 2)
    assert origin.agendaJobs.count_documents({}) == 6


@pytest.mark.parametrize("version", [5, 6])
def test_documents_that_agenda_itself_has_written(origin: Any, target: str, recruiter: Recruiter, version: int) -> None:
    """Given the store of a real Agenda (one job of each kind that its documentation shows), when it is imported, then
    each field arrives or is named in the report."""
    path = Path(__file__).parent.parent / "fixtures" / "agenda" / f"agenda-{version}.json"
    documents = {
        document["_id"]: document
        for document in json_util.loads(path.read_text(), json_options=json_util.JSONOptions(tz_aware=True, tzinfo=UTC))
    }
    origin.agendaJobs.insert_many(documents.values())
    report = imported(target, "agenda")
    told = {line["id"]: line["told"] for line in report["documents"]}

    waiting = [d for d in documents.values() if d["nextRunAt"] is not None and not d.get("repeatInterval")]
    waiting = [document for document in waiting if not document.get("repeatAt")]
    jobs = {job.id: job for job in recruiter.store.scheduled.waiting()}
    assert jobs.keys() == {f"agenda:{document['_id']}" for document in waiting}
    for document in waiting:
        job = jobs[f"agenda:{document['_id']}"]
        assert (job.task, from_bson(job.args), job.priority, job.scheduled_at) == (
            *(document["name"], document["data"], document["priority"]),
            document["nextRunAt"],
        )

    repeating = [d for d in documents.values() if d.get("repeatInterval")]
    found = {scheduler.urn: scheduler for scheduler in recruiter.schedulers()}
    assert len(found) == len(repeating)
    for document in repeating:
        single = document["type"] == "single"
        scheduler = found[f"agenda:{document['name']}" + ("" if single else f":{document['_id']}")]
        interval, due = document["repeatInterval"], document["nextRunAt"]
        if interval == "0 6 * * *":
            policy: Any = Cron(interval, tz=ROME)
        else:
            policy = Every(timedelta(milliseconds=interval) if isinstance(interval, int) else interval, anchor=due)
        assert scheduler.schedule == recruiter.schedules.dump(policy)
        template = scheduler.template
        assert (template.task, template.args) == (document["name"], document["data"] or {})
        assert template.priority == document["priority"]
        assert (scheduler.paused is not None) == bool(document.get("disabled"))
        restricted = [name for name in ("skipDays", "startDate", "endDate") if document.get(name)]
        notes = [f"not kept: {', '.join(restricted)}"] if restricted else []
        notes += ["paused, as it was"] if document.get("disabled") else []
        assert told[f"agenda:{document['_id']}"] == "; ".join(notes)
    ended = {f"{document['_id']}" for document in documents.values() if document["nextRunAt"] is None}
    at_a_time = {f"{document['_id']}" for document in documents.values() if document.get("repeatAt")}
    assert left(report).keys() == ended | at_a_time


def test_two_repeated_jobs_of_agenda_with_one_name_stay_two(origin: Any, target: str, recruiter: Recruiter) -> None:
    """Given `agenda.create(name, data).repeatEvery(…)`, which may be saved more than once for one name."""
    base = {"type": "normal", "name": "report", "priority": 0, "nextRunAt": THEN, "repeatInterval": "1 hour"}
    origin.agendaJobs.insert_many([{**base, "data": {"of": "sales"}}, {**base, "data": {"of": "stock"}}])
    imported(target, "agenda")
    assert sorted(each.template.args["of"] for each in recruiter.schedulers()) == ["sales", "stock"]  # type: ignore[call-overload]


def php(policy: str, parameters: Any) -> dict[str, Any]:
    """A retry policy as Recruiter for PHP stores it."""
    return {"class": f"Recruiter\\RetryPolicy\\{policy}", "parameters": parameters}


def test_jobs_of_recruiter_for_php_are_imported_or_named_with_a_reason(
    origin: Any, target: str, recruiter: Recruiter
) -> None:
    policy = {"retry_how_many_times": 3, "seconds_to_wait_before_retry": 60}
    retry = {"class": "Recruiter\\RetryPolicy\\RetryManyTimes", "parameters": policy}
    cases = [{"when": "App\\Gone", "then": php("DoNotDoItAgain", {})}, {"when": "Exception", "then": retry}]
    filtered = {"retriable_exceptions": ["App\\Gone"], "filtered_retry_policy": retry}
    workable = {"class": "App\\HttpRequestCommand", "parameters": {"url": "https://example.org"}, "method": "ping"}
    job = {"done": False, "locked": False, "attempts": 0, "group": "http", "tags": ["user:42"], "workable": workable}
    origin.scheduled.insert_many(
        [
            {**job, "_id": "waits", "scheduled_at": THEN, "retry_policy": retry},
            {**job, "_id": "runs", "scheduled_at": THEN, "locked": True},
            {
                **job,
                "_id": "filtered",
                "scheduled_at": THEN,
                "retry_policy": {"class": "Recruiter\\RetryPolicy\\RetriableExceptionFilter", "parameters": filtered},
            },
            {**job, "_id": "table", "retry_policy": php("TimeTable", {"time_table": {"5 minutes ago": "1 minute"}})},
            {**job, "_id": "choice", "retry_policy": php("SelectByException", cases)},
            {"_id": "broken", "workable": 5},
        ]
    )
    schedule = {"class": "Recruiter\\SchedulePolicy\\EveryMinutes", "parameters": {}}
    repeated = {"workable": {**workable, "method": "execute"}, "retry_policy": retry}
    origin.schedulers.insert_many(
        [
            {"_id": 1, "urn": "report:daily", "unique": True, "schedule_policy": schedule, "job": repeated},
            {"_id": 2, "urn": "own", "schedule_policy": {"class": "App\\Moon", "parameters": {}}, "job": repeated},
        ]
    )

    report = imported(target, "recruiter-php")

    assert report["counts"] == {"job": 4, "scheduler": 1, "left": 3}
    found = recruiter.find("recruiter-php:waits")
    assert (found.task, found.args, found.method) == ("HttpRequestCommand", {"url": "https://example.org"}, "ping")
    assert (found.group, found.tags, found.scheduled_at) == ("http", ("user:42",), THEN)
    assert found.retry_policy == recruiter.policies.dump(RetryManyTimes(3, "1 minute"), ())
    table, choice = (recruiter.find(f"recruiter-php:{id}").retry_policy for id in ("table", "choice"))
    assert table == recruiter.policies.dump(TimeTable({"5 minutes ago": "1 minute"}), ())
    assert choice == found.retry_policy
    (scheduler,) = recruiter.schedulers()
    assert (scheduler.urn, scheduler.schedule) == ("report:daily", recruiter.schedules.dump(EveryMinutes(1)))
    told = {line["id"]: line["told"] for line in report["documents"]}
    assert (
        told["recruiter-php:filtered"]
        == "it was retried only after App\\Gone; here it is retried after every exception"
    )
    assert told["recruiter-php:choice"] == (
        "it had a retry policy for each of App\\Gone, Exception; here that of Exception holds for every exception"
    )
    assert told["recruiter-php:2"] == "its schedule policy App\\Moon is a class of its own"
    assert told["recruiter-php:broken"].startswith("it cannot be read")


def test_with_the_application_imported_jobs_get_the_defaults_of_their_tasks(
    origin: Any, target: str, recruiter: Recruiter, tmp_path: Path
) -> None:
    # given a task with a group, a retry policy and a timeout
    application = tmp_path / "shop_of_the_import.py"
    application.write_text(
        "from recruiter import Recruiter, RetryManyTimes\n"
        "recruiter = Recruiter()\n"
        "@recruiter.task(group='mail', priority=3, retry=RetryManyTimes(3, 60), timeout='2m')\n"
        "def welcome(to: str) -> None: ...\n"
    )
    base = {"type": "normal", "priority": 0, "lockedAt": None, "nextRunAt": THEN, "name": "welcome"}
    origin.agendaJobs.insert_many([{**base, "_id": "good", "data": {"to": "ada"}}, {**base, "_id": "bad", "data": {}}])

    report = imported(target, "agenda", "--bootstrap", f"{application}:recruiter")

    job = recruiter.find("agenda:good")
    assert (job.group, job.priority, job.timeout) == ("mail", 3, 120)
    assert job.retry_policy == recruiter.policies.dump(RetryManyTimes(3, "1 minute"), ())
    assert "to" in left(report)["bad"]  # arguments are checked


class Evil:
    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (self.file,)


def test_a_pickle_can_do_nothing(tmp_path: Path) -> None:
    # given a pickle that makes a folder when it is loaded, and does
    state = pickle.dumps({"func": "shop:report", "trigger": Evil(str(tmp_path / "evil")), "args": ()})
    pickle.loads(state)
    assert (tmp_path / "evil").exists()
    (tmp_path / "evil").rmdir()

    moved = from_apscheduler({"_id": "evil", "job_state": state}, {})

    assert isinstance(moved, NotMoved)
    assert not (tmp_path / "evil").exists()


def test_wrong_calls_are_told(target: str) -> None:
    code, said = here(target, "import", "recruiter-php", target, "--prefix", "")
    assert (code, "are in the collections of --target and --prefix themselves" in said) == (2, True)
    code, said = here(target, "import", "agenda", address(target), "--rename", "x")
    assert (code, "--rename is OLD=NEW" in said) == (2, True)
