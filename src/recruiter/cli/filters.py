"""The options that select jobs, and the filter they become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from recruiter.app import Recruiter
from recruiter.cli.output import say
from recruiter.domain.search.filter import FILTER_WORDS, FilterWord, JobFilter, filter_from_words
from recruiter.errors import InvalidFilter

_GROUP = Group("Which jobs", sort_key=1)


def _option(word: FilterWord) -> tuple[str, Any, None]:
    kind: Any = list[str] if word.several else {"attempts": int, "recovered": bool}.get(word.name, str)
    negative = ("--no-recovered",) if kind is bool else ()
    return word.name, Annotated[kind | None, Parameter(negative=negative, group=_GROUP, help=word.means)], None


_Options: Any = make_dataclass("_Options", [_option(word) for word in FILTER_WORDS.values()], frozen=True)


@Parameter(name="*")
@dataclass(frozen=True)
class FilterOptions(_Options):  # type: ignore[misc]  # made of the words that the filter declares
    """Given several times, an option means any of its values; tags mean all of them."""

    def to_filter(self) -> JobFilter:
        """Raises InvalidFilter."""
        given = {name: getattr(self, name) for name in FILTER_WORDS}
        words = {
            name: value if isinstance(value, list) else [str(value)]
            for name, value in given.items()
            if value is not None
        }
        return filter_from_words(words)


@contextmanager
def noting_new_names(recruiter: Recruiter, kind: str, name: str) -> Iterator[None]:
    """Afterwards says on stderr if nobody knew this task or group before: it is allowed, and may be a slip of the
    pen."""
    doubt = None
    try:
        recruiter.jobs.recognize(JobFilter(group=name) if kind == "group" else JobFilter(task=name))
    except InvalidFilter as error:
        doubt = error
    yield
    if doubt is not None:
        say(f"note: {doubt}", stderr=True)
