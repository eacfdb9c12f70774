"""`recruiter flow …`: what a person sees and what a script can rely on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from recruiter import FlowHandle, Recruiter
from recruiter.domain.state import Why
from recruiter.store.database import Store
from tests.cli_here import here
from tests.flows import Stage

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(target: str) -> Command:
    return lambda *arguments: here(target, "flow", *arguments)


@pytest.fixture
def stage(target: str, store: Store) -> Iterator[Stage]:
    with Recruiter(target) as recruiter:

        @recruiter.task
        def resize(width: int) -> None: ...

        @recruiter.task
        def merge() -> None: ...

        yield Stage(recruiter)


@pytest.fixture
def handle(stage: Stage) -> FlowHandle:
    flow = stage.recruiter.flow("thumbnails", owner="ada")
    first = flow.add("resize", 0)
    parts = flow.add_many("resize", [(width,) for width in range(1, 7)], after=first)
    flow.add("merge", after=parts)
    flow.on_end("merge")
    return flow.start()


def test_show_is_a_tree_with_states(stage: Stage, handle: FlowHandle, command: Command) -> None:
    (first,) = stage.ready()
    stage.run(first)
    stage.settle_down()
    failing, *others = stage.ready()
    stage.run(failing, *others, fails=[failing])
    stage.settle_down()
    stage.run(*stage.ready())

    code, said = command("show", str(handle.id))

    assert code == 0
    head, *lines = said.splitlines()
    assert head.startswith(f"flow thumbnails ({handle.id}, of ada): failed, 8 steps: 6 succeeded, 1 failed, 1 skipped")
    assert lines[0].startswith(f"resize  succeeded  {first}")
    assert lines[1].startswith(f"├─ resize  failed  {failing}")
    assert "ValueError: no good" in lines[1]
    assert lines[2].startswith("├─ resize × 5  succeeded")
    assert "merge  skipped" in lines[3]
    assert lines[3].startswith("└─ merge")
    assert "(after 6 steps)" in lines[3]
    assert lines[4].startswith("on end: merge  succeeded")
    code, said = command("show", str(handle.id), "--output", "json")
    shown = json.loads(said)
    assert [step["state"] for step in shown["flow"]][:3] == ["succeeded", "failed", "succeeded"]


def test_pause_resume_cancel_retry(stage: Stage, handle: FlowHandle, command: Command) -> None:
    id = str(handle.id)

    assert command("pause", id, "--reason", "lunch", "--by", "ada")[0] == 0
    assert stage.ready() == []
    assert "paused by ada: lunch" in command("list")[1]
    assert command("resume", id)[0] == 0
    stage.settle_down()
    assert len(stage.ready()) == 1

    code, said = command("cancel", id)
    assert code == 1
    assert "--yes" in said
    assert command("cancel", id, "--yes")[1].startswith("8 steps are being cancelled")
    stage.settle_down()
    assert "cancelled" in command("list")[1]
    code, said = command("cancel", id, "--yes")
    assert code == 1
    assert "has ended already (cancelled); nothing to cancel" in said
    assert command("retry", id) == (0, "8 steps are recovered\n")


def test_a_step_says_which_flow_it_is_of(stage: Stage, handle: FlowHandle, target: str) -> None:
    """Given a step that failed, one that was given up and one that is blocked."""
    (first,) = stage.ready()
    blocked = handle.steps()[-1].job
    code, said = here(target, "job", "list", "--state", "blocked")
    assert code == 0
    (line,) = [line for line in said.splitlines() if str(blocked) in line]
    assert line.split()[1:3] == ["blocked", "merge"]
    assert "late" not in line
    assert json.loads(here(target, "job", "list", "--output", "json")[1])[0]["blocked"] is False
    told = f"flow      {handle.id} (recruiter flow show {handle.id})"
    code, said = here(target, "job", "show", str(blocked))
    assert re.search(r"state +blocked\b", said)
    assert " ".join(told.split()) in " ".join(said.split())

    stage.run(first, fails=[first])
    stage.settle_down()

    for job in (first, blocked):
        code, said = here(target, "job", "show", str(job))
        assert code == 0
        assert " ".join(told.split()) in " ".join(said.split())
        assert json.loads(here(target, "job", "show", str(job), "--output", "json")[1])["flow"] == str(handle.id)


def test_retry_leaves_lost_steps_unless_told(stage: Stage, handle: FlowHandle, command: Command) -> None:
    (first,) = stage.ready()
    stage.run(first, fails=[first], why=Why.LOST)
    stage.settle_down()

    told = "Lost steps may have done their work and stay unchanged: 1. Recover them with --lost\n"
    assert command("retry", str(handle.id)) == (0, f"0 steps are recovered\n{told}")
    assert command("retry", str(handle.id), "--lost") == (0, "1 step is recovered\n")


def test_the_list_of_flows_shows_progress_and_counts(stage: Stage, handle: FlowHandle, command: Command) -> None:
    stage.run(stage.ready()[0])
    stage.settle_down()

    code, said = command("list")

    assert code == 0
    (line,) = [line for line in said.splitlines() if str(handle.id) in line]
    assert "thumbnails" in line
    assert "12%" in line
    assert "1 blocked, 6 waiting, 1 succeeded" in line
    code, said = command("list", "--output", "json", "--owner", "ada", "--running")
    (row,) = json.loads(said)
    assert (row["name"], row["steps"], row["progress"]) == ("thumbnails", 8, 0.125)
    assert command("list", "--no-running") == (0, "There are no flows.\n")
