"""The README, followed literally: its first screen with a private MongoDB, then every other example."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recruiter.store.database import Store
from tests.conftest import Starter, eventually

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
APPLICATION, FIRST, *OTHERS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_first_screen_shows_how_a_job_is_run_and_seen(start: Starter, tmp_path: Path) -> None:
    # given the file of the first example, and `recruiter dev` in one terminal
    assert README.index("recruiter job show") < README.index("\n## "), "on the first screen"
    (tmp_path / "shop.py").write_text(APPLICATION)
    dev = start("dev", str(tmp_path / "shop.py"), "--folder", str(tmp_path / "mongodb"))
    dev.says("joined the roster", within=60)
    address = dev.log.partition("private MongoDB at ")[2].split(",")[0].strip()

    # when the second example runs in another
    id, _, result = run(tmp_path, address, "-c", FIRST).partition(" ")

    # then it prints what the job returned, and the command shows that it has run
    assert result == "Dear Ada, welcome! (sent to ada@example.org)\n"
    shown = run(tmp_path, address, "-m", "recruiter.cli.main", "job", "show", id)
    assert re.search(r"state +succeeded", shown)
    dev.signal(signal.SIGINT)
    assert dev.wait(30) == 0


def run(folder: Path, address: str, *arguments: str) -> str:
    """What it prints. Where port 27017 is taken, `dev` says to export the address: so we do."""
    environment = {**os.environ, "RECRUITER_TARGET": address}
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stdout


def test_the_other_examples_run_as_they_are_written(
    fleet: Starter, store: Store, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the same application, with its processes
    (tmp_path / "shop.py").write_text(APPLICATION)
    fleet(str(tmp_path / "shop.py"))
    monkeypatch.setenv("RECRUITER_TARGET", target)
    monkeypatch.syspath_prepend(str(tmp_path))
    namespace: dict[str, object] = {"__name__": "readme"}

    # when they run
    for example in OTHERS:
        exec(compile(example, "README.md", "exec"), namespace)

    # then the jobs are there, and the ones that are due and known have been run
    assert len(OTHERS) == 1
    eventually(lambda: store.archived.collection.count_documents({"task": "send_welcome", "done": True}) == 2)
    assert store.archived.collection.count_documents({"task": "HttpRequest", "method": {"$exists": False}}) == 1
    assert store.scheduled.collection.count_documents({"group": "mail", "tags": "user:42", "priority": 5}) == 1
    assert store.scheduled.collection.count_documents({"task": "HttpRequest", "method": "ping"}) == 1
    namespace["recruiter"].close()  # type: ignore[attr-defined]
    sys.modules.pop("shop", None)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", README):
        assert (ROOT / link).is_file(), link
