"""The pages as the generator gets them: those of the repository, with everything filled in that comes from the code.

A page says `<!-- generated: NAME -->` where something generated belongs, and `<!-- end of NAME -->` where it ends. What
is between them, and the pages of the API, are in the repository for its readers: `reference.py` writes them.
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
"""Files of the repository that are pages of the site too."""

_MARK = re.compile(r"^<!-- generated: (\w+) -->\n.*?^<!-- end of \1 -->$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(((?:\.\./)*)([A-Z]+\.md|docs/[^)#]+\.md)(#[^)]*)?\)")


def stage(docs: Path, folder: Path) -> list[str]:
    """Writes all pages of the site into this folder, which is emptied; returns what is wrong with docstrings."""
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
    """What makes each generated part, by its name."""
    return {"names": api.index, "commands": commands, "settings": settings}


def written(docs: Path, api: Api) -> dict[Path, str]:
    """The pages of the repository that have generated parts, as they should be."""

    def part(match: re.Match[str]) -> str:
        text = generators(api)[match[1]]().strip()
        return f"<!-- generated: {match[1]} -->\n\n{text}\n\n<!-- end of {match[1]} -->"

    pages = {docs / path: _clean(text) for path, text in api.pages().items()}
    for path in sorted(docs.rglob("*.md")):
        if _MARK.search(path.read_text()):
            pages[path] = _clean(_MARK.sub(part, path.read_text()))
    return pages


def _clean(text: str) -> str:
    """Without blanks at the ends of lines, which editors remove."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"


def assembled(docs: Path, api: Api) -> dict[str, str]:
    """The text of every page, by its path in the site."""
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
    """A link from or to a file of the repository, as one between pages of the site."""
    at_the_root = page in FROM_THE_ROOT.values()
    up = 0 if at_the_root else page.count("/") + 1
    target = FROM_THE_ROOT.get(match[2]) or (match[2].removeprefix("docs/") if at_the_root else None)
    if target is None or match[1].count("/") != up:
        return match[0]
    return f"]({'../' * page.count('/')}{target}{match[3] or ''})"
