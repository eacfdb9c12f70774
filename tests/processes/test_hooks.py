"""Hooks that are decorated, in a real recruiter process."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Starter, eventually

APPLICATION = """
import sys
from pathlib import Path
from recruiter import Recruiter

recruiter = Recruiter("127.0.0.1:1/not_here")
notes = Path(__file__).with_name("notes")

def note(what):
    with notes.open("a") as file:
        file.write(what + "\\n")

@recruiter.on_became_master
def exits(leading):
    sys.exit("enough of this")

@recruiter.on_became_master
def became(leading):
    assert leading is recruiter
    note(f"became, schedulers {len(leading.schedulers())}")

@recruiter.on_stept_back
def stept_back(leading):
    note("stept back")
"""


def test_each_is_called_also_after_one_that_exits(start: Starter, tmp_path: Path) -> None:
    file, notes = tmp_path / "hooked.py", tmp_path / "notes"
    file.write_text(APPLICATION)

    recruiter = start("start", "recruiter", "--bootstrap", str(file))
    eventually(notes.exists)
    recruiter.says("enough of this")
    recruiter.stop()

    eventually(lambda: notes.read_text().splitlines() == ["became, schedulers 0", "stept back"])
