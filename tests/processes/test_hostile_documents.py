"""Hundreds of hostile documents in every collection, past the validators and not, beside a fleet at work: nothing
stops, nothing spins, doctor finds them, and no command ends in a traceback. Good jobs, flows and a schedule go on.

`make fuzz` runs it with 3,000 documents in each collection.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from bson.errors import BSONError
from pymongo.errors import PyMongoError

from recruiter import Every, FlowHandle, FlowState
from recruiter.doctor import Thresholds, examine
from recruiter.errors import UnreadableDocument
from recruiter.store.database import Store
from tests import hostile
from tests.applications import jobs
from tests.cli_here import here
from tests.conftest import Starter, eventually
from tests.depth import DEPTH

EACH = int(os.environ.get("RECRUITER_FUZZ", "60"))
SEED = int(os.environ.get("RECRUITER_FUZZ_SEED", "1"))
NAN = float("nan")
DAMAGED = (
    *("schedulers", "limits", "processes", "archived", "statistics", "leases", "unique_keys", "flows", "actions"),
)
"""Collections in which such documents stay. The leader removes markers and retires workers, and creations are only
counted."""
EVERY = Thresholds(unreadable_told=Thresholds().unreadable_counted)
COMMANDS = [
    *(["job", "list", "--limit", "0"], ["job", "list", "--limit", "0", "--full", "--output", "json"]),
    *(
        ["job", "list", "--state", "failed", "--limit", "0"],
        ["job", "list", "--urn", "u"],
        ["job", "list", "--tag", "t"],
    ),
    *(["job", "show", "scheduled-1"], ["job", "show", "archived-1"], ["job", "show", "archived-7"]),
    *(["scheduler", "list"], ["scheduler", "next", "schedulers-1"], ["worker", "list"], ["group", "list"]),
    *(["limit", "list"], ["limit", "resources"], ["analytics"], ["top", "--once"], ["doctor"], ["health"]),
    *(["job", "count"], ["doctor", "--all", "--output", "json"]),
    *(["flow", "list", "--limit", "0"], ["flow", "list", "--running", "--output", "json"]),
    *(["flow", "show", f"{number:024x}"] for number in range(4)),
    *(["flow", "show", str(hostile.FLOW), "--output", form] for form in ("json", "mermaid")),
]
WRITING = [
    *(["job", "cancel", "scheduled-1"], ["job", "cancel", "--tag", "t", "--yes"]),
    *(["job", "recover", "archived-1"], ["job", "recover", "--state", "failed", "--tag", "t", "--yes"]),
    *(["job", "remove", "archived-2"], ["job", "remove", "--tag", "t", "--yes"]),
    *(["group", "pause", "generic"], ["group", "resume", "generic"]),
    *(["group", "pause", "--all"], ["group", "resume", "--all"]),
    *(["limit", "set", f"task:t{number}", "2"] for number in range(0, 30, 3)),
    *(["limit", "remove", f"task:t{number}"] for number in range(1, 30, 3)),
    *(
        ["scheduler", verb, f"schedulers-{number}"]
        for number in range(0, 20, 2)
        for verb in ("pause", "resume", "run", "remove")
    ),
    *(["worker", verb, f"roster-{number}"] for number in range(0, 9, 3) for verb in ("drain", "resume")),
    *(["flow", verb, f"{number:024x}"] for number in range(4) for verb in ("pause", "resume", "recover")),
    *(["flow", "cancel", f"{number:024x}", "--yes"] for number in range(4)),
]


class GoodWork:
    """Flows and a schedule beside the damage. Some of them began before it."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._gate = folder / "gate"
        jobs.recruiter.job("add", [1, 1]).repeat_with_policy(Every("1 second")).with_urn("good").create()
        self._begun = [self._flow("begun"), self._flow("begun, and changed")]

    def goes_on(self) -> None:
        self._store.flows.markers.insert_many(self._hostile_markers())
        self._begun[1].pause()
        self._gate.touch()
        self._begun[1].add(jobs.add, 1, 1, name="added")
        self._begun[1].resume()
        cancelled = self._flow("cancelled")
        cancelled.cancel()
        assert cancelled.wait(60).state is FlowState.CANCELLED
        cancelled.retry()
        for flow in (*self._begun, cancelled, self._flow("new")):
            assert flow.wait(60).state is FlowState.SUCCEEDED
            assert flow["total"].result(timeout=60) == 3
            eventually(partial(self._has_end, flow), within=60)
        before = self._occurrences()
        eventually(lambda: self._occurrences() >= before + 2, within=60)

    def _flow(self, name: str) -> FlowHandle:
        flow = jobs.recruiter.flow(name)
        first = flow.add(jobs.wait_for_file, str(self._gate))
        parts = [flow.add(jobs.add.job(number, 1), after=first) for number in range(5)]
        flow.add(jobs.add.job(1, parts[1].result), name="total", after=parts)
        flow.on_end(jobs.echo, "end")
        return flow.start()

    def _has_end(self, flow: FlowHandle) -> bool:
        return self._store.archived.collection.count_documents({"flow.id": flow.id, "flow.on": "end"}) == 1

    def _hostile_markers(self) -> list[dict[str, Any]]:
        values: tuple[Any, ...] = (None, 5, "x", [], [None], [{}], ["x", 5], {"a": 1}, NAN)
        names = ("ended", "added", "all")
        return [{"flow": flow.id, name: value} for flow in self._begun for name in names for value in values]

    def _occurrences(self) -> int:
        return self._store.archived.collection.count_documents({"urn": "good", "done": True})


def poison(store: Store, *, bypass: bool) -> dict[str, int]:
    """How many documents of each collection got in."""
    got_in: dict[str, int] = {}
    for name in hostile.SOUND:
        collection = store.database.get_collection(store.name_of(name))
        before = collection.count_documents({})
        documents = list(hostile.documents(name, EACH, SEED))
        for start in range(0, EACH, 100):
            # The validator refuses some, others have the id of one that is there; and of some the driver cannot decode
            # what the server says of it.
            with suppress(PyMongoError, BSONError):
                collection.insert_many(documents[start : start + 100], ordered=False, bypass_document_validation=bypass)
        got_in[name] = collection.count_documents({}) - before
    return got_in


def operations(store: Store) -> int:
    counters = store.client.admin.command("serverStatus")["opcounters"]
    return sum(int(count) for count in counters.values())


def assert_answers(target: str, command: list[str]) -> None:
    """No traceback of its own: one that a job has left is shown inside a line."""
    _, said = here(target, *command)
    assert not re.search("^Traceback", said, re.MULTILINE), f"{command}: {said[-3000:]}"
    assert "unexpected error" not in said, f"{command}: {said[-3000:]}"


def assert_each_is_found(store: Store) -> None:
    """Of each collection, doctor names at least the documents that its validator would refuse now."""
    began = time.monotonic()
    findings = [str(finding) for finding in examine(store, EVERY) if finding.about == "documents"]
    print(f"doctor took {time.monotonic() - began:.1f} s, and named {len(findings)} documents")
    for name in DAMAGED:
        name = store.name_of(name)
        refused = store.database.get_collection(name).count_documents({"$nor": [validator_of(store, name)]})
        named = [text for text in findings if f" of {name} cannot be read: " in text]
        print(f"{name}: {len(named)} named, {refused} that the validator would refuse")
        assert len(named) >= refused, f"{name}: {findings}"
        assert named or name == store.leases.collection.name, name
    usual = [str(finding) for finding in examine(store) if finding.about == "documents"]
    told = [text for text in usual if f" of {store.limits.collection.name} cannot be read: " in text]
    assert len(told) <= Thresholds().unreadable_told


def cannot_be_read(store: Store, flow: ObjectId) -> bool:
    """The leader tries such a flow again and again, because a person may correct it."""
    try:
        store.flows.get(flow)
    except UnreadableDocument:
        return True
    return False


def validator_of(store: Store, name: str) -> dict[str, Any]:
    (info,) = store.database.list_collections(filter={"name": name})
    return dict(info["options"].get("validator", {}))


_KINDS = {"past the validators": False, "validators off": True}
_DAILY = _KINDS if DEPTH >= 1 else {"validators off": True}


@pytest.mark.timeout(120 + EACH / 5)
@pytest.mark.parametrize("bypass", _DAILY.values(), ids=_DAILY)
def test_nothing_stops_nothing_spins_and_each_is_found(
    fleet: Starter, store: Store, target: str, tmp_path: Path, bypass: bool
) -> None:
    # given a fleet at work
    fleet(jobs.__file__, "--processes", "2", "--concurrency", "4")
    assert jobs.add.enqueue(1, 2).result(timeout=60) == 3
    good = GoodWork(store, tmp_path)

    # when hostile documents come into every collection
    got_in = poison(store, bypass=bypass)
    print(f"got in: {got_in}")

    # then good jobs run beside them
    began = time.monotonic()
    for handle in [jobs.add.enqueue(number, 1) for number in range(50)]:
        assert handle.result(timeout=60) is not None
    print(f"50 good jobs took {time.monotonic() - began:.1f} s")

    # and flows and schedules that began before them go on, and others begin
    good.goes_on()
    print(f"good flows and a schedule: {time.monotonic() - began:.1f} s")

    # and doctor finds those that stay, with a reason
    assert_each_is_found(store)

    # and no command ends in a traceback
    for command in COMMANDS:
        assert_answers(target, command)

    # and the inbox is emptied, and nothing spins
    deadline = time.monotonic() + 60 + EACH / 10
    while store.scheduled.inbox(1, store.clock.now()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert store.scheduled.inbox(1, store.clock.now()) == []
    eventually(lambda: all(map(partial(cannot_be_read, store), store.flows.marked())), within=60 + EACH / 10)
    before, began = operations(store), time.monotonic()
    while time.monotonic() < began + 3:
        time.sleep(0.1)
    rate = (operations(store) - before) / (time.monotonic() - began)
    print(f"{rate:.0f} operations a second while nothing is to do")
    assert rate < 200

    # and what changes jobs, limits, schedulers and workers answers as well, and good jobs run
    for command in WRITING if bypass else ():  # then the most documents are in
        assert_answers(target, command)
    assert jobs.add.enqueue(2, 2).result(timeout=60) == 4
