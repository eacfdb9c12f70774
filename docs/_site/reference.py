"""Writes the generated reference into the pages of the repository: `python docs/_site/reference.py [--check]`."""

from __future__ import annotations

import sys

from api_pages import FOLDER, Api
from stage import DOCS, ROOT, written


def outdated() -> dict[str, str | None]:
    """The new content of outdated pages, by their path in the repository; None for pages to delete."""
    pages = {str(path.relative_to(ROOT)): text for path, text in written(DOCS, Api()).items()}
    there = {str(path.relative_to(ROOT)) for path in (DOCS / FOLDER).glob("*.md")}
    wrong: dict[str, str | None] = dict.fromkeys(there - {*pages})
    for path, text in pages.items():
        file = ROOT / path
        if not file.is_file() or file.read_text() != text:
            wrong[path] = text
    return wrong


def write() -> None:
    for path, text in outdated().items():
        file = ROOT / path
        if text is None:
            file.unlink()
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


if __name__ == "__main__":
    if "--check" in sys.argv:
        wrong = sorted(outdated())
        print("\n".join(wrong))
        sys.exit(bool(wrong))
    write()
