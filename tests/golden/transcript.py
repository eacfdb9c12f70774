"""Transcripts: what is typed, and what the project answers, as text that a person can review.

A line with `>>> ` is an expression of Python, a line with `$ ` is a command; the lines below it are the answer.
`make golden` writes the answers again, and the difference is reviewed like any other change of text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cli_here import here

FOLDER = Path(__file__).parent
SURFACES = ("errors", "refusals", "explain", "doctor", "cli")
CHANGES_EACH_TIME = (
    (re.compile(r"\b[0-9a-f]{24}\b"), "ID"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0xADDRESS"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?"), "DATE"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?\b"), "CLOCK"),
    (re.compile(r"\b\d+(\.\d+)?(?:ms|[dhms])\b(?: \d+(?:ms|[hms])\b)*"), "DURATION"),
    (re.compile(r"127\.0\.0\.1:\d{4,5}"), "HOST"),
    (re.compile(r"(?<=\S)  +"), "  "),  # the columns of a table are as wide as the widest moment
)


def answered(transcript: str, names: Mapping[str, Any], target: str = "", *, exact: bool = True) -> str:
    """The transcript with the answers of today. Without `exact`, ids, dates and durations are replaced by a word."""
    lines: list[str] = []
    for line in transcript.splitlines():
        if line.startswith("# "):
            lines += ["", line] if lines else [line]
        elif line.startswith((">>> ", "$ ")):
            answer = _value(line[4:], names) if line.startswith(">") else _printed(target, line[2:])
            for pattern, word in () if exact else CHANGES_EACH_TIME:
                answer = pattern.sub(word, answer)
            lines += [line, *answer.splitlines()] if line.startswith(">") else ["", line, *answer.splitlines()]
    return "\n".join(lines) + "\n"


def _value(expression: str, names: Mapping[str, Any]) -> str:
    try:
        value = eval(expression, dict(names))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if value is None else str(value)


def _printed(target: str, command: str) -> str:
    code, printed = here(target, *shlex.split(command), COLUMNS="250")
    passing = re.compile("^[╭╰]|has not answered for a second")  # frames, and what a busy machine adds
    rows = (row.strip("│").rstrip() for row in printed.splitlines() if not passing.search(row))
    return "\n".join([*rows, f"exit code {code}"])
