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
APPLICATION, *OTHERS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_first_screen_shows_how_a_job_is_run_and_seen(start: Starter, tmp_path: Path) -> None:
    # given the file of the first example, and `recruiter dev` in one terminal
    assert README.index("recruiter job show") < README.index("\n## "), "on the first screen"
    (tmp_path / "shop.py").write_text(APPLICATION)
    dev = start("dev", str(tmp_path / "shop.py"), "--folder", str(tmp_path / "mongodb"))
    dev.says("joined the roster", within=60)
    address = dev.log.partition("private MongoDB at ")[2].split(",")[0].strip()

    # when the file runs in another
    id, _, result = run(tmp_path, address, "shop.py").partition(" ")

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
        at_our_address = example.replace("mongodb://localhost:27017/shop", target)
        exec(compile(at_our_address, "README.md", "exec"), namespace)

    # then the job of the committed transaction has run
    assert len(OTHERS) == 1
    eventually(lambda: store.archived.collection.count_documents({"task": "send_welcome", "done": True}) == 1)
    for opened in ("recruiter", "client"):
        namespace[opened].close()  # type: ignore[attr-defined]
    sys.modules.pop("shop", None)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", README):
        assert (ROOT / link).is_file(), link
