"""What a test needs to see the commands that really travel to MongoDB, and how the server would run them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from recruiter.store.codec import OPTIONS
from recruiter.store.connection import Target
from recruiter.store.database import Store

Command = dict[str, Any]

WHOLE_DATABASE = "$cmd.aggregate"
"""What MongoDB calls the place when somebody listens to all collections at once."""

_EXPLAINABLE = ("find", "distinct", "aggregate", "count", "update", "delete", "findAndModify")
_NOT_IN_EXPLAIN = {"lsid", "$clusterTime", "$db", "txnNumber", "startTransaction", "autocommit", "ordered"}
_NOT_IN_EXPLAIN |= {"readConcern", "writeConcern", "$readPreference"}


class Recorder(CommandListener):
    """Keeps every command that is sent."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.commands.append(dict(deepcopy(event.command)))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass

    def named(self, *names: str) -> list[Command]:
        return [command for command in self.commands if next(iter(command)) in names]

    @contextmanager
    def only_these(self) -> Iterator[list[Command]]:
        """The commands sent inside the block, and none from before."""
        self.commands.clear()
        yield self.commands


def recorded(target: str, recorder: Recorder, **options: Any) -> Store:
    """A store like any other whose commands are recorded."""
    store = Store(Target.parse(target), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recruiter.store.connection.MongoClient", partial(_recording, recorder))
        assert store.client is not None
    return store


def _recording(recorder: Recorder, uri: str, **options: Any) -> MongoClient[Any]:
    options["event_listeners"] = [*options.get("event_listeners", ()), recorder]
    return MongoClient(uri, **options)


def explain(store: Store, command: Command, *, run: bool = True) -> list[Command]:
    """The server's own account of how it runs this command, or would; one for each of its writes."""
    name = next(iter(command))
    assert name in _EXPLAINABLE, f"{name} cannot be explained"
    plain = {key: value for key, value in command.items() if key not in _NOT_IN_EXPLAIN}
    writes = {"update": "updates", "delete": "deletes"}.get(name)
    each = [plain] if writes is None else [{**plain, writes: [write]} for write in plain[writes]]
    explained = [{"explain": one, "verbosity": "executionStats" if run else "queryPlanner"} for one in each]
    return [store.database.command(one, codec_options=OPTIONS) for one in explained]


def stages(plan: Any) -> Iterator[Command]:
    """Every stage of the winning plan, wherever it is nested."""
    if isinstance(plan, dict):
        if "stage" in plan:
            yield plan
        for key, value in plan.items():
            if key != "rejectedPlans":
                yield from stages(value)
    elif isinstance(plan, list):
        for each in plan:
            yield from stages(each)


def stage_names(explained: Command) -> set[str]:
    return {str(stage["stage"]) for stage in stages(explained)}


def statistics(explained: Command) -> tuple[int, int, int]:
    """Keys examined, documents examined, documents returned."""
    found = explained.get("executionStats") or explained["stages"][0]["$cursor"]["executionStats"]
    return found["totalKeysExamined"], found["totalDocsExamined"], found["nReturned"]
