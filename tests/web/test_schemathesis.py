"""The API keeps the promises of its own description: schemathesis against a running console with actions.

It needs schemathesis, which `make proof` installs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recruiter import Recruiter
from recruiter.web import BasicAuth
from tests.web.conftest import Consoles

EXAMPLES = 40
SEED = 1
CONFIG = """
[checks.positive_data_acceptance]
# 400: the request matches the description and makes no sense, such as a date that does not exist.
# 429: four actions on many jobs are running already.
expected-statuses = ["2xx", "400", "403", "404", "429"]
"""

pytest.importorskip("schemathesis")


@pytest.mark.timeout(900)
def test_schemathesis_finds_nothing(
    console: Consoles, recruiter: Recruiter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recruiter.web.access.MAX_WRONG_PASSWORDS", 10_000)  # it tries wrong ones
    monkeypatch.setattr("recruiter.web.reader._PULSE_SECONDS", 60.0)  # on a loaded machine

    @recruiter.task(group="mail")
    def send(to: str) -> None:
        if to == "nobody":
            raise LookupError("nobody lives here")

    for to in ("ada", "nobody"):
        send.job(to).here().execute()
    send.enqueue_many([(f"reader{number}",) for number in range(7)])
    flow = recruiter.flow("two")
    flow.add(send, "b", after=flow.add(send, "a"))
    flow.start()
    client = console(access=BasicAuth({"ada": "secret"}), actions=True)
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    assert program is not None

    options = ["--checks", "all", "--phases", "coverage,fuzzing", "-n", str(EXAMPLES), "--seed", str(SEED)]
    place = [f"{client.base_url}api/openapi.json", "--auth", "ada:secret", "--request-timeout", "120"]
    found = subprocess.run(
        [program, "--no-color", "--config-file", str(config), "run", *place, *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )

    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
    described = client.get("api/openapi.json", auth=("ada", "secret")).json()["paths"]
    assert f"Tested: {sum(map(len, described.values()))}" in found.stdout
