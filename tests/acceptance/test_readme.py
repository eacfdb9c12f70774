"""Every example in the README runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from recruiter.embedded import EmbeddedServer
from recruiter.store.database import Store
from tests.conftest import Starter, eventually

ROOT = Path(__file__).parents[2]


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_examples_run_as_they_are_written(
    start: Starter, store: Store, server: EmbeddedServer, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the application of the first example, with its processes, at another address
    application, *examples = (
        block.replace("mongodb://localhost:27017/shop", target).replace("mongodb://localhost:27017", server.uri)
        for block in python_blocks()
    )
    (tmp_path / "shop.py").write_text(application)
    start("start", "all", "--bootstrap", str(tmp_path / "shop.py")).says("joined the roster")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT))
    namespace: dict[str, object] = {"__name__": "readme"}

    # when the other examples run, but for the one that needs `recruiter dev`
    mine = [example for example in examples if "examples.hello" not in example]
    for example in mine:
        exec(compile(example, "README.md", "exec"), namespace)

    # then the jobs are there, and the ones that are due and known have been run
    assert len(mine) == 3
    sent = {"task": "send_welcome", "done": True}
    eventually(lambda: store.archived.collection.count_documents(sent) == 4)
    assert store.archived.collection.count_documents({"task": "HttpRequest", "method": {"$exists": False}}) == 1
    assert store.scheduled.collection.count_documents({"group": "mail", "tags": "user:42", "priority": 5}) == 1
    assert store.scheduled.collection.count_documents({"task": "HttpRequest"}) == 2
    namespace["recruiter"].close()  # type: ignore[attr-defined]
    sys.modules.pop("shop", None)
