"""The files that pages need: read once, compressed once, and named by what is in them, so that browsers keep them."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FILES = (
    *("console.css", "console.js", "charts.js", "icon.svg"),
    *("vendor/htmx.min.js", "vendor/idiomorph.min.js", "vendor/uplot.min.js", "vendor/uplot.min.css"),
)


@dataclass(frozen=True)
class Asset:
    content: bytes
    zipped: bytes
    type: str
    version: str


class Assets:
    """Only what is listed here is ever served."""

    @cached_property
    def all(self) -> dict[str, Asset]:
        folder = files("recruiter.web") / "static"
        return {name: _asset(name, folder.joinpath(*name.split("/")).read_bytes()) for name in _FILES}

    def url(self, name: str) -> str:
        """Relative to the console's own address."""
        return f"static/{name}?v={self.all[name].version}"


def _asset(name: str, content: bytes) -> Asset:
    type = f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    return Asset(content, gzip.compress(content, 9, mtime=0), type, hashlib.sha256(content).hexdigest()[:12])
