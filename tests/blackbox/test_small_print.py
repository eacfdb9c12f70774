"""What people read on a narrow terminal, with an empty setting, without a mongod, and without the repository."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import recruiter as package
from recruiter import Recruiter
from recruiter.errors import NoServerBinary
from recruiter.testing import server
from tests.cli_here import here


@pytest.fixture
def busy(recruiter: Recruiter) -> Recruiter:
    """Jobs of tasks and groups with long names; some have failed."""

    @recruiter.task(name="a_task_with_a_name_that_is_rather_long", group="a-group-with-a-long-name", retry=None)
    def fails(number: int) -> None:
        if number % 2:
            raise ValueError("a long message that tells what is wrong " * 5)

    for number in range(6):
        fails.job(number).owned_by("somebody-with-a-long-name").enqueue()
    for _ in range(4):
        recruiter.run(fails)
    return recruiter


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("command", "headers"),
    [
        (["analytics"], ["group", "queued", "running", "a minute", "failed", "latency", "time"]),
        (["analytics", "--by", "task"], ["task", "queued", "running", "a minute", "failed", "latency", "time"]),
        (["analytics", "--by", "owner"], ["owner", "waiting", "running", "succeeded", "failed", "cancelled", "lost"]),
        (["top", "--once"], ["group/task", "queued", "running", "a minute", "failed", "latency", "time"]),
        (["top", "--once"], ["worker", "slots", "holds", "runs", "seen", "state"]),
        (["top", "--once"], ["failed", "ago", "task", "error"]),
    ],
)
def test_tables_keep_their_headers_at_80_columns(target: str, command: list[str], headers: list[str]) -> None:
    code, said = here(target, *command, COLUMNS="80")

    assert code == 0
    assert max(map(len, said.splitlines())) <= 80, said
    in_order = re.compile(r"\s+".join(map(re.escape, headers)))
    line = next((line for line in said.splitlines() if in_order.search(line.replace("postponed", ""))), None)
    assert line is not None, said
    assert "…" not in line


def test_an_empty_target_is_named() -> None:
    for empty in ("", "  "):
        code, said = here(empty, "job", "list")
        assert code == 2
        assert "the MongoDB address is empty" in said
        assert "RECRUITER_TARGET" in said


def test_pytest_without_a_mongod_is_told_what_helps_pytest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("RECRUITER_TEST_TARGET", raising=False)
    monkeypatch.setattr("recruiter.embedded.process._from_wheel", lambda: None)

    with pytest.raises(NoServerBinary) as raised:
        next(server())

    assert "RECRUITER_TEST_TARGET=mongodb://" in str(raised.value)
    assert "recruiter[embedded]" in str(raised.value)
    assert "--mongod" not in str(raised.value)
    assert "--target" not in str(raised.value)


def test_no_message_cites_a_file_that_an_installed_user_does_not_have() -> None:
    source = Path(package.__file__).parent
    found = []
    for file in source.rglob("*.py"):
        tree = ast.parse(file.read_text())
        described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
                found += [f"{file.name}:{node.lineno}"] if re.search(r"docs/[\w-]+/?[\w-]*\.md", node.value) else []
    found += [each.name for each in source.rglob("*.html") if "docs/" in each.read_text()]

    assert found == []
