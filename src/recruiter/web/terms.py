"""Descriptions of the figures and columns of the console: shown on hover, and all together on the page *Help*."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple


class Term(NamedTuple):
    """A line of a table in terms.md."""

    name: str
    meaning: str
    docs: str  # The page of the documentation with more details, below `docs/`
    command: str  # The command that shows the same; may be empty

    @property
    def page(self) -> str:
        """The approximate title of the page in the documentation: an installed package has no files of it."""
        return self.docs.rpartition("/")[2].removesuffix(".md").replace("-", " ")


def _sections() -> Iterator[tuple[str, dict[str, Term]]]:
    text = files("recruiter.web").joinpath("terms.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        title, _, table = section.partition("\n\n")
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().split("\n")[2:]]
        yield title, {key: Term(*cells) for key, *cells in lines}


SECTIONS = dict(_sections())
TERMS: dict[str, Term] = {key: term for terms in SECTIONS.values() for key, term in terms.items()}
