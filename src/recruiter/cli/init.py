"""`recruiter init`: a small project that works. Its files are the templates in `project/`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from recruiter.cli.output import say
from recruiter.domain.text import plural
from recruiter.errors import SettingsError

_SUFFIX = ".template"
_NAME = "PROJECT"


def init(folder: Path = Path(), /, *, name: str | None = None) -> None:
    """Writes a small project that works: an application, its test, and files to deploy it.

    Parameters
    ----------
    folder
        Where to write it (default: here). No file that exists is changed.
    name
        The name of the project and of its database (default: the name of the folder).
    """
    project = name or _name_of(folder)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", project):
        raise SettingsError(
            f"{project!r} cannot be the name of a database and a service; give a --name such as my_shop"
        )
    written = {folder / path.replace(_NAME, project): text.replace(_NAME, project) for path, text in _templates()}
    existing = sorted(str(path) for path in written if path.exists())
    if existing:
        raise SettingsError(f"these files exist already, and nothing was written: {', '.join(existing)}")
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        say(f"wrote {path}")
    where = "" if folder == Path() else f" in {folder}"
    say(f"{plural(len(written), 'file')}. Next{where}: pip install -r requirements.txt, pytest, recruiter dev")


def _name_of(folder: Path) -> str:
    return re.sub(r"[^a-z0-9]+", "_", folder.resolve().name.lower()).strip("_")


def _templates() -> Iterator[tuple[str, str]]:
    """Each file of the project: its path in the folder, and its text."""
    for path, template in _files(files("recruiter.cli") / "project", ""):
        yield path.removesuffix(_SUFFIX).replace("gitignore", ".gitignore"), template.read_text(encoding="utf-8")


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for each in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if each.is_dir():
            yield from _files(each, f"{prefix}{each.name}/")
        elif each.name.endswith(_SUFFIX):
            yield f"{prefix}{each.name}", each
