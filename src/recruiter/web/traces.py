"""Tracebacks with the frames of libraries folded away: what is yours is what is read first."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line \d+')
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python3|^<frozen |/recruiter/steps/execute|/recruiter/processes/"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some lines of a trace that are read, or folded, together."""

    text: str
    frames: int = 0
    """How many frames of libraries these are; 0 if they are not to be folded."""


def pieces(trace: str) -> list[Piece]:
    """The trace in its order; nothing is left out."""
    found: list[Piece] = []
    for lines, frames in _frames(trace.removesuffix("\n").split("\n")):
        last = found[-1] if found else None
        if last is not None and bool(last.frames) == bool(frames):
            found[-1] = Piece(f"{last.text}\n{lines}", last.frames + frames)
        else:
            found.append(Piece(lines, frames))
    return found


def _frames(lines: list[str]) -> list[tuple[str, int]]:
    """Each frame with the lines that belong to it, and whether it is a library's."""
    found: list[tuple[list[str], int]] = []
    within = False
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            found.append(([line], 1 if _LIBRARY.search(frame["file"]) else 0))
            within = True
        elif within and line.startswith("    "):
            found[-1][0].append(line)
        else:
            found.append(([line], 0))
            within = False
    return [("\n".join(lines), frames) for lines, frames in found]
