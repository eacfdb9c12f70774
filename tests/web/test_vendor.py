"""The files of others are those that the manifests say: name, version, licence, checksum."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / "src/recruiter/web/static/vendor", ROOT / "tests/web/vendor"]


@pytest.mark.parametrize("folder", FOLDERS, ids=["console", "tests"])
def test_each_vendored_file_is_the_one_that_was_looked_at(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    for each in manifest:
        assert hashlib.sha256((folder / each["file"]).read_bytes()).hexdigest() == each["sha256"], each["file"]
        assert each["licence"] in ("0BSD", "MIT", "MPL-2.0")
        assert (folder / f"{each['package']}.LICENSE.txt").stat().st_size > 500
    there = {path.name for path in folder.iterdir() if path.suffix in (".js", ".css")}
    assert there == {each["file"] for each in manifest}
