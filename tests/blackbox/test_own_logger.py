"""The user's own logger (chapter "Logging" of the seed): a class next to the application."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli_here import here
from tests.conftest import Starter

pytestmark = pytest.mark.usefixtures("store")  # prepared

LOGGER = """
import logging

class MyLogger(logging.StreamHandler):
    def format(self, record):
        return f"MINE {record.getMessage()}"
"""

CONFIG = """
[handlers.mine]
class = "{module}.MyLogger"

[root]
level = "INFO"
handlers = ["mine"]
"""


@pytest.mark.parametrize(
    ("program", "bootstrap"),
    [("recruiter", True), ("worker", True), ("cleaner", False)],
    ids=lambda value: {True: "next to the application", False: "in the folder of the settings"}.get(value, value),
)
def test_a_logger_class_next_to_the_application_is_found(
    start: Starter, tmp_path: Path, program: str, bootstrap: bool
) -> None:
    module = f"logger_of_{program}_{bootstrap}"
    (tmp_path / f"{module}.py").write_text(LOGGER)
    (tmp_path / "shop.py").write_text("from recruiter import Recruiter\nrecruiter = Recruiter()\n")
    config = (tmp_path / "etc" if bootstrap else tmp_path) / "log.toml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(CONFIG.format(module=module))
    application = ["--bootstrap", str(tmp_path / "shop.py")] if bootstrap else []

    process = start("start", program, "--log-config", str(config), *application, cold=True)

    process.says("MINE ")
    assert process.stop() == 0


def test_the_message_names_the_module_that_is_missing(target: str, tmp_path: Path) -> None:
    config = tmp_path / "log.toml"
    config.write_text(CONFIG.format(module="no_such_module"))

    code, said = here(target, "start", "cleaner", "--log-config", str(config))

    assert code == 2
    assert "ModuleNotFoundError: No module named 'no_such_module'" in said
