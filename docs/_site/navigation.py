"""Derives the navigation from the tables of the home page, so that there is only one list of pages.

A table with a title in its header is a separate group. Pages in no table come last; a test fails for them, because
readers would not find them on the home page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SECTION = re.compile(r"^## (.+)$")
_ROW = re.compile(r"^\| \[[^\]]+\]\(([^)#]+\.md)\)")
_HEADER = re.compile(r"^\| (\w[^|]*?) \|")


def groups(home: str) -> dict[str, list[str]]:
    """The pages that each table of the home page links to, by the title of the table."""
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
    """The hidden tables of contents of the home page: one for each group, and one for all other pages."""
    titled = groups(home)
    listed = {page for group in titled.values() for page in group}
    rest = sorted(set(pages) - listed - {"index.md"})
    return "\n".join(contents(group, title) for title, group in [*titled.items(), ("More", rest)] if group)


def contents(pages: Iterable[str], title: str = "") -> str:
    caption = f":caption: {title}\n" if title else ""
    return "\n".join(["", "```{toctree}", f":hidden:\n{caption}", *pages, "```", ""])
