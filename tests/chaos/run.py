"""One chaos run: a fleet on three nodes, faults for a while, then quiet, then the checker.

python -m tests.chaos.run --jobs 20000 --seconds 120 --seed 7 [--out docs]
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import PyMongoError

from recruiter import FlowState, Recruiter
from tests.chaos import application, ledger, report
from tests.chaos.checker import check
from tests.chaos.evidence import Evidence, FlowEnd, Run, UniqueSend
from tests.chaos.faults import Faults
from tests.chaos.fleet import Fleet
from tests.chaos.hosts import Hosts
from tests.chaos.users import resume_all
from tests.replica_set import EmbeddedReplicaSet
from tests.warm import warm

DATABASE = "chaos"
LEASE, DEAD_AFTER = 2.0, 4.0
_DRAIN_WITHIN, _SLOWEST = 180.0, 50.0
"""Seconds, and jobs a second, in which everything must end when the faults are over."""
_GONE_WITHIN = 15.0
_SLOW_ONES, _SLOW_ONE = 3, 60.0
"""How many slow jobs are run beside thousands of others, and how long each takes, in seconds."""
_NODES = 3
_AT_MOST = 4.0
"""How many times longer than asked for faults may come while the producers have not sent everything."""
_HELD_EVERY, _HELD_FOR = 0.5, 30.0
"""Seconds between two questions which jobs the workers hold that were hit, and how long they are asked about."""
_MISTAKE = "a bug in Recruiter"
_EXECUTION = ("crashed", "worker", "ended_at", "class", "message")
_NEEDED = {
    **dict.fromkeys(
        (
            *("task", "args", "urn", "done", "result", "why", "reason", "attempts", "snoozes", "at_most_once"),
            *("flow", "recovered_as", "recovered_from"),
        ),
        1,
    ),
    **{f"{name}.{each}": 1 for name in ("last_execution", "executions") for each in _EXECUTION},
}
"""Of hundreds of thousands of jobs; the whole documents would not fit into memory."""
_FROM_HERE = 1_000_000
"""The first number of the jobs that the run itself enqueues; producers count from much higher on."""


class ChaosRun:
    """Everything of one run; `evidence` is complete after `run()`."""

    def __init__(
        self,
        folder: Path,
        *,
        jobs: int,
        seconds: float,
        seed: int,
        pause: float = 0.35,
        database_pause: float = 6.0,
        beside: int = 0,
    ) -> None:
        self._folder = folder
        self._beside = beside
        self._jobs, self._seconds, self._seed = jobs, seconds, seed
        self._pause, self._database_pause = pause, database_pause
        self._client: MongoClient[dict[str, Any]] | None = None

    def run(self) -> Evidence:
        hosts = Hosts(self._folder, _NODES)
        try:
            with hosts.environment_of_fleet():
                warm()
            with EmbeddedReplicaSet(_NODES, binary=hosts.binary, folders=hosts.folders) as replica_set:
                return self._on(replica_set, hosts)
        finally:
            hosts.close()

    def _on(self, replica_set: EmbeddedReplicaSet, hosts: Hosts) -> Evidence:
        target = replica_set.uri.replace("/?", f"/{DATABASE}?")
        client: MongoClient[dict[str, Any]] = MongoClient(target, tz_aware=True)
        with client, Recruiter(target) as recruiter:
            recruiter.store.prepare()
            recruiter.controls.set_limit("task:limited", application.MOST_LIMITED)
            recruiter.controls.set_limit("task:paced", count=application.RATE, per=application.RATE_SECONDS)
            recruiter.controls.share_group(application.SHARED, "owner")
            self._client = client
            settings = {"RECRUITER_CONSIDERED_DEAD_AFTER": f"{DEAD_AFTER}s", "RECRUITER_LEASE_TIME": f"{LEASE}s"}
            fleet = Fleet(target, self._folder, settings, self._jobs, self._jobs / self._seconds, self._seed)
            return self._with(fleet, replica_set, hosts, client, recruiter)

    def _with(
        self,
        fleet: Fleet,
        replica_set: EmbeddedReplicaSet,
        hosts: Hosts,
        client: MongoClient[dict[str, Any]],
        recruiter: Recruiter,
    ) -> Evidence:
        faults = Faults(
            *(fleet, replica_set, hosts, self._folder),
            seed=self._seed,
            dead_after=DEAD_AFTER,
            leader_pid=self._leader_pid,
        )
        stopping = ["the run was broken off"]
        over = threading.Event()
        holding = threading.Thread(target=self._note_held, args=(faults, over))
        try:
            self._wait(lambda: client[DATABASE].recruiter.archived.find_one({}) is not None, 60)
            holding.start()
            latest = time.monotonic() + _AT_MOST * self._seconds
            faults.run(
                lambda: all(producer.done for producer in fleet.producers) or time.monotonic() > latest,
                *(self._pause, self._database_pause),
            )
            self._quiet(fleet, recruiter)
            if self._beside:
                self._beside_slow_ones(fleet, faults)
        finally:
            over.set()
            stopping = fleet.stop()
        holding.join()
        return self._evidence(faults, client, stopping, self._orphans(fleet))

    def _note_held(self, faults: Faults, over: threading.Event) -> None:
        """A worker that was hit stays on the roster until it is retired, with all jobs that it holds."""
        assert self._client is not None
        roster = self._client[DATABASE].recruiter.roster
        while not over.wait(_HELD_EVERY):
            recent = [fault for fault in faults.faults if fault.at > time.monotonic() - _HELD_FOR]
            hit = {pid: fault for fault in recent if not (fault.is_polite or fault.until) for pid in fault.pids}
            with suppress(PyMongoError):
                for worker in roster.find({"pid": {"$in": [*hit]}}, {"pid": 1, "assigned": 1}, max_time_ms=500):
                    hit[worker["pid"]].held.update(map(str, worker["assigned"]))

    def _orphans(self, fleet: Fleet) -> list[str]:
        """Those that stay: a helper of Python's may need a moment to notice that its process has ended."""
        deadline = time.monotonic() + _GONE_WITHIN
        while (left := fleet.orphans()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left

    def _quiet(self, fleet: Fleet, recruiter: Recruiter) -> None:
        """No more faults: the producers finish, no more occurrences, and everything that waits is run."""
        deadline = time.monotonic() + max(_DRAIN_WITHIN, self._jobs / _SLOWEST)
        while not all(producer.done for producer in fleet.producers) and time.monotonic() < deadline:
            fleet.keep()
            time.sleep(0.2)
        fleet.user.wanted = False
        fleet.user.signal(signal.SIGTERM)
        while fleet.user.running and time.monotonic() < deadline:
            time.sleep(0.2)
        resume_all(recruiter)
        recruiter.scheduler(application.TICK).pause(reason="the run is over")
        self._until_ended(fleet, {}, deadline)
        self._until_retired(fleet, deadline)

    def _until_retired(self, fleet: Fleet, deadline: float) -> None:
        """A worker that was killed is retired a while after its last heartbeat, also if it held nothing any more."""
        assert self._client is not None
        roster = self._client[DATABASE].recruiter.roster
        while time.monotonic() < deadline:
            if set(roster.distinct("pid")) <= {member.pid for member in fleet.members}:
                return
            fleet.keep()
            time.sleep(0.2)

    def _until_ended(self, fleet: Fleet, which: dict[str, Any], deadline: float) -> None:
        """The end of the last step leaves a marker, and the leader then stores the jobs at the end of its flow."""
        assert self._client is not None
        database = self._client[DATABASE].recruiter
        places: tuple[tuple[Any, dict[str, Any]], ...] = (
            (database.scheduled, which),
            (database.flow_markers, {}),
            (database.scheduled, which),
        )
        while time.monotonic() < deadline and any(place.find_one(query) is not None for place, query in places):
            fleet.keep()
            time.sleep(0.2)

    def _beside_slow_ones(self, fleet: Fleet, faults: Faults) -> None:
        """The worker with several jobs at once in one process, alone, runs slow jobs and thousands beside them; then
        the process is killed, and whatever it ran must run again."""
        *others, last = fleet.workers
        for worker in others:
            worker.wanted = False
            worker.signal(signal.SIGTERM)
        sent = ledger.Ledger(self._folder, "sent")
        deadline = time.monotonic() + max(_DRAIN_WITHIN, self._beside / _SLOWEST)
        application.recruiter.point_at(fleet.environment["RECRUITER_TARGET"])
        slow = [(_FROM_HERE + n, _SLOW_ONE) for n in range(_SLOW_ONES)]
        plain = [(_FROM_HERE + _SLOW_ONES + n,) for n in range(self._beside)]
        sent.write("asked", first=_FROM_HERE, count=_SLOW_ONES + self._beside)
        for task, arguments in ((application.slowest, slow), (application.plain, plain)):
            handles = task.enqueue_many(arguments)
            jobs = {each[0]: str(handle.id) for each, handle in zip(arguments, handles, strict=True)}
            sent.write("acknowledged", jobs=jobs)
        self._until_ended(fleet, {"task": "plain"}, deadline)
        faults.kill_children_of(last)
        self._until_ended(fleet, {}, deadline)

    def _evidence(
        self, faults: Faults, client: MongoClient[dict[str, Any]], stopping: list[str], orphans: list[str]
    ) -> Evidence:
        database = client[DATABASE]
        asked: set[int] = set()
        acknowledged: dict[int, str] = {}
        acknowledged_at: dict[str, float] = {}
        seen: dict[str, float] = {}
        unique: list[UniqueSend] = []
        keyed: dict[str, list[UniqueSend]] = {"latest": [], "throttled": []}
        signalled: dict[str, float] = {}
        runs = list(ledger.read(self._folder, "runs"))
        for line in ledger.read(self._folder, "sent"):
            if line["what"] == "asked":
                asked.update(range(line["first"], line["first"] + line["count"]))
            elif "keyed" in line:
                facts = (line["asked_at"], line["at"], line["number"])
                keyed[line["task"]].append(UniqueSend(line["key"], line["keyed"], line["new"], *facts))
            elif line["what"] == "seen":
                seen.update((job, min(line["at"], seen.get(job, line["at"]))) for job in line["jobs"])
            elif "signalled" in line:
                signalled[line["signalled"]] = line["at"]
            elif line["what"] == "acknowledged":
                acknowledged.update((int(number), id) for number, id in line["jobs"].items())
                acknowledged_at.update(dict.fromkeys(line["jobs"].values(), line["at"]))
                if "key" in line:
                    (job,) = line["jobs"].values()
                    unique.append(UniqueSend(line["key"], job, line["new"], line["asked_at"], line["at"]))
        return Evidence(
            acknowledged,
            asked,
            list(_runs(line for line in runs if line["what"] in ("start", "end"))),
            faults.faults,
            scheduled=list(database.recruiter.scheduled.find({}, _NEEDED)),
            archived=list(database.recruiter.archived.find({}, _NEEDED)),
            unique=unique,
            effects={each["_id"]: each["count"] for each in database[application.EFFECTS].find({})},
            charges=[_charge(line) for line in runs if line["what"] == "charge"],
            signalled=signalled,
            timed_out={line["job"]: line["at"] for line in runs if line["what"] == "timed out"},
            orders={each["_id"] for each in database[application.ORDERS].find({}, {"_id": 1})},
            acknowledged_at=acknowledged_at,
            seen=seen,
            flows=_flow_ends(database, [*ledger.read(self._folder, "users"), *runs]),
            debounced=keyed["latest"],
            throttled=keyed["throttled"],
            epoch=time.time() - time.monotonic(),
            roster=list(database.recruiter.roster.find({})),
            orphans=orphans,
            stopping=stopping,
            mistakes=list(_mistakes(self._folder)),
            dead_after=DEAD_AFTER,
        )

    def _leader_pid(self) -> int | None:
        with suppress(PyMongoError):
            assert self._client is not None
            lease = self._client[DATABASE].recruiter.leases.find_one({}, max_time_ms=500)
            return lease.get("pid") if lease else None
        return None

    def _wait(self, fact: Any, within: float) -> None:
        deadline = time.monotonic() + within
        while not fact():
            if time.monotonic() > deadline:
                raise TimeoutError("the fleet did not begin to work")
            time.sleep(0.1)


def _runs(lines: Iterable[ledger.Line]) -> Iterable[Run]:
    """Pairs the starts with their ends: by job and process, in order."""
    starts: dict[tuple[str, int], list[tuple[float, str, str, int]]] = {}
    ends: dict[tuple[str, int], list[float]] = {}
    for line in lines:
        key = line["job"], line["pid"]
        if line["what"] == "start":
            facts = line["at"], sys.intern(line["task"]), sys.intern(line["worker"]), line["attempt"]
            starts.setdefault(key, []).append(facts)
        else:
            ends.setdefault(key, []).append(line["at"])
    for key, begun in starts.items():
        over = sorted(ends.get(key, []))
        for start, task, worker, attempt in sorted(begun):
            end = over.pop(0) if over and over[0] >= start else None
            yield Run(key[0], task, worker, key[1], attempt, start, end)


def _charge(line: ledger.Line) -> Run:
    return Run(line["job"], line["task"], line["worker"], line["pid"], line["attempt"], line["at"], line["at"])


def _flow_ends(database: Database[dict[str, Any]], lines: Iterable[ledger.Line]) -> dict[str, FlowEnd]:
    """Of the flows that users change: how each ended, and the steps that were acknowledged."""
    ends: dict[str, FlowEnd] = defaultdict(FlowEnd)
    for flow in database.recruiter.flows.find({"name": {"$ne": application.UNCHANGED}}, {"ended": 1, "cancel": 1}):
        state = FlowState((flow.get("ended") or {}).get("state", FlowState.RUNNING))
        ends[str(flow["_id"])] = FlowEnd(state, is_cancelled=flow.get("cancel") is not None)
    for line in lines:
        if line["what"] == "steps":
            ends[line["flow"]].steps.update(map(ObjectId, line["steps"]))
        elif line["what"] == "grew":
            ends[line["flow"]].steps.add(ObjectId(line["step"]))
    return dict(ends)


def _mistakes(folder: Path) -> Iterable[str]:
    for log in sorted(folder.glob("*.log")):
        with log.open(errors="replace") as lines:
            yield from (f"{log.name}: {line[:300].rstrip()}" for line in lines if _MISTAKE in line)


def _megabytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=date.today().toordinal())
    parser.add_argument("--pause", type=float, default=0.35, help="seconds between two faults of processes, on average")
    parser.add_argument("--database-pause", type=float, default=6.0, help="the same for faults of MongoDB")
    parser.add_argument("--beside", type=int, default=0, help="at the end run so many more beside slow ones")
    parser.add_argument("--keep", action="store_true", help="leave the ledgers, and what became of each job")
    parser.add_argument("--out", type=Path, help="where to write proof/ and pictures/, e.g. docs")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    began = time.monotonic()
    print(f"seed {given.seed}, ledgers in {folder}", flush=True)
    evidence = ChaosRun(
        folder,
        jobs=given.jobs,
        seconds=given.seconds,
        seed=given.seed,
        pause=given.pause,
        database_pause=given.database_pause,
        beside=given.beside,
    ).run()
    ended = time.monotonic()
    violations = check(evidence)
    facts = report.Facts(
        given.seed,
        ended - began,
        f"make chaos JOBS={given.jobs} SECONDS={given.seconds:g} SEED={given.seed}"
        f" PAUSE={given.pause:g} DATABASE_PAUSE={given.database_pause:g} BESIDE={given.beside}",
        f"lease {LEASE:g} s, dead after {DEAD_AFTER:g} s, three nodes",
    )
    name = f"chaos-{given.seed}"
    text = report.markdown(facts, evidence, violations, f"../pictures/{name}.svg")
    if given.out is not None:
        for path, content in ((f"proof/{name}.md", text), (f"pictures/{name}.svg", report.chart(evidence))):
            (given.out / path).parent.mkdir(parents=True, exist_ok=True)
            (given.out / path).write_text(content)
    print(text)
    print(f"read and checked in {time.monotonic() - ended:.0f} s, {_megabytes():,} MB")
    if given.keep:
        (folder / "archived.jsonl").write_text("".join(f"{json.dumps(d, default=str)}\n" for d in evidence.archived))
    elif not violations:
        shutil.rmtree(folder)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
