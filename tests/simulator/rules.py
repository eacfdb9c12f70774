"""The rules for the stored jobs and flows, whatever has happened: after every write, and at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

from bson import ObjectId

from recruiter.domain.flow import FlowState, On
from recruiter.domain.job import JobId
from recruiter.domain.names import ASIDE, BLOCKED_LANE, CANCELLED_LANE
from recruiter.domain.state import Why
from recruiter.store.codec import Document, flow_of
from recruiter.store.job_fields import begun_at, waiting_for
from tests.simulator.documents import MISSING
from tests.simulator.server import Server

PERIOD = 0.8
"""Seconds of a throttle, and the delay of a debounced job."""
_CLOCKS = timedelta(seconds=0.1)
"""By which the clocks of processes may differ."""
_NOT_BEGUN_ONCE = ("started", "debounced", "throttled")


class Violation(AssertionError):
    pass


class Rules:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.steps: dict[ObjectId, set[JobId]] = defaultdict(set)
        """The steps of each flow that were acknowledged."""
        self.maybe: dict[ObjectId, set[JobId]] = {}
        """The steps of flows that were started without an answer: all of them exist, or none."""
        self.joined: dict[JobId, set[JobId]] = defaultdict(set)
        """The steps that were added before a step, while it already waited for the step that added them."""
        self.calls: dict[JobId, list[int]] = defaultdict(list)
        """The calls whose arguments a debounced or throttled job has had."""
        self.kept: dict[JobId, set[str]] = defaultdict(set)
        """The checkpoints that were acknowledged to a run."""
        self.forgotten: set[JobId] = set()
        """Ended jobs that were removed with their flow."""
        self._seen: dict[JobId, Document] = {}
        """Each job after its last write."""

    def _all(self, name: str) -> dict[Any, Document]:
        return self._server.collections.get(name, {})

    def _jobs(self) -> Iterator[Document]:
        yield from self._all("scheduled").values()
        yield from self._all("archived").values()

    # -- after every write ---------------------------------------------------------------------------------------------

    def check(self, changed: list[tuple[str, Any]]) -> None:
        for name, key in changed:
            if name in ("scheduled", "archived"):
                self._check_job(key)
            elif name == "effects":
                self._check_effects(self._all(name)[key]["job"])

    def _check_job(self, id: JobId) -> None:
        waiting, ended = self._all("scheduled").get(id), self._all("archived").get(id)
        if waiting is not None and ended is not None:
            raise Violation(f"job {id} waits, and has ended")
        document = waiting or ended
        if document is None:
            self._check_forgotten(id)
            return
        self._check_history(id, document)
        if waiting is not None and "cancel" in waiting and waiting.get("lane") not in (None, CANCELLED_LANE):
            raise Violation(f"job {id} is cancelled, and waits in lane {waiting['lane']}")
        if waiting is not None:
            self._check_wait(waiting)
        if "flow" in document:
            self._check_step(document, waits=waiting is not None)
        args = document.get("args")
        if isinstance(args, dict) and "call" in args:
            self._check_key(document, args)
        if ended is not None and ended.get("task") == "counted":
            self._check_effects(id)
        self._seen[id] = document

    def _check_forgotten(self, id: JobId) -> None:
        seen = self._seen.get(id, {})
        flow = self._all("flows").get(seen["flow"]["id"]) if "flow" in seen else None
        if flow is None or not flow.get("forgotten") or "archived_at" not in seen:
            raise Violation(f"job {id} is nowhere")
        self.forgotten.add(id)

    def _check_history(self, id: JobId, document: Document) -> None:
        """Neither a write that comes late nor anything else forgets an attempt, a checkpoint or a signal."""
        seen = self._seen.get(id, {})
        before, attempts = int(seen.get("attempts") or 0), int(document.get("attempts") or 0)
        if attempts < before:
            raise Violation(f"job {id} had {before} attempts, and has {attempts}")
        kept = {each["name"]: each.get("result") for each in document.get("checkpoints", ())}
        for each in seen.get("checkpoints", ()):
            name = each["name"]  # without an answer, a job that fails may be archived without it
            if kept.get(name, MISSING) != each.get("result") and (name in kept or name in self.kept[id]):
                raise Violation(f"job {id} has lost its checkpoint {name!r}, or has another result for it")
        signals = document.get("signals", ())
        if list(signals)[: len(seen.get("signals", ()))] != list(seen.get("signals", ())):
            raise Violation(f"job {id} has lost a signal: {seen['signals']} became {signals}")

    def _check_wait(self, document: Document) -> None:
        """A job that waits for a signal that has come is due."""
        kept = document.get("checkpoints", ())
        taken = sum(each["name"].startswith("wait_for ") and each.get("problem") is None for each in kept)
        if waiting_for(document) is not None and len(document.get("signals", ())) > taken:
            raise Violation(f"job {document['_id']} waits for signal {taken + 1}, which has come")

    def _check_step(self, document: Document, *, waits: bool) -> None:
        place = document["flow"]
        flow, step = place["id"], place["step"]
        alike = [job["_id"] for job in self._all("scheduled").values() if _step(job) == (flow, step)]
        if len(alike) > 1:
            raise Violation(f"step {step} waits {len(alike)} times: {alike}")
        if document["_id"] == step and step not in self._seen:
            self._note_added(flow, step)
        if alike and any(job["done"] for job in self._all("archived").values() if _step(job) == (flow, step)):
            raise Violation(f"step {step} has succeeded, and waits again as {alike[0]}")
        stored = self._all("flows").get(flow)
        if not waits or stored is None:
            return
        if stored.get("forgotten"):
            raise Violation(f"step {step} waits, and its flow is forgotten")
        is_held = "paused" in stored and place.get("held") == stored.get("holds")
        if is_held and document["lane"] not in ASIDE:
            raise Violation(f"step {step} is held, and waits in lane {document['lane']}")

    def _note_added(self, flow: ObjectId, step: JobId) -> None:
        """If a running step has added this step before its dependents, they wait for it from now on."""
        adders = [job for job in self._jobs() if job.get("args", {}).get("adds") == step and job["args"]["before"]]
        for job in self._jobs() if adders else ():
            place = flow_of(job)
            if place is not None and place.flow == flow:
                required = {*place.after} - place.any - place.failed
                if adders[0]["flow"]["step"] in required:
                    self.joined[place.step].add(step)

    def _check_key(self, document: Document, args: Document) -> None:
        """At most one job of a key waits for its end, or for its start."""
        task, calls = document["task"], self.calls[document["_id"]]
        if task in ("debounced", "throttled") and args["call"] not in calls[-1:]:
            calls.append(args["call"])
        live = [
            job["_id"]
            for job in self._all("scheduled").values()
            if job.get("task") == task
            and job["args"].get("key") == args["key"]
            and job["lane"] != CANCELLED_LANE
            and "recovered_from" not in job
            and (task not in _NOT_BEGUN_ONCE or begun_at(job) is None)
        ]
        if len(live) > 1:
            raise Violation(f"{len(live)} jobs of key {task}/{args['key']} are there: {live}")

    def _check_effects(self, id: JobId) -> None:
        ended = self._all("archived").get(id, {})
        effects = sum(1 for effect in self._all("effects").values() if effect["job"] == id)
        if effects != bool(ended.get("done")):
            raise Violation(f"job {id} has had its effects {effects} times; succeeded: {bool(ended.get('done'))}")

    # -- when a job starts ---------------------------------------------------------------------------------------------

    def may_start(self, document: Document) -> None:
        if document.get("debounced") and "recovered_from" not in document:
            now = self._all("scheduled").get(document["_id"])
            if now is not None and now["args"] != document["args"]:
                raise Violation(f"job {document['_id']} starts with other arguments than it has: {now['args']}")
        place = flow_of(document)
        if place is None or place.on is not None:
            return
        if not self.joined[place.step] <= {*place.after}:
            raise Violation(
                f"step {place.step} does not wait for {self.joined[place.step]}, which were added before it"
            )
        for other in place.after:
            ends = [job["done"] for job in self._all("archived").values() if _step(job) == (place.flow, other)]
            optional = other in place.any or other in place.failed
            if not any(ends) and not (optional and ends):
                raise Violation(f"step {place.step} starts before step {other}, for which it waits")

    # -- at the end ----------------------------------------------------------------------------------------------------

    def check_the_end(self, *, clocks_agree: bool) -> None:
        if self._all("flow_markers"):
            raise Violation(f"{len(self._all('flow_markers'))} markers are left")
        for id, steps in self.maybe.items():
            if id in self._all("flows"):
                self.steps[id] |= steps
        forgotten = {self._seen[job]["flow"]["step"] for job in self.forgotten}
        for id, steps in self.steps.items():
            if id not in self._all("flows") and not steps <= forgotten:
                raise Violation(f"flow {id} is nowhere, and its steps {steps - forgotten} were not forgotten")
        for flow in self._all("flows").values():
            self._check_flow(flow)
        for document in self._all("archived").values():
            if document["why"] == Why.MALFORMED:
                raise Violation(f"job {document['_id']} was set aside: {document.get('reason')}")
            if isinstance(document.get("result"), dict):
                _check_received(document)
        if clocks_agree:
            self._check_periods()

    def _check_flow(self, flow: Document) -> None:
        if flow.get("forgotten"):
            return
        jobs = [job for job in self._jobs() if job.get("flow", {}).get("id") == flow["_id"]]
        steps: dict[JobId, list[Document]] = defaultdict(list)
        for job in jobs:
            if "on" not in job["flow"]:
                steps[job["flow"]["step"]].append(job)
        if missing := self.steps[flow["_id"]] - steps.keys():
            raise Violation(f"flow {flow['_id']} has lost the steps {missing}")
        states = {step: _end_of(some) for step, some in steps.items()}
        for step, some in steps.items():
            _check_verdict(step, some, states)
        expected = FlowState.SUCCEEDED
        if "failed" in states.values():
            expected = FlowState.CANCELLED if "cancel" in flow else FlowState.FAILED
        found = flow.get("ended", {}).get("state")
        if found != expected.value:
            raise Violation(f"flow {flow['_id']} has ended as {found}, and it is {expected.value}")
        self._check_ends(flow, expected, [job for job in jobs if "on" in job["flow"]])

    def _check_ends(self, flow: Document, state: FlowState, ends: list[Document]) -> None:
        due = {On.END, On.SUCCESS if state is FlowState.SUCCEEDED else On.FAILURE}
        for end in flow.get("ends", ()):
            made = sum(1 for job in ends if job["flow"]["on"] == end["on"] and "recovered_from" not in job)
            if made > 1 or (end["on"] in due and made != 1):
                raise Violation(f"flow {flow['_id']} {state.value}, and its end on {end['on']} was made {made} times")

    def _check_periods(self) -> None:
        begun: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for job in self._all("archived").values():
            at = begun_at(job)
            if job.get("task") in ("debounced", "throttled") and "recovered_from" not in job and at is not None:
                begun[job["task"], job["args"]["key"]].append(at)
                if at < job["scheduled_at"] - _CLOCKS and not job.get("attempts", 0) > 1:
                    raise Violation(f"job {job['_id']} began at {at}, and was due at {job['scheduled_at']}")
        for (task, key), moments in begun.items():
            moments.sort()
            for one, other in pairwise(moments):
                if task == "throttled" and other - one < timedelta(seconds=PERIOD) - _CLOCKS:
                    raise Violation(f"two jobs of key {task}/{key} began within {other - one}")


def _step(document: Document) -> tuple[ObjectId, JobId] | None:
    place = document.get("flow")
    return None if place is None or "on" in place else (place["id"], place["step"])


def _end_of(jobs: list[Document]) -> str:
    """How a step has ended, by its last job."""
    if any(job.get("done") for job in jobs):
        return "succeeded"
    (last,) = (job for job in jobs if "recovered_as" not in job)
    if "archived_at" not in last:
        return "pending"
    return "skipped" if last["why"] == Why.NOT_NEEDED else "failed"


def _check_verdict(step: JobId, jobs: list[Document], states: dict[JobId, str]) -> None:
    """A step that was given up or left out had a reason, which is still there."""
    for job in jobs:
        place = flow_of(job)
        if "recovered_as" in job or place is None:
            continue
        required = [states.get(other) for other in place.after if other not in place.any | place.failed]
        if job.get("why") == Why.DEPENDENCY_FAILED and "failed" not in required:
            raise Violation(f"step {step} was given up, and its dependencies have ended well: {required}")
        tried = [states.get(other) for other in place.failed]
        if job.get("why") == Why.NOT_NEEDED and "skipped" not in required and (not tried or "failed" in tried):
            raise Violation(f"step {step} was left out, and it was needed: {required}, {tried}")
        if job.get("lane") == BLOCKED_LANE:
            raise Violation(f"step {step} still waits: {required}")


def _check_received(document: Document) -> None:
    """Each wait of a durable job has taken the next signal, or none within its time."""
    received = [data for data in document["result"]["received"] if data is not None]
    sent = [signal["data"] for signal in document.get("signals", ())]
    if received != sent[: len(received)]:
        raise Violation(f"job {document['_id']} received {received}, and was sent {sent}")
