"""The navigation follows the tables of the home page, so that there is one list and readers see it.

A table on the home page whose header has a title is a group of its own. A page that is in no table is not lost: it
stands at the end, and a test says that nobody will find it on the home page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SECTION = re.compile(r"^## (.+)$")
_ROW = re.compile(r"^\| \[[^\]]+\]\(([^)#]+\.md)\)")
_HEADER = re.compile(r"^\| (\w[^|]*?) \|")


def groups(home: str) -> dict[str, list[str]]:
    """The pages that the tables of the home page link to, by title."""
    found: dict[str, list[str]] = {}
    section = title = ""
    for line in home.splitlines():
        if heading := _SECTION.match(line):
            section = title = heading[1]
        elif not line.startswith("|"):
            title = section
        elif row := _ROW.match(line):
            found.setdefault(title, []).append(row[1])
        elif header := _HEADER.match(line):
            title = f"{section}: {header[1]}"
    return found


def navigation(home: str, pages: Iterable[str]) -> str:
    """What the home page gets: a hidden table of contents for each group, and one for what is in none."""
    titled = groups(home)
    listed = {page for group in titled.values() for page in group}
    rest = sorted(set(pages) - listed - {"index.md"})
    return "\n".join(contents(group, title) for title, group in [*titled.items(), ("More", rest)] if group)


def contents(pages: Iterable[str], title: str = "") -> str:
    caption = f":caption: {title}\n" if title else ""
    return "\n".join(["", "```{toctree}", f":hidden:\n{caption}", *pages, "```", ""])
