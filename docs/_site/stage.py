"""Prepares the pages for Sphinx: the pages of the repository, with their generated parts filled in.

`<!-- generated: NAME -->` and `<!-- end of NAME -->` enclose a generated part. `reference.py` writes these parts and
the API pages into the repository, so that they can be read there too.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from api_pages import FOLDER, Api
from command_pages import commands
from navigation import contents, navigation
from setting_pages import settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

FROM_THE_ROOT = {
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Files of the repository that are also pages of the site."""

_MARK = re.compile(r"^<!-- generated: (\w+) -->\n.*?^<!-- end of \1 -->$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(((?:\.\./)*)([A-Z]+\.md|docs/[^)#]+\.md)(#[^)]*)?\)")


def stage(docs: Path, folder: Path) -> list[str]:
    """Empties the folder, writes all pages of the site into it, and returns the errors in docstrings."""
    shutil.rmtree(folder, ignore_errors=True)
    api = Api()
    for path, text in assembled(docs, api).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if (docs / "pictures").is_dir():
        shutil.copytree(docs / "pictures", folder / "pictures")
    return api.complaints()


def generators(api: Api) -> dict[str, Callable[[], str]]:
    """The generator of each part, by its name."""
    return {"names": api.index, "commands": commands, "settings": settings}


def written(docs: Path, api: Api) -> dict[Path, str]:
    """The current content of all pages that are generated or have generated parts."""

    def part(match: re.Match[str]) -> str:
        text = generators(api)[match[1]]().strip()
        return f"<!-- generated: {match[1]} -->\n\n{text}\n\n<!-- end of {match[1]} -->"

    pages = {docs / path: _clean(text) for path, text in api.pages().items()}
    for path in sorted(docs.rglob("*.md")):
        if _MARK.search(path.read_text()):
            pages[path] = _clean(_MARK.sub(part, path.read_text()))
    return pages


def _clean(text: str) -> str:
    """Removes trailing blanks."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"


def assembled(docs: Path, api: Api) -> dict[str, str]:
    """The content of every page, by its path in the site."""
    below = api.pages()
    generated = generators(api)
    pages = {str(path.relative_to(docs)): path.read_text() for path in sorted(docs.rglob("*.md"))}
    pages |= {path: (ROOT / source).read_text() for source, path in FROM_THE_ROOT.items()}
    pages = {path: _MARK.sub(lambda match: generated[match[1]](), text) for path, text in pages.items()}
    pages = {path: _LINK.sub(lambda match: _inside(match, path), text) for path, text in pages.items()}  # noqa: B023
    pages["index.md"] += navigation(pages["index.md"], pages)
    pages[f"{FOLDER}.md"] += contents(path.removeprefix("reference/") for path in below)
    return pages | below


def _inside(match: re.Match[str], page: str) -> str:
    """Turns a link from or to a file of the repository into a link between pages of the site."""
    at_the_root = page in FROM_THE_ROOT.values()
    up = 0 if at_the_root else page.count("/") + 1
    target = FROM_THE_ROOT.get(match[2]) or (match[2].removeprefix("docs/") if at_the_root else None)
    if target is None or match[1].count("/") != up:
        return match[0]
    return f"]({'../' * page.count('/')}{target}{match[3] or ''})"
