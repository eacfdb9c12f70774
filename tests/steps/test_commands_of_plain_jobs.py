"""Jobs and flows that use no composition send no command for it: names, conditions, sub-flows, signals and checkpoints
cost only the jobs that have them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from recruiter import Recruiter, Task
from recruiter.steps.execute import Executor
from recruiter.steps.settle import settle
from recruiter.store.database import Store
from tests.commands import Command, Recorder, _recording
from tests.flows import Stage

Work = Task[[str], str, str]

RELEASE = [
    *("find flow_markers", "find flows", "find flows", "find scheduled", "find archived", "find scheduled"),
    *("update leases", "find flows", "find scheduled", "find scheduled", "find archived", "find archived"),
    *("update flows", "commitTransaction", "update scheduled", "find archived", "find scheduled"),
    "delete flow_markers",
]
SETTLE = ["findAndModify roster", "insert archived", "update statistics", "delete scheduled", "commitTransaction"]


def sent(commands: list[Command]) -> list[str]:
    """The names of the commands and their collections."""
    return [
        " ".join(filter(None, (name, str(command[name]).removeprefix("recruiter.") if command[name] != 1 else "")))
        for command in commands
        for name in [next(iter(command))]
    ]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def stage(target: str, store: Store, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    del store  # prepared
    monkeypatch.setattr("recruiter.store.connection.MongoClient", partial(_recording, recorder))
    with Recruiter(target) as recruiter:
        yield Stage(recruiter)


@pytest.fixture
def work(stage: Stage) -> Work:
    @stage.recruiter.task
    def work(name: str) -> str:
        return name

    return work


def test_a_plain_job(stage: Stage, work: Work, recorder: Recorder) -> None:
    work.enqueue("first")  # connects
    with recorder.only_these() as commands:
        job = work.enqueue("a")
    assert sent(commands) == ["insert scheduled"]

    (raw,) = [raw for _, raw in stage.store.scheduled.fetch([job.id])]
    recruiter = stage.recruiter
    executor = Executor(recruiter.registry, recruiter.policies, recruiter.clock, stage.worker, owners=(recruiter,))
    with recorder.only_these() as commands:
        outcome = executor.run(raw)
    assert sent(commands) == []
    executor.close()

    stage.give(job.id)
    with recorder.only_these() as commands:
        settle(stage.store, stage.worker, [(job.id, outcome)], {})
    assert sent(commands) == SETTLE


def test_a_plain_chain(stage: Stage, work: Work, recorder: Recorder) -> None:
    work.enqueue("first")
    flow = stage.recruiter.flow("f")
    first = flow.add(work, "a")
    second = flow.add(work, first.result)
    with recorder.only_these() as commands:
        flow.start()
    assert sent(commands) == ["insert flows", "insert scheduled", "commitTransaction"]

    stage.give(first.id)
    with recorder.only_these() as commands:
        stage.settle(first.id)
    assert sent(commands)[1:] == [*SETTLE[:3], "insert flow_markers", *SETTLE[3:]]

    with recorder.only_these() as commands:
        assert stage.look().released == 1
    assert sent(commands) == RELEASE
    assert stage.ready()[-1] == second.id
