"""The conditions of a filter in a URL, in the search box and on the command line.

jobs?state=failed&task=resize&arg=order=7        a link is a search
state:failed task:resize arg.order=7             the search box
recruiter job list --state failed --task resize --arg order=7
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from urllib.parse import urlencode

from recruiter.domain.search.conditions import STATES
from recruiter.domain.search.filter import FILTER_WORDS, unknown_word
from recruiter.domain.state import SKIPPED, WHY_SKIPPED
from recruiter.domain.text import similar
from recruiter.errors import InvalidFilter

Words = Mapping[str, Sequence[str]]  # Conditions by name, each with its values

NAMES = tuple(FILTER_WORDS)  # As the command line has them, with `_` for `-`

_STATES = ("running", "queued", "postponed", "blocked", "failed", SKIPPED, "succeeded", "cancelled", "lost")
TABS: Mapping[str, Words] = {state: {"state": [state]} for state in _STATES} | {SKIPPED: {"why": list(WHY_SKIPPED)}}
"""The states of a list of jobs, in the order of its tabs, with their conditions."""

_TYPED = re.compile(r"([a-z_]+(?:-[a-z]+)*)[:=](.+)", re.DOTALL)
_ARGUMENT = re.compile(r"arg\.([^=]+)=(.*)", re.DOTALL)
_MOST = 100


def words_in(pairs: Iterable[tuple[str, str]], also: Collection[str] = ()) -> dict[str, list[str]]:
    """The conditions of a URL or of a body, in the order of `NAMES`; parameters in `also` are no conditions. Raises
    InvalidFilter for a word that is not known or that has no value: without it more jobs would be meant."""
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        if name in also:
            continue
        if name not in NAMES:
            raise unknown_word(name)
        if not value:
            raise InvalidFilter(f"{name} has no value; give one, or leave it out")
        if value not in found.setdefault(name, []):
            found[name].append(value)
    if sum(map(len, found.values())) > _MOST:
        raise InvalidFilter(f"there are too many conditions; give at most {_MOST}")
    return {name: found[name] for name in NAMES if found.get(name)}


def split(text: str) -> tuple[dict[str, list[str]], str]:
    """The conditions in the search box, and the other words as a search string. Raises InvalidFilter."""
    try:
        parts = shlex.split(text)
    except ValueError:  # a quote that is not closed
        parts = text.split()
    free = [part for part in parts if ":" not in part and "=" not in part]
    return words_in(_word(part) for part in parts if part not in free), " ".join(free)


def completions(text: str, names: Mapping[str, Sequence[str]]) -> list[str]:
    """The completions of the last word in the search box: a condition, or a known task, group or error."""
    typed = text.rsplit(" ", 1)[-1]
    word, colon, begun = typed.partition(":")
    if colon:
        known = STATES if word == "state" else names.get(word, ())
        return [_chip(word, value) for value in known if begun.lower() in value.lower()][:_MOST_COMPLETIONS]
    words = [f"{name}:" for name in NAMES if name != "arg" and typed and name.startswith(typed)]
    values = [
        _chip(word, value)
        for word, known in names.items()
        for value in known
        if len(typed) >= _LEAST_TYPED and typed.lower() in value.lower()
    ]
    return (words + values)[:_MOST_COMPLETIONS]


_MOST_COMPLETIONS = 10
_LEAST_TYPED = 2


def _word(part: str) -> tuple[str, str]:
    argument = _ARGUMENT.fullmatch(part)
    if argument is not None:
        return "arg", f"{argument[1]}={argument[2]}"
    word = _TYPED.fullmatch(part)
    name = word[1].replace("-", "_") if word is not None else ""
    if word is None or name not in NAMES:
        hint = similar(name, NAMES)
        raise InvalidFilter(
            f"{part[:100]!r} is not a condition; {hint} write task:resize, state:failed, owner:ada, tag:eu, "
            "error:Timeout, arg.order=7 or since:2h".replace("  ", " ")
        )
    return name, word[2]


def as_typed(words: Words) -> str:
    """The same as a person would type it."""
    return " ".join(_chip(name, value) for name, values in words.items() for value in values)


def _chip(name: str, value: str) -> str:
    return shlex.quote(f"arg.{value}") if name == "arg" else f"{name}:{shlex.quote(value) if ' ' in value else value}"


def chips(words: Words, text: str = "") -> list[tuple[str, str]]:
    """Each condition as people read it, and the URL without it."""
    return [
        (_chip(name, value), query({**words, name: [other for other in values if other != value]}, text=text))
        for name, values in words.items()
        for value in values
    ]


def query(words: Words, **more: str | None) -> str:
    """The part of a URL after the `?`."""
    pairs = [(name, value) for name, values in words.items() for value in values]
    return urlencode([*pairs, *((name, value) for name, value in more.items() if value)])


def command(words: Words, verb: str = "list") -> str:
    """The command line that asks for the same."""
    parts = ["recruiter", "job", verb]
    for name, values in words.items():
        for value in values:
            if name == "recovered":
                parts.append("--recovered" if value == "true" else "--no-recovered")
            else:
                parts += [f"--{name.replace('_', '-')}", value]
    return shlex.join(parts)
