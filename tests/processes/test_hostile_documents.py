"""Hundreds of hostile documents in every collection, past the validators and not, beside a fleet at work: nothing
stops, nothing spins, doctor finds them, and no command ends in a traceback.

`make fuzz` runs it with 3,000 documents in each collection.
"""

from __future__ import annotations

import os
import time

import pytest
from bson.errors import BSONError
from pymongo.errors import PyMongoError

from recruiter.doctor import examine
from recruiter.store.database import Store
from tests import hostile
from tests.applications import jobs
from tests.cli_here import here
from tests.conftest import Starter

EACH = int(os.environ.get("RECRUITER_FUZZ", "60"))
SEED = int(os.environ.get("RECRUITER_FUZZ_SEED", "1"))
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
]


def poison(store: Store, *, bypass: bool) -> dict[str, int]:
    """How many documents of each collection got in."""
    got_in: dict[str, int] = {}
    for name in hostile.SOUND:
        collection = store.database.get_collection(name)
        for document in hostile.documents(name, EACH, SEED):
            try:
                collection.insert_one(document, bypass_document_validation=bypass)
                got_in[name] = got_in.get(name, 0) + 1
            except PyMongoError:
                pass  # the validator refused it, or there is one with this id
            except Exception as error:  # the driver cannot decode what the server says of it
                if not isinstance(error, BSONError):
                    raise
    return got_in


def operations(store: Store) -> int:
    counters = store.client.admin.command("serverStatus")["opcounters"]
    return sum(int(count) for count in counters.values())


@pytest.mark.parametrize("bypass", [False, True], ids=["past the validators", "validators off"])
def test_nothing_stops_nothing_spins_and_each_is_found(start: Starter, store: Store, target: str, bypass: bool) -> None:
    # given a fleet at work
    start("start", "all", "--bootstrap", jobs.__file__, "--processes", "2").says("joined the roster")
    assert jobs.add.enqueue(1, 2).result(timeout=60) == 3

    # when hostile documents come into every collection
    got_in = poison(store, bypass=bypass)
    print(f"got in: {got_in}")

    # then good jobs run beside them
    began = time.monotonic()
    for handle in [jobs.add.enqueue(number, 1) for number in range(50)]:
        assert handle.result(timeout=60) is not None
    print(f"50 good jobs took {time.monotonic() - began:.1f} s")

    # and no command ends in a traceback
    for command in COMMANDS:
        _, said = here(target, *command)
        assert "Traceback" not in said, f"{command}: {said[-3000:]}"
        assert "unexpected error" not in said, f"{command}: {said[-3000:]}"

    # and doctor finds those that stay, with a reason
    findings = [str(finding) for finding in examine(store) if finding.about == "documents"]
    for name in ("schedulers", "limits", "processes", "archived", "statistics", *(["roster"] if bypass else [])):
        assert [text for text in findings if f" of {name} cannot be read: " in text], f"{name}: {findings}"

    # and the inbox is emptied, and nothing spins
    deadline = time.monotonic() + 60 + EACH / 10
    while store.scheduled.inbox(1, store.clock.now()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert store.scheduled.inbox(1, store.clock.now()) == []
    before, began = operations(store), time.monotonic()
    while time.monotonic() < began + 3:
        time.sleep(0.1)
    rate = (operations(store) - before) / (time.monotonic() - began)
    print(f"{rate:.0f} operations a second while nothing is to do")
    assert rate < 1_500
    assert jobs.add.enqueue(2, 2).result(timeout=60) == 4
