"""Measures whether a full database slows down the drain, compared with an empty database.

    python benchmarks/growth.py [--only CASE …] [--size N] [--jobs N] [--times N] [--json FILE]

    waiting      --size more jobs of the same task wait behind the counted jobs
    postponed    --size jobs wait for their time
    archived     --size jobs have ended
    roster       200 more live workers, which serve another task
    groups       the jobs are spread over 1,000 groups
    schedulers   10,000 schedulers, none of which is due

One worker with two children, a private MongoDB. Each case runs right after an empty database. Compare the ratio of
the two: machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import noop
from bson import ObjectId
from budget import Figures, of_the_product
from pymongo.write_concern import WriteConcern

from recruiter import Cron
from recruiter.domain.job import Execution, Job
from recruiter.embedded import EmbeddedServer
from recruiter.store import outcomes
from recruiter.store.codec import decode, job_document
from recruiter.store.connection import Target
from recruiter.store.database import Store

WORKERS, GROUPS, SCHEDULERS = 200, 1000, 10_000
_AT_ONCE = 5000

Around = Callable[[Store], None]


def fill(store: Store, collection: str, template: dict[str, object], count: int) -> None:
    """Writes copies of this document as fast as possible."""
    place = store.database.get_collection(store.name_of(collection), write_concern=WriteConcern(1))
    for start in range(0, count, _AT_ONCE):
        place.insert_many([{**template, "_id": ObjectId()} for _ in range(min(_AT_ONCE, count - start))], ordered=False)


def waiting(size: int) -> Around:
    return lambda store: fill(store, "scheduled", job_document(replace(_job(), priority=-1)), size)


def postponed(size: int) -> Around:
    def around(store: Store) -> None:
        job = _job()
        later = replace(job, scheduled_at=job.created_at + timedelta(days=1), priority=1)
        fill(store, "scheduled", job_document(later), size)

    return around


def archived(size: int) -> Around:
    def around(store: Store) -> None:
        now = store.clock.now()
        ended = outcomes.succeeded(job_document(_job()), Execution(now, now, "somebody"), now, None)
        fill(store, "archived", decode(ended.document), size)

    return around


def schedulers(_: int) -> Around:
    def around(store: Store) -> None:
        noop.noop.job(0, "x").repeat_with_policy(Cron("0 6 1 1 *")).create()
        (one,) = store.schedulers.collection.find()
        store.schedulers.collection.delete_many({})
        copies = [{**one, "_id": f"urn:{number}"} for number in range(SCHEDULERS)]
        store.schedulers.collection.insert_many(copies, ordered=False)

    return around


def roster(_: int) -> Around:
    def around(store: Store) -> None:
        moment = store.clock.now()
        facts = {"host": "elsewhere", "pid": 1, "groups": None, "tasks": ["another"], "slots": 2, "prefetch": 0}
        for number in range(WORKERS):
            store.roster.join(f"other:{number}", {**facts, "joined_at": moment, "seen_at": moment})
            store.roster.become_ready(f"other:{number}", 0)

    return around


@contextmanager
def showing_life(uri: str) -> Iterator[None]:
    """The other workers, where there are any, beat once a second."""
    store, stop = Store(Target.parse(uri.replace("/?", "/bench?"))), threading.Event()

    def beat() -> None:
        life = {"$inc": {"beats": 1}, "$currentDate": {"seen_at": True}}
        while not stop.wait(1.0):
            store.roster.collection.update_many({"host": "elsewhere"}, life)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        store.close()


def groups(store: Store) -> None:
    """The jobs that are counted go into many groups."""
    scheduled = store.scheduled.collection
    ids = [document["_id"] for document in scheduled.find({}, {"_id": 1})]
    for number in range(GROUPS):
        group = {"group": f"group{number}", "lane": f"group{number}/noop"}
        scheduled.update_many({"_id": {"$in": ids[number::GROUPS]}}, {"$set": group})


CASES: dict[str, Callable[[int], Around]] = {
    "waiting": waiting,
    "postponed": postponed,
    "archived": archived,
    "roster": roster,
    "groups": lambda _: groups,
    "schedulers": schedulers,
}


def _job() -> Job:
    return noop.noop.job(0, "x").build()


def drained(server: EmbeddedServer, jobs: int, around: Around) -> Figures:
    with showing_life(server.uri):
        return of_the_product(server.uri, server.pid or 0, jobs, 2, around)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CASES), nargs="+", default=list(CASES))
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, list[tuple[Figures, Figures]]] = {}
    for name in options.only:
        for _ in range(options.times):
            with EmbeddedServer() as server:
                drained(server, options.jobs // 4, lambda _: None)  # a new server is slow at first
                empty = drained(server, options.jobs, lambda _: None)
                full = drained(server, options.jobs, CASES[name](options.size))
            figures.setdefault(name, []).append((empty, full))
            print(f"{name:12} empty {empty['drain /s']:8,.0f}/s   full {full['drain /s']:8,.0f}/s", flush=True)
    print(f"\n{'case':12} {'drain':>7} {'CPU µs: mongod':>15} {'leader':>8} {'supervisor':>11}   (full : empty)")
    for name, pairs in figures.items():
        measures = ["drain /s", *(f"CPU µs per job, {who}" for who in ("mongod", "leader", "supervisor"))]
        ratios = [statistics.median(full[measure] / empty[measure] for empty, full in pairs) for measure in measures]
        print(f"{name:12} {ratios[0]:7.2f} {ratios[1]:15.2f} {ratios[2]:8.2f} {ratios[3]:11.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
