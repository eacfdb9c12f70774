"""The reference page of the command line, generated from the same help texts as `--help`.

Options that many commands share are printed once, at the end of the page. Each command links to them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from recruiter.cli.main import app
from recruiter.domain.search.filter import FILTER_WORDS

_OPTION = re.compile(r"^\* `--([\w-]+)[^\n]*\n?", re.MULTILINE)


class SharedOptions(NamedTuple):
    title: str
    intro: str
    names: frozenset[str]
    """The names of the options, without the leading dashes."""


SHARED = [
    SharedOptions("Connection options", "All commands that use MongoDB:", frozenset({"target", "prefix", "config"})),
    SharedOptions(
        "Logging options", "The commands that start a process:", frozenset({"log-level", "log-format", "log-config"})
    ),
    SharedOptions("Probe options", "The commands that start a process:", frozenset({"health-port", "health-host"})),
    SharedOptions(
        "Filter options",
        "Commands that select jobs have these options. A job must match every option that is given.",
        frozenset(word.replace("_", "-") for word in FILTER_WORDS),
    ),
]


def commands() -> str:
    text = app.generate_docs(heading_level=1, usage_name="recruiter")
    text = "**Commands**" + text.partition("**Commands**")[2]  # the page has its own title
    text = re.sub(r"```console\n", "```text\n", text)
    before, *sections = re.split(r"^(?=##+ recruiter )", text, flags=re.MULTILINE)
    shared: dict[str, dict[str, str]] = {group.title: {} for group in SHARED}
    for group in SHARED:
        sections = [_without(group, section, shared[group.title]) for section in sections]
    return (
        before
        + "".join(sections).rstrip()
        + "\n\n"
        + "\n\n".join(_section(group, shared[group.title]) for group in SHARED)
    )


def _without(group: SharedOptions, section: str, printed: dict[str, str]) -> str:
    """The section with a link instead of the options of this group.

    An option that has another help text in this command stays where it is.
    """
    found = {match[1]: match[0] for match in _OPTION.finditer(section) if match[1] in group.names}
    if len(found) < 2:
        return section
    moved = [line for name, line in found.items() if printed.setdefault(name, line) == line]
    link = f"* [{group.title}](#{group.title.lower().replace(' ', '-')})\n"
    for position, line in enumerate(moved):
        section = section.replace(line, "" if position else link)
    return section


def _section(group: SharedOptions, printed: dict[str, str]) -> str:
    return f"## {group.title}\n\n{group.intro}\n\n{''.join(printed.values()).rstrip()}"
