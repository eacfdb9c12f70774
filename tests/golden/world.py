"""A database in which something of every kind has happened, with ids that are the same each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from recruiter import Cron, Every, Recruiter
from recruiter.doctor import Thresholds, examine
from recruiter.domain.job import Execution, Job
from recruiter.domain.planning.needs import Needs
from recruiter.domain.retry.decision import Archive
from recruiter.domain.state import Why
from recruiter.store import outcomes
from recruiter.store.codec import job_document
from recruiter.store.database import Store
from tests.golden.names import NAMES
from tests.samples import NOW, a_job, done, insert, on_the_roster

MINUTE = timedelta(minutes=1)


def fill(recruiter: Recruiter) -> None:
    """A leader, a worker that knows `send` and runs one job of it, and a job in each kind of trouble."""
    store, now = recruiter.store, recruiter.clock.now()
    who = {"host": "host1", "pid": 7, "renewed_at": now + 60 * MINUTE, "since": now}
    assert store.leases.acquire(None, "holder", who, at=now)
    facts: dict[str, Any] = {"slots": 2, "prefetch": 0, "resources": "mem=8000000000,proc=4", "host": "host1", "pid": 7}
    facts |= {
        "groups": ["generic", "mail", "vip"],
        "tasks": ["send"],
        "seen_at": now,
        "joined_at": now,
        "considered_dead_after": 3600.0,
    }
    on_the_roster(store, "host1:7:ab12", **facts)

    def waits(id: str, at: timedelta = timedelta(), **options: Any) -> Job:
        made: dict[str, Any] = {"task": "send", "created_at": now, "scheduled_at": now + at, **options}
        return a_job(id, **made)

    insert(
        store,
        waits("running"),
        waits("free"),
        waits("paused", group="mail"),
        waits("unknown", task="encode"),
        waits("group-nobody-serves", group="images"),
        waits("too-large", needs=Needs.of(proc=64)),
        waits("limited", group="vip", limited_by="customer:7"),
        waits("postponed", timedelta(hours=2)),
        waits("failed-before", timedelta(hours=2)),
        waits("snoozed", timedelta(hours=2)),
        waits("cancelled"),
    )
    assert store.roster.assign({"host1:7:ab12": ["running"]}, 1)
    runs = {"job": "running", "task": "send", "since": now - 3 * MINUTE}
    store.roster.collection.update_one({"_id": "host1:7:ab12"}, {"$set": {"running": [runs]}})
    failure = {"class": "ValueError", "message": "no good", "started_at": now, "ended_at": now, "worker": "w1"}
    for id, fields in {
        "failed-before": {"last_execution": failure, "attempts": 2},
        "snoozed": {"snoozed": "no file yet"},
    }.items():
        store.scheduled.collection.update_one({"_id": id}, {"$set": fields})
    _ended(recruiter)
    recruiter.controls.pause_group("mail", by="ada", reason="holidays")
    recruiter.controls.set_limit("key:customer", 0, by="ada")
    recruiter.cancel("cancelled", by="ada", reason="enough")
    recruiter.job("send").repeat_with_policy(Cron("0 6 * * *", tz="Europe/Rome")).with_urn("report:daily").create()
    recruiter.job("send").repeat_with_policy(Every("90s")).with_urn("often").create()
    recruiter.scheduler("often").pause(by="ada", reason="too often")


def _ended(recruiter: Recruiter) -> None:
    ran = Execution(NOW, NOW + MINUTE, "w1", exception="ValueError", message="no good", trace="Traceback …")
    mine = {"retry_policy": {"class": "Mine", "parameters": {}}}

    def failed(id: str, why: str, **options: Any) -> None:
        job = a_job(id, task="send", args={"to": "nobody"}, **options)
        _archive(recruiter.store, job, outcomes.failed(job_document(job), ran, NOW + MINUTE, Archive(why)))

    failed("tried-too-often", Why.TRIED_TOO_MANY_TIMES, attempts=2)
    failed("not-retriable", Why.NON_RETRIABLE_EXCEPTION)
    failed("without-policy", Why.NOT_SCHEDULED_BY_RETRY_POLICY)
    failed("policy-says-no", Why.NOT_SCHEDULED_BY_RETRY_POLICY, **mine)
    failed("policy-failed", Why.POLICY_FAILED)
    failed("own-reason", "gave-up")
    died: dict[str, Any] = {"worker": "w1", "started_at": NOW, "at": NOW + MINUTE, "message": "killed by SIGKILL"}
    for job, crashes in ((a_job("crashed", attempts=2), 2), (a_job("lost", at_most_once=True), 0)):
        document = {**job_document(job), "crashes": crashes}
        _archive(recruiter.store, job, outcomes.crashed(document, recruiter.policies, **died))
    succeeded = a_job("succeeded", task="send", owner="ada", tags=("user:42",))
    _archive(recruiter.store, succeeded, done(succeeded, "host1:7:ab12", {"sent": 1}))


def _archive(store: Store, job: Job, outcome: outcomes.Outcome) -> None:
    assert isinstance(outcome, outcomes.ToArchive)
    store.transactions.archive_new(job.id, outcome)


@contextmanager
def names(target: str) -> Iterator[dict[str, Any]]:
    """The names of the transcripts that ask this database."""
    with Recruiter(target) as recruiter:
        recruiter.prepare()
        fill(recruiter)

        def doctor() -> str:
            findings = examine(recruiter.store, Thresholds())
            told = (each for each in findings if each.about in ("fleet", "jobs", "schedulers"))
            return "\n".join(sorted(f"{each.level} {each.code}: {each.text}; {each.todo}".strip("; ") for each in told))

        @recruiter.task(name="golden.double")
        def double(size: int) -> int:
            return 2 * size

        @recruiter.task(name="golden.fetch")
        def fetch(url: str) -> str:
            return url

        flow, other = recruiter.flow("f"), recruiter.flow("g")
        step, foreign = flow.add(fetch, "a", name="first"), other.add(fetch, "b")
        own = {"recruiter": recruiter, "explain": recruiter.explain, "doctor": doctor, "double": double, "fetch": fetch}
        yield {**NAMES, **own, "flow": flow, "other": other, "step": step, "foreign": foreign}
