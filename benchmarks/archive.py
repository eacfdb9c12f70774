"""Measures searches among a million ended and 200,000 waiting jobs.

    python benchmarks/archive.py [--ended N] [--waiting N] [--folder FOLDER]

Creates the jobs (a few minutes; --folder keeps them for the next run), then lists, counts and shows them by
every filter. For each filter it prints the duration here and in MongoDB, at first (from the disk, if the
folder is an old one) and when repeated; the longest single query, the keys and documents that MongoDB examined for
all of them, and whether any of them read a whole collection or sorted in memory, as the server itself explains it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, WriteConcern
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from recruiter import Recruiter
from recruiter.domain.job import Execution, Job
from recruiter.domain.planning.needs import Needs
from recruiter.domain.retry.decision import Archive
from recruiter.embedded import EmbeddedServer
from recruiter.steps.clean import count_waiting
from recruiter.store import outcomes
from recruiter.store.codec import OPTIONS, encode, job_document
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.views.analytics import overview

NOW = datetime.now(UTC).replace(microsecond=0)
TASKS = [(f"group{number % 6}", f"task{number}") for number in range(24)]
ERRORS = ["ValueError", "ConnectionError", "TimeoutError", "shop.errors.PaymentRefused"]
WHYS = ["tried-too-many-times", "non-retriable-exception", "not-scheduled-by-retry-policy", "lost", "cancelled"]
TRACE = (
    'Traceback (most recent call last):\n  File "shop/mail.py", line 12, in send\n    connection.send(message)\n' * 4
)
READ_FROM = ("recruiter.scheduled", "recruiter.archived", "recruiter.statistics")
READS = ("find", "aggregate", "count", "distinct")
BATCH = 5_000

FILTERS: dict[str, dict[str, Any]] = {
    "everything": {},
    "waiting": {"state": "waiting"},
    "queued": {"state": "queued"},
    "postponed": {"state": "postponed"},
    "running": {"state": "running"},
    "succeeded": {"state": "succeeded"},
    "failed": {"state": "failed"},
    "cancelled": {"state": "cancelled"},
    "lost": {"state": "lost"},
    "why": {"why": "non-retriable-exception"},
    "task": {"task": "task3"},
    "group": {"group": "group3"},
    "group, task, failed": {"group": "group3", "task": "task3", "state": "failed"},
    "tag": {"tag": "user:7"},
    "two tags": {"tag": ["eu", "user:7"]},
    "owner": {"owner": "user7"},
    "owner, failed": {"owner": "user7", "state": "failed"},
    "urn": {"urn": "report:7"},
    "key": {"key": "customer:7"},
    "worker": {"worker": "host1:4242:ab12"},
    "worker that never was": {"worker": "host9:1:ab12"},
    "error": {"error": "PaymentRefused"},
    "error, waiting": {"error": "PaymentRefused", "state": "waiting"},
    "argument, failed": {"args": {"customer.id": 42}, "state": "failed"},
    "argument": {"args": {"customer.id": 42}},
    "argument, last hour": {"args": {"customer.id": 42}, "since": "1h"},
    "last hour": {"since": "1h"},
    "failed, last hour": {"state": "failed", "since": "1h"},
    "ended a day ago": {"ended_since": "25h", "ended_until": "24h"},
    "created in the last hour": {"created_since": "1h"},
    "scheduled in the last hour": {"scheduled_since": "1h"},
    "recovered from": {"recovered_from": "nobody"},
    "attempts": {"attempts": 4},
    "delayed": {"delayed": "5s"},
    "delayed, waiting": {"delayed": "30m", "state": "waiting"},
    "slow": {"slow": "2s"},
    "slow, task, last day": {"slow": "1s", "task": "task3", "since": "1d"},
}


class Commands(CommandListener):
    """The commands to the collections of jobs, and their durations."""

    def __init__(self) -> None:
        self.sent: list[tuple[dict[str, Any], float]] = []
        self._begun: dict[int, dict[str, Any]] = {}

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in READS and event.command[event.command_name] in READ_FROM:
            self._begun[event.request_id] = dict(event.command)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        if event.request_id in self._begun:
            self.sent.append((self._begun.pop(event.request_id), event.duration_micros / 1000))

    def failed(self, event: CommandFailedEvent) -> None:
        self._begun.pop(event.request_id, None)


# -- making jobs -----------------------------------------------------------------------------------------------------


def a_job(chance: random.Random, at: datetime) -> Job:
    group, task = chance.choice(TASKS)
    some = chance.random
    return Job(
        id=ObjectId(),
        task=task,
        args={"customer": {"id": chance.randrange(50_000), "name": "Ada Lovelace"}, "amount": chance.randrange(1000)},
        created_at=at,
        scheduled_at=at,
        group=group,
        priority=chance.choice([0] * 8 + [5, -3]),
        tags=(f"user:{chance.randrange(1000)}", "eu") if some() < 0.2 else (),
        owner=f"user{chance.randrange(200)}" if some() < 0.3 else None,
        urn=f"report:{chance.randrange(20)}" if some() < 0.02 else None,
        limited_by=f"customer:{chance.randrange(20)}" if some() < 0.1 else None,
        needs=Needs.of(proc=1) if some() < 0.1 else Needs(),
    )


def ended_jobs(number: int) -> Iterator[outcomes.ToArchive]:
    """Over five days, in the order in which they ended, as they would be."""
    chance = random.Random(1)
    for place in range(number):
        at = NOW - timedelta(days=5) * (1 - place / number) - timedelta(seconds=10)
        document = job_document(a_job(chance, at))
        started = at + timedelta(seconds=chance.expovariate(1.0))
        end = started + timedelta(seconds=chance.expovariate(3.0))
        worker = f"host{chance.randrange(4)}:4242:ab12"
        if chance.random() < 0.95:
            yield outcomes.succeeded(document, Execution(started, end, worker), end, {"sent": True})
            continue
        why = chance.choice(WHYS)
        if why == "cancelled":
            yield outcomes.cancelled({**document, "cancel": {"at": end, "by": "ada", "reason": "not needed"}}, end)
            continue
        document["attempts"] = chance.randrange(6)
        failure = Execution(started, end, worker, exception=chance.choice(ERRORS), message="refused", trace=TRACE)
        outcome = outcomes.failed(document, failure, end, Archive(why))
        assert isinstance(outcome, outcomes.ToArchive)
        yield outcome


def waiting_jobs(number: int) -> Iterator[bytes]:
    chance = random.Random(2)
    for _ in range(number):
        job = a_job(chance, NOW - timedelta(seconds=chance.random() * 3600))
        if chance.random() < 0.5:
            job = replace(job, scheduled_at=NOW + timedelta(seconds=chance.random() * 86400))
        yield encode(job_document(job))


def fill(store: Store, ended: int, waiting: int) -> None:
    """Raw documents, in collections that have their owner: those of an unknown owner are refused."""
    store.prepare()
    archived, scheduled = (
        store.database.get_collection(store.name_of(name), write_concern=WriteConcern(1))
        for name in ("archived", "scheduled")
    )
    endings, waiters = ended_jobs(ended), waiting_jobs(waiting)
    while batch := list(islice(endings, BATCH)):
        archived.insert_many([RawBSONDocument(outcome.document) for outcome in batch], ordered=False)
        count(store, batch)
    while documents := list(islice(waiters, BATCH)):
        scheduled.insert_many([RawBSONDocument(raw) for raw in documents], ordered=False)
    while store.transactions.fold_statistics(NOW):  # as the leader does
        pass
    on_the_roster(store)


def count(store: Store, batch: list[outcomes.ToArchive]) -> None:
    """As settling them would have done."""
    writer, ends = uuid4(), [outcome.end for outcome in batch]
    with store.client.start_session() as session:
        session.with_transaction(lambda session: store.statistics.count(ends, (), writer, session))


def on_the_roster(store: Store) -> None:
    """Two workers that hold 100 jobs each, and run 20 of them."""
    due = store.due_jobs.due(store.due_jobs.lanes()[:50], NOW, 200, set())
    for place in range(2):
        held = due[place::2]
        running = [{"job": id, "task": "task1", "since": NOW - timedelta(seconds=len(held))} for id in held[:20]]
        facts = {"host": "here", "pid": place, "groups": None, "tasks": ["task1"], "slots": 20, "prefetch": 80}
        store.roster.join(f"here:{place}:ab12", {**facts, "joined_at": NOW, "seen_at": NOW})
        store.roster.collection.update_one(
            {"_id": f"here:{place}:ab12"}, {"$set": {"assigned": held, "running": running, "ready": True}}
        )


# -- asking ----------------------------------------------------------------------------------------------------------


def stages(plan: Any) -> set[str]:
    if isinstance(plan, list):
        return set().union(*map(stages, plan))
    if not isinstance(plan, dict):
        return set()
    here = {str(plan["stage"])} if "stage" in plan else set()
    return here.union(*(stages(value) for key, value in plan.items() if key != "rejectedPlans"))


def explained(store: Store, command: dict[str, Any]) -> tuple[int, int, set[str]]:
    """Keys and documents examined, and the stages."""
    plain = {
        key: value for key, value in command.items() if not key.startswith("$") and key not in ("lsid", "txnNumber")
    }
    plain.pop("readConcern", None)
    plan = store.database.command({"explain": plain, "verbosity": "executionStats"}, codec_options=OPTIONS)
    found = plan.get("executionStats") or plan["stages"][0]["$cursor"]["executionStats"]
    return found["totalKeysExamined"], found["totalDocsExamined"], stages(plan)


def spent_in_mongodb(store: Store) -> float:
    """Milliseconds that the server has spent on reading so far, by its own clock."""
    latencies = store.client.admin.command("serverStatus")["opLatencies"]
    return float(latencies["reads"]["latency"] + latencies["commands"]["latency"]) / 1000


def measure(store: Store, commands: Commands, name: str, ask: Callable[[], str]) -> bool:
    """One line of the table; whether all went along indexes."""
    first = spent_in_mongodb(store)
    ask()
    first = spent_in_mongodb(store) - first
    commands.sent.clear()
    spent, began = spent_in_mongodb(store), time.perf_counter()
    said = ask()
    took, spent = (time.perf_counter() - began) * 1000, spent_in_mongodb(store) - spent
    sent, commands.sent = commands.sent, []
    plans = [explained(store, command) for command, _ in sent]
    keys, documents = sum(plan[0] for plan in plans), sum(plan[1] for plan in plans)
    longest = max((ms for _, ms in sent), default=0.0)
    bad = set().union(*(plan[2] for plan in plans)) & {"COLLSCAN", "SORT"} if plans else set()
    verdict = ", ".join(sorted(bad)) or "indexes"
    figures = f"{took:8.1f} {first:8.1f} {spent:10.1f} {len(sent):7} {longest:8.1f} {keys:9,} {documents:9,}"
    print(f"{name:36} {figures}  {verdict:8}  {said}", flush=True)
    return not bad


def ask_everything(recruiter: Recruiter, store: Store, commands: Commands) -> bool:
    well = []
    figures = (
        f"{'ms here':>8} {'at first':>8} {'in MongoDB':>10} {'queries':>7} {'longest':>8} {'keys':>9} {'documents':>9}"
    )
    print(f"{'':36} {figures}")
    for name, words in FILTERS.items():
        well.append(measure(store, commands, f"list {name}", partial(_listed, recruiter, words)))
    for name, words in FILTERS.items():
        well.append(measure(store, commands, f"count {name}", partial(_counted, recruiter, words)))
    for state in ("running", "queued", "postponed", "failed"):
        job = recruiter.jobs.list(state=state, limit=1).jobs[0]
        well.append(measure(store, commands, f"show a {state} job", partial(_shown, recruiter, job.id)))
    count_waiting(store)  # as the cleaner does
    for within in ("1m", "1h", "1d"):
        well.append(measure(store, commands, f"analytics within {within}", partial(_analysed, recruiter, within)))
    well.append(measure(store, commands, "analytics of a group", partial(_analysed, recruiter, "1h", "group3")))
    well.append(measure(store, commands, "what top looks at", partial(_overseen, recruiter)))
    well.append(measure(store, commands, "counting what waits", partial(_waiting, store)))
    return all(well)


def _analysed(recruiter: Recruiter, within: str, group: str | None = None) -> str:
    told = recruiter.analytics(group, within=within)
    return f"{told.jobs.queued:,} queued, {told.jobs.postponed:,} postponed, {sum(told.ended.values()):,} ended"


def _waiting(store: Store) -> str:
    return f"{len(store.queues.count(store.clock.now()).of)} kinds, as the cleaner does for all who look"


def _overseen(recruiter: Recruiter) -> str:
    seen = overview(recruiter.store, jobs=100, within=timedelta(minutes=30))
    told = recruiter.analytics()
    return f"{len(seen.workers)} workers, {len(seen.running)} running jobs, {len(told.queues)} queues"


def _listed(recruiter: Recruiter, words: dict[str, Any]) -> str:
    page = recruiter.jobs.list(**words, minimal=True)
    return f"{len(page)} found, {page.looked_at:,} looked at{', more to look at' if page.next else ''}"


def _counted(recruiter: Recruiter, words: dict[str, Any]) -> str:
    return str(recruiter.jobs.count(**words))


def _shown(recruiter: Recruiter, id: Any) -> str:
    return f"{recruiter.find(id).state}: {recruiter.explain(id)[:60]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ended", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=200_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    commands = Commands()
    with EmbeddedServer(options.folder) as server:
        target = server.uri.replace("/?", f"/archive_{options.ended}_{options.waiting}?")
        with mock.patch("recruiter.store.database.MongoClient", partial(MongoClient, event_listeners=[commands])):
            store = Store(Target.parse(target))
            store.check()
        if store.archived.collection.estimated_document_count() < options.ended:
            store.drop()
            began = time.perf_counter()
            fill(store, options.ended, options.waiting)
            print(
                f"{options.ended:,} ended and {options.waiting:,} waiting jobs in {time.perf_counter() - began:.0f} s"
            )
        recruiter = Recruiter(target)
        recruiter.__dict__["store"] = store
        well = ask_everything(recruiter, store, commands)
        recruiter.close()
    raise SystemExit(0 if well else 1)


if __name__ == "__main__":
    main()
