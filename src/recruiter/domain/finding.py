"""A finding of the doctor: how bad it is, what it is, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Good to know, and perhaps meant to be so."""
    PROBLEM = "problem"
    """Something is wrong, or will be."""


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    about: str
    """One word: `server`, `workers`, `jobs`, …"""
    text: str
    todo: str = ""
    """What to do; empty when there is nothing."""

    def __str__(self) -> str:
        return f"{self.text}. {self.todo}" if self.todo else self.text


def ok(about: str, text: str) -> Finding:
    return Finding(Level.OK, about, text)


def note(about: str, text: str, todo: str) -> Finding:
    return Finding(Level.NOTE, about, text, todo)


def problem(about: str, text: str, todo: str) -> Finding:
    return Finding(Level.PROBLEM, about, text, todo)
