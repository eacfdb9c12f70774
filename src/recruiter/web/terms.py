"""The tables of texts: figures and columns of the console (terms.md), and its actions (actions.md)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple


def text_of(name: str) -> str:
    """A file beside this module."""
    return files("recruiter.web").joinpath(name).read_text(encoding="utf-8")


def table(text: str) -> Iterator[list[str]]:
    """The cells of each line of a Markdown table, without its header."""
    lines = [line for line in text.split("\n") if line.startswith("| ")]
    return ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:])


class Term(NamedTuple):
    """The meaning of a figure: shown on hover, and with all others on the page *Help*."""

    name: str
    meaning: str
    docs: str  # The page of the documentation with more details, below `docs/`
    command: str  # The command that shows the same; may be empty

    @property
    def page(self) -> str:
        """The approximate title of the page in the documentation: an installed package has no files of it."""
        return self.docs.rpartition("/")[2].removesuffix(".md").replace("-", " ")


SECTIONS = {
    title: {key: Term(*cells) for key, *cells in table(lines)}
    for title, _, lines in (section.partition("\n") for section in text_of("terms.md").split("\n## ")[1:])
}
TERMS = {key: term for terms in SECTIONS.values() for key, term in terms.items()}
