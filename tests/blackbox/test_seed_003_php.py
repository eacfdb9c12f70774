"""The manual of Recruiter 4.0.1 (PHP), typed literally where Python allows it: every example, chapter by chapter."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from pymongo import MongoClient

from recruiter import (
    ArchivedJob,
    Cron,
    DoNotDoItAgain,
    ExponentialBackoff,
    Job,
    Recruiter,
    RetryForever,
    RetryManyTimes,
    TimeTable,
    Workable,
)
from recruiter.testing import Sandbox
from recruiter.workables.shell import ShellCommand
from tests.blackbox.conftest import Written
from tests.cli_here import here
from tests.conftest import Starter, eventually

url, body = "https://example.org", "hello world"
sent: list[str] = []


@pytest.fixture(autouse=True)
def commands() -> Iterator[None]:
    """The seed's examples run the program `false`."""
    ShellCommand.enable("false")
    yield
    ShellCommand.disable()


@dataclass
class Request:
    url: str
    body: str

    @classmethod
    def post(cls, url: str, body: str) -> Self:
        return cls(url, body)

    @classmethod
    def box(cls, request: Mapping[str, Any]) -> Self:
        return cls(**request)


class NetworkException(Exception):
    pass


class HttpClient:
    def send(self, request: Request) -> None:
        if "unreachable" in request.url:
            raise NetworkException("no answer")
        sent.append(request.url)


class HttpRequestCommand(Workable, name="seed.HttpRequestCommand"):
    """4.1, with its own `as_job_of`, `export` and `import_`, as in the manual."""

    def __init__(self, request: Request) -> None:
        self.request = request

    @classmethod
    def from_request(cls, request: Request) -> Self:
        return cls(request)

    def execute(self) -> None:
        HttpClient().send(self.request)

    def as_job_of(self, recruiter: Any) -> Any:
        return recruiter.job_of(self)

    def export(self) -> Mapping[str, Any]:
        return {"request": asdict(self.request)}

    @classmethod
    def import_(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(Request.box(parameters["request"]))


class DailyReportCommand(Workable, name="seed.DailyReportCommand"):
    """7, with `urn` and `unique` as methods."""

    def execute(self) -> None: ...

    def urn(self) -> str:
        return "report:daily"

    def unique(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


request_ = Request.post(url, body)
unreachable = Request.post("https://unreachable.example.org", body)


def test_4_1_and_5_2_hello_world(recruiter: Recruiter) -> None:
    with MongoClient[dict[str, Any]](recruiter.address) as mongodb_instance, Recruiter(mongodb_instance) as its_own:
        job = (
            HttpRequestCommand.from_request(request_)
            .as_job_of(its_own)
            .in_background()
            .execute()  # this is the method defined in the Workable class
        )
    assert sent == []
    recruiter.run_all(HttpRequestCommand)
    assert sent == [url]
    assert recruiter.find(job.id).args == {"request": {"url": url, "body": body}}


def test_5_3_schedule_a_job_in_the_future(recruiter: Recruiter) -> None:
    job = (
        HttpRequestCommand.from_request(request_)
        .as_job_of(recruiter)
        .schedule_at(datetime.fromisoformat("2038-01-19T00:00:00.000000Z"))
        .in_background()
        .execute()
    )

    assert recruiter.run_all(HttpRequestCommand) == []
    assert recruiter.find(job.id).scheduled_at == datetime(2038, 1, 19, tzinfo=UTC)


def test_5_4_retry_up_to_four_executions(target: str, recruiter: Recruiter) -> None:
    del recruiter
    retry_policy = RetryManyTimes(3, 60)
    with closing(Sandbox(Recruiter(), target, now=datetime(2038, 1, 18, 23, 59, tzinfo=UTC))) as sandbox:
        job = (
            HttpRequestCommand.from_request(unreachable)
            .as_job_of(sandbox.recruiter)
            .schedule_at(datetime.fromisoformat("2038-01-19T00:00:00.000Z"))
            .retry_with_policy(retry_policy)
            .in_background()
            .execute()
        )
        for _ in range(6):
            sandbox.run_due()
            sandbox.move_clock("60s")

        ended = sandbox.recruiter.find(job.id)
        assert isinstance(ended, ArchivedJob)
        assert ended.why == "tried-too-many-times"
        assert [f"{attempt.started_at:%Y-%m-%dT%H:%M:%S.000Z}" for attempt in ended.executions] == [
            "2038-01-19T00:00:00.000Z",
            "2038-01-19T00:01:00.000Z",
            "2038-01-19T00:02:00.000Z",
            "2038-01-19T00:03:00.000Z",
        ]


@pytest.mark.parametrize(("retriable", "why"), [([NetworkException], None), ([KeyError], "non-retriable-exception")])
def test_5_5_retriable_exceptions(recruiter: Recruiter, retriable: list[type[Exception]], why: str | None) -> None:
    retry_policy = RetryManyTimes(3, 60)
    job = (
        HttpRequestCommand.from_request(unreachable)
        .as_job_of(recruiter)
        .retry_with_policy(retry_policy, retriable)
        .in_background()
        .execute()
    )

    recruiter.run(HttpRequestCommand)

    assert getattr(recruiter.find(job.id), "why", None) == why


def test_5_6_optimistic_jobs(recruiter: Recruiter) -> None:
    retry_policy, retriable = RetryManyTimes(3, 60), [NetworkException]

    job = HttpRequestCommand.from_request(request_).as_job_of(recruiter)
    done = job.retry_with_policy(retry_policy, retriable).execute()
    assert sent == [url], "before the call has returned"
    assert recruiter.find(done.id).state == "succeeded"

    failing = HttpRequestCommand.from_request(unreachable).as_job_of(recruiter)
    assert recruiter.find(failing.retry_with_policy(retry_policy, retriable).execute().id).state == "waiting"
    assert recruiter.find(failing.execute().id).state == "failed", "without a policy it is archived"

    in_background = [
        failing.retry_with_policy(retry_policy, retriable).in_background().execute(),
        failing.retry_with_policy(retry_policy, retriable)
        .schedule_at(datetime.fromisoformat("2151-02-21T15:03:01.012345Z"))
        .execute(),
    ]
    assert [recruiter.find(each.id).attempts for each in in_background] == [0, 0]


def test_5_7_groups_and_5_8_tags(recruiter: Recruiter) -> None:
    command = HttpRequestCommand.from_request(request_).as_job_of(recruiter)

    in_group = command.in_group("http").in_background().execute()
    tagged = command.tagged_as(["userId:42", "color:red"]).in_background().execute()

    assert recruiter.find(in_group.id).group == "http"
    assert recruiter.find(tagged.id).tags == ("userId:42", "color:red")
    assert [job.id for job in recruiter.jobs.list(tag=["userId:42", "color:red"]).jobs] == [tagged.id]


def waits(recruiter: Recruiter, retry_policy: Any) -> float | None:
    """Seconds until the next attempt of a command that fails; None if there is none."""
    job = (
        ShellCommand.from_command_line("false")
        .as_job_of(recruiter)
        .retry_with_policy(retry_policy)
        .in_background()
        .execute()
    )
    recruiter.run(ShellCommand)
    found: Job = recruiter.find(job.id)
    if isinstance(found, ArchivedJob):
        return None
    assert found.last_execution is not None
    assert found.last_execution.ended_at is not None
    return (found.scheduled_at - found.last_execution.ended_at).total_seconds()


@pytest.mark.parametrize(
    ("policy", "same", "seconds"),
    [
        pytest.param(lambda: DoNotDoItAgain(), lambda: DoNotDoItAgain(), None, id="6.2"),
        pytest.param(lambda: ExponentialBackoff.for_times(10, 30), lambda: ExponentialBackoff(10, 30), 30, id="6.3"),
        pytest.param(lambda: RetryForever.after_seconds(30), lambda: RetryForever(30), 30, id="6.4"),
        pytest.param(lambda: RetryManyTimes.for_times(3, 30), lambda: RetryManyTimes(3, 30), 30, id="6.5"),
        pytest.param(
            lambda: TimeTable({"5 minutes ago": "1 minute", "1 hour ago": "5 minutes", "24 hours ago": "1 hour"}),
            lambda: TimeTable({"5 minutes ago": "1 minute", "1 hour ago": "5 minutes", "24 hours ago": "1 hour"}),
            60,
            id="6.6",
        ),
    ],
)
def test_6_retry_policies(
    recruiter: Recruiter, policy: Callable[[], Any], same: Callable[[], Any], seconds: float | None
) -> None:
    assert policy() == same()
    assert waits(recruiter, policy()) == seconds


def test_6_3_for_an_interval_has_at_most_four_attempts() -> None:
    """30 seconds, 60 and 120 after the first failure."""
    policy = ExponentialBackoff.for_an_interval(120, 30)

    assert [policy.delay_before_retry(number) for number in (1, 2, 3)] == [
        timedelta(seconds=seconds) for seconds in (30, 60, 120)
    ]
    assert policy.n == 3


def test_7_repeatable_jobs(recruiter: Recruiter, target: str) -> None:
    schedule_policy = Cron("0 6 * * *")

    scheduler = (
        DailyReportCommand()
        .as_repeatable_job_of(recruiter)
        .repeat_with_policy(schedule_policy)
        .retry_with_policy(DoNotDoItAgain())  # this is the default behaviour
        .create()
    )

    assert scheduler.urn == "report:daily"
    assert [(moment.hour, moment.minute) for moment in scheduler.next_runs(2)] == [(6, 0), (6, 0)]
    assert str(scheduler.find().overlap) == "allow", "as unique() says"
    assert here(target, "scheduler", "remove", "report:daily", "--yes")[0] == 0
    assert recruiter.schedulers() == []


BOOTSTRAP = """
from pathlib import Path
from recruiter import Recruiter, Workable

recruiter = Recruiter()

class Email(Workable, name="seed.Email"):
    def execute(self) -> None: ...

def recruiter_became_master(recruiter) -> None:
    (Path(__file__).parent / "became_master").write_text(type(recruiter).__name__)

def recruiter_stept_back(recruiter) -> None:
    (Path(__file__).parent / "stept_back").write_text(type(recruiter).__name__)
"""


def test_2_3_and_8_processes_and_hooks(start: Starter, application: Written, target: str, tmp_path: Path) -> None:
    """`--target 127.0.0.1:27017 --bootstrap src/recruiter-bootstrap.php`, with a file of Python."""
    address, bootstrap = target, application(BOOTSTRAP)
    recruiter = start("start", "recruiter", "--target", address, "--bootstrap", bootstrap)
    worker = start("start", "worker", "--target", address, "--bootstrap", bootstrap)
    cleaner = start("start", "cleaner", "--target", address)
    worker.says("joined the roster")
    cleaner.says("keeps the archive small")
    eventually(lambda: (tmp_path / "became_master").exists())
    assert (tmp_path / "became_master").read_text() == "Recruiter"

    for process in (worker, cleaner, recruiter):
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert (tmp_path / "stept_back").read_text() == "Recruiter"


def test_9_priority_by_the_number_of_workers_on_a_group(
    recruiter: Recruiter, start: Starter, application: Written, target: str
) -> None:
    """`--work-on='double-optin-email' --target … --bootstrap …`: a worker on a group takes no other job."""
    start("start", "recruiter")
    worker = start("start", "worker", "--work-on=double-optin-email", "--bootstrap", application(BOOTSTRAP))
    worker.says("joined the roster")

    jobs = {
        group: recruiter.job("seed.Email").in_group(group).enqueue()
        for group in ("follow-up-email", "double-optin-email")
    }
    assert jobs["double-optin-email"].wait(timeout=60).done
    assert recruiter.find(jobs["follow-up-email"].id).state == "waiting"
    (entry,) = json.loads(here(target, "worker", "list", "--output", "json")[1])
    assert entry["groups"] == ["double-optin-email"]


def test_10_analytics(recruiter: Recruiter, target: str) -> None:
    command = HttpRequestCommand.from_request(request_).as_job_of(recruiter)
    for _ in range(2):
        command.in_background().execute()
    command.in_group("custom-group").schedule_at(datetime(2038, 1, 19, tzinfo=UTC)).execute()

    analytics = recruiter.analytics()
    assert (analytics.jobs.queued, analytics.jobs.postponed, analytics.jobs.zombies) == (2, 1, 0)
    assert (analytics.throughput.value, analytics.throughput.value_per_second) == (0.0, 0.0)
    assert analytics.latency.average == analytics.execution_time.average == 0.0
    assert recruiter.analytics("custom-group").jobs.postponed == 1

    code, said = here(target, "analytics", "--group", "custom-group", "--output", "json")
    assert code == 0
    assert json.loads(said)["jobs"]["postponed"] == 1


def test_11_mongo_collections(recruiter: Recruiter, start: Starter, application: Written) -> None:
    """A worker is on the roster while it lives; a job moves from scheduled to archived; a scheduler is a template."""
    names = set(recruiter.store.collections())
    assert {recruiter.store.target.prefix + name for name in ("roster", "scheduled", "archived", "schedulers")} <= names

    worker = start("start", "worker", "--bootstrap", application(BOOTSTRAP))
    worker.says("joined the roster")
    assert recruiter.store.roster.collection.count_documents({}) == 1
    assert worker.stop() == 0
    assert recruiter.store.roster.collection.count_documents({}) == 0

    job = HttpRequestCommand.from_request(request_).as_job_of(recruiter).in_background().execute()
    assert recruiter.store.scheduled.collection.count_documents({"_id": job.id}) == 1
    recruiter.run(HttpRequestCommand)
    assert recruiter.store.scheduled.collection.count_documents({}) == 0
    assert recruiter.store.archived.collection.count_documents({"_id": job.id, "done": True}) == 1


def test_12_1_recovering_a_job(recruiter: Recruiter, target: str) -> None:
    """`job:recover --scheduleAt "2019-12-01T22:18:00Z" 5d27436e2bacd566a67e85e4`"""
    job = HttpRequestCommand.from_request(unreachable).as_job_of(recruiter).execute()

    code, said = here(target, "job", "recover", "--schedule-at", "2019-12-01T22:18:00Z", str(job.id))

    assert code == 0, said
    (again,) = recruiter.jobs.list(state="waiting").jobs
    assert (again.scheduled_at, again.recovered_from) == (datetime(2019, 12, 1, 22, 18, tzinfo=UTC), job.id)


def test_13_jobs_in_tests(recruiter: Recruiter) -> None:
    class DomainService:
        def __init__(self, recruiter: Recruiter) -> None:
            self.recruiter = recruiter

        def method_that_queues_jobs(self) -> None:
            command = HttpRequestCommand.from_request(request_).as_job_of(self.recruiter)
            command.in_background().execute()
            command.schedule_at(datetime(2151, 2, 21, tzinfo=UTC)).execute()

    domain_service = DomainService(recruiter)
    domain_service.method_that_queues_jobs()

    recruiter.flush_jobs_synchronously()  # Here all previously queued jobs are executed

    assert sent == [url, url]
