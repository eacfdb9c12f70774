"""Writes the address of the repository into the packages: links of the project, and absolute links in the README.

The release workflow sets RECRUITER_REPOSITORY, as in https://github.com/OWNER/NAME. Without it the README stays as it
is, and the project has no links."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parents[1]


class Addresses(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        readme = (ROOT / "README.md").read_text()
        repository = os.environ.get("RECRUITER_REPOSITORY", "").rstrip("/")
        if repository:
            place = f"{repository}/%s/v{metadata['version']}/"
            readme = re.sub(r"\]\((?=[^):]+\.png\))", "](" + place % "raw", readme)
            readme = re.sub(r"\]\((?=[^):]+\))", "](" + place % "blob", readme)
            metadata["urls"] = {
                "Repository": repository,
                "Documentation": f"{repository}/blob/v{metadata['version']}/docs/index.md",
                "Changelog": f"{repository}/blob/v{metadata['version']}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
                "Security": f"{repository}/security/policy",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
