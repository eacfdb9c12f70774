"""What pages say, in a form that can be compared with the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.acceptance.docs.pages import ROOT, Page

_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SHOWN_BY = re.compile(r"`(tests/[\w/]+\.py)`:((?:[\s,]*`test_\w+`)+)")


def tree(text: str) -> dict[str, str | None]:
    """Of a drawing such as that of the errors: each name with the one it hangs on."""
    parents: dict[str, str | None] = {}
    line_of: list[str] = []
    for line in text.splitlines():
        match = re.match(r"([│├└─ ]*)(\w+)", line)
        assert match, line
        depth = len(match[1]) // 4
        line_of[depth:] = [match[2]]
        parents[match[2]] = line_of[depth - 1] if depth else None
    return parents


def links(page: Page) -> Iterator[tuple[str, Path, str]]:
    """The links to other files, each with its file and its anchor."""
    for link in _LINK.findall(page.prose):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            yield link, (page.path.parent / file).resolve() if file else page.path, anchor


@cache
def anchors(path: Path) -> set[str]:
    """The headings of a file as they are linked to."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


def named_tests(page: Page) -> Iterator[tuple[Path, str]]:
    """The tests by which a page says that something is shown: `tests/….py`: `test_…`, `test_…`."""
    for file, names in _SHOWN_BY.findall(page.prose):
        for name in re.findall(r"`(test_\w+)`", names):
            yield ROOT / file, name
