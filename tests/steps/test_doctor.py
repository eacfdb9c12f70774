"""Every finding of the doctor about schema, fleet, jobs and schedulers, each with what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from recruiter import EveryMinutes, Recruiter
from recruiter.cli.main import app
from recruiter.clock import SystemClock
from recruiter.doctor import Thresholds, examine
from recruiter.doctor.findings import Finding, Level
from recruiter.domain.job import JobId
from recruiter.domain.state import Why
from recruiter.embedded import EmbeddedServer
from recruiter.steps.recover import job_anew, recovering
from recruiter.store.codec import archived_document, job_document
from recruiter.store.collections import archived
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.store.in_session import in_own_transaction
from tests.samples import a_job, insert, on_the_roster

OK, NOTE, PROBLEM = Level.OK, Level.NOTE, Level.PROBLEM
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


class Ward:
    """A database, and what the doctor says of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = store.clock.now()

    def findings(self, **thresholds: Any) -> list[Finding]:
        return examine(self.store, Thresholds(**thresholds))

    def finds(self, level: Level, *words: str, **thresholds: Any) -> Finding:
        """The one finding with these words in it: its code, and names of what it is about."""
        findings = self.findings(**thresholds)
        fitting = [finding for finding in findings if all(word in f"{finding.code} {finding}" for word in words)]
        assert len(fitting) == 1, "\n".join(f"{each.level}: {each}" for each in findings)
        assert fitting[0].level is level, fitting[0]
        assert (level is OK) == (fitting[0].todo == ""), f"no word of what to do: {fitting[0]}"
        for command in re.findall(r"recruiter ([a-z]+)(?: ([a-z]+))?", fitting[0].todo):
            _exists(*command)
        return fitting[0]

    def says_nothing_of(self, word: str, **thresholds: Any) -> None:
        assert [str(finding) for finding in self.findings(**thresholds) if word in f"{finding.code} {finding}"] == []

    def leader(self, seen: timedelta = timedelta(), terms: int = 1, **who: Any) -> None:
        facts = {"host": "here", "pid": 7, "renewed_at": self.now - seen, "since": self.now - seen, **who}
        self.store.leases.acquire(None, "holder", facts, at=self.now - DAY)
        for _ in range(terms - 1):
            assert self.store.leases.acquire(self.store.leases.read(), "holder", {}, at=self.now)

    def worker(self, name: str = "w1", seen: timedelta = timedelta(), **facts: Any) -> str:
        moment = self.now - seen
        return on_the_roster(self.store, name, **{"joined_at": moment, "seen_at": moment, "prefetch": 0, **facts})

    def jobs(self, count: int = 1, **options: Any) -> list[JobId]:
        options = {"created_at": self.now, "scheduled_at": self.now, **options}
        return insert(self.store, *(a_job(**options) for _ in range(count)))

    def process(self, role: str, host: str, pid: int, **facts: Any) -> None:
        self.store.processes.show(f"{host}:{pid}", {"role": role, "host": host, "pid": pid, **facts}, 10)


def _exists(command: str, subcommand: str) -> None:
    """What is told to be typed can be typed."""
    group = app[command]
    assert subcommand in group or not any(not name.startswith("-") for name in group), f"{command} {subcommand}"


@pytest.fixture
def ward(store: Store) -> Ward:
    return Ward(store)


class TestSchema:
    """On a database of its own: the others are shared."""

    @pytest.fixture
    def ward(self, server: EmbeddedServer) -> Iterator[Ward]:
        name = f"test_{ObjectId()}"
        store = Store(Target.parse(server.uri.replace("/?", f"/{name}?")))
        with closing(store):
            store.check()
            store.prepare()
            yield Ward(store)
            store.client.drop_database(name)

    def test_an_empty_database_is_a_problem(self, ward: Ward) -> None:
        ward.store.drop()

        ward.finds(PROBLEM, "not-prepared")
        ward.says_nothing_of("no-leader")

    def test_a_collection_that_a_newer_version_has(self, ward: Ward) -> None:
        ward.store.limits.collection.drop()
        ward.finds(PROBLEM, "schema", "recruiter.limits")

    def test_an_index_that_is_missing(self, ward: Ward) -> None:
        ward.store.scheduled.collection.drop_index("due")
        ward.finds(PROBLEM, "schema", "index due of recruiter.scheduled")
        ward.finds(PROBLEM, "a check could not run", "recruiter prepare")  # and all else is

        made = ward.store.prepare()

        assert [str(each) for each in made] == ["index due of recruiter.scheduled"]
        ward.says_nothing_of("schema")

    def test_an_index_that_is_another(self, ward: Ward) -> None:
        index = archived.BY_AGE
        ward.store.archived.collection.drop_index(index)
        ward.store.archived.collection.create_index([("archived_at", -1), ("_id", 1)], name=index)
        ward.finds(PROBLEM, "schema", f'db.recruiter.archived.dropIndex("{index}")')

    @pytest.mark.parametrize("change", [{"validator": {}}, {"validationLevel": "off"}, {"validationAction": "warn"}])
    def test_a_validator_that_is_another(self, ward: Ward, change: dict[str, Any]) -> None:
        ward.store.database.command({"collMod": ward.store.roster.collection.name, **change})
        ward.finds(PROBLEM, "schema", "recruiter.roster")

        ward.store.prepare()

        ward.says_nothing_of("schema")

    def test_an_index_of_somebody_else(self, ward: Ward) -> None:
        ward.store.archived.collection.create_index([("username", 1)], name="by_owner")
        ward.finds(NOTE, "extra-index", "by_owner")


class TestLeader:
    def test_it_is_silent_and_nobody_takes_over(self, ward: Ward) -> None:
        ward.leader(seen=timedelta(minutes=5))
        ward.finds(PROBLEM, "no-leader", "on here (pid 7)", "5m")

    def test_the_doctor_counts_recruiters_that_stand_by(self, ward: Ward) -> None:
        ward.leader()
        ward.process("recruiter", "here", 7)  # the leader itself
        ward.process("recruiter", "there", 7)
        ward.finds(OK, "leads", "1 stands by")
        ward.process("recruiter", "here", 8)
        ward.process("recruiter", "killed", 1)
        killed = {"$set": {"seen_at": ward.now - timedelta(seconds=10)}}  # it shows life every 5 seconds
        ward.store.processes.collection.update_one({"_id": "killed:1"}, killed)
        ward.finds(OK, "leads", "2 stand by")

    def test_terms_follow_each_other_too_quickly(self, ward: Ward) -> None:
        ward.leader(terms=5)  # the first was a day ago
        ward.says_nothing_of("takeovers")
        ward.store.leases.acquire(ward.store.leases.read(), "holder", {}, at=ward.now)
        ward.finds(PROBLEM, "takeovers", "5 times")

    def test_the_list_of_takeovers_stays_short(self, ward: Ward) -> None:
        ward.leader(terms=50)
        lease = ward.store.leases.read()
        assert lease is not None
        assert (lease.term, len(lease.takeovers)) == (50, 20)


class TestWorkers:
    def test_a_silent_worker_is_a_problem(self, ward: Ward) -> None:
        ward.worker("quick")
        ward.worker("gone", seen=timedelta(seconds=40), considered_dead_after=15.0)
        ward.worker("patient", seen=timedelta(seconds=40), considered_dead_after=600.0)
        ward.finds(PROBLEM, "silent-worker", "worker gone")
        ward.finds(OK, "worker quick")
        ward.finds(OK, "worker patient", silent=timedelta(seconds=15))

    def test_a_worker_that_is_stopping_is_a_note(self, ward: Ward) -> None:
        ward.worker()
        ward.store.roster.beat("w1", {"draining": True}, within=10)
        ward.finds(NOTE, "leaving-worker", "w1")


class TestClocks:
    def test_a_wrong_clock_of_this_host_is_a_note(self, ward: Ward) -> None:
        class Wrong(SystemClock):
            def host_time(self) -> datetime:
                return datetime.now(UTC) - timedelta(hours=3)

        ward.store.clock = Wrong()
        ward.finds(NOTE, "clock", "3h behind")


class TestJobs:
    def test_only_some_lanes_are_listed(self, ward: Ward) -> None:
        for number in range(7):
            ward.jobs(task=f"unheard_of_{number}")
        findings = ward.findings(lanes_told=5)
        assert len([finding for finding in findings if "unheard_of" in finding.text]) == 5
        ward.finds(PROBLEM, "jobs of 2 more lanes", lanes_told=5)

    def test_too_many_to_be_counted_in_time(self, ward: Ward) -> None:
        """Then it does without the number: what matters is found by lane."""
        ward.jobs(20_000, task="unheard_of")
        ward.finds(PROBLEM, "cannot run", "unheard_of", counting=0.001)
        ward.worker(tasks=["unheard_of"])
        ward.finds(OK, "many jobs wait or run", counting=0.001)

    @pytest.mark.parametrize("why", [Why.MALFORMED, Why.CRASHED_TOO_MANY_TIMES, Why.WORKER_DIED_TOO_MANY_TIMES])
    def test_jobs_that_were_set_aside_today_are_a_note(self, ward: Ward, why: Why) -> None:
        def set_aside(id: str, at: datetime) -> None:
            job = job_document(a_job(id))
            ward.store.archived.collection.insert_one(archived_document(job, why, at, {"reason": "it is no job"}))

        set_aside("old", ward.now - 2 * DAY)
        ward.says_nothing_of("it is no job")
        set_aside("junk", ward.now)
        finding = ward.finds(NOTE, "it is no job", "recruiter job show junk")
        assert finding.code == ("set-aside" if why is Why.MALFORMED else "poison-job")
        in_own_transaction(ward.store, recovering(job_anew(ward.store, "junk", ward.now, None, again=False)))
        ward.says_nothing_of("it is no job")


class TestSchedulers:
    @pytest.fixture
    def recruiter(self, target: str) -> Iterator[Recruiter]:
        with Recruiter(target) as recruiter:
            recruiter.task(name="add")(lambda: None)
            yield recruiter

    def scheduler(self, recruiter: Recruiter, ward: Ward, **changes: Any) -> None:
        job = recruiter.job("add").repeat_with_policy(EveryMinutes(5)).with_urn("report")
        if "must_succeed_within" in changes:
            job = job.must_succeed_within(changes.pop("must_succeed_within"))
        job.create()
        ward.store.schedulers.collection.update_one({"_id": "report"}, {"$set": {"made": 0, **changes}})

    def test_a_broken_scheduler_is_a_problem(self, ward: Ward, recruiter: Recruiter) -> None:
        self.scheduler(recruiter, ward, broken="no such policy")
        ward.finds(PROBLEM, "broken-scheduler", "report", "no such policy")

    def test_a_late_scheduler_is_a_problem(self, ward: Ward, recruiter: Recruiter) -> None:
        self.scheduler(recruiter, ward, next_at=ward.now - timedelta(hours=1))
        ward.finds(PROBLEM, "late-scheduler", "report")

    def test_a_promise_that_was_not_kept(self, ward: Ward, recruiter: Recruiter) -> None:
        self.scheduler(recruiter, ward, must_succeed_within="1h", created_at=ward.now - DAY)
        ward.finds(PROBLEM, "overdue-success", "report", "never")

        # when it has succeeded once, it is said since when; when lately, nothing
        job = job_document(a_job(urn="report"))
        then = ward.now - timedelta(hours=2)
        ward.store.archived.collection.insert_one(archived_document(job, Why.DONE, then, {}))
        ward.finds(PROBLEM, "overdue-success", "report", "last success")
        ward.store.schedulers.note_success("report", ward.now)
        ward.finds(OK, "1 of 1 schedulers are on time")
