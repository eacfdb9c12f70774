"""The page of the command line, from the application itself: what `--help` says of every command."""

from __future__ import annotations

import re

from recruiter.cli.main import app


def commands() -> str:
    text = app.generate_docs(heading_level=1, usage_name="recruiter")
    _, _, after_its_contents = text.partition("**Commands**")  # the title stands on the page, the contents beside it
    text = f"**Commands**{after_its_contents}"
    return re.sub(r"```console\n", "```text\n", text)
