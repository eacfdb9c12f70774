"""Redaction: values whose key looks like a secret are not shown, anywhere in the console or its API.

Only keys tell: a password that is a positional argument, or part of a message or of a log, is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from recruiter.domain.text import SECRET_NAMES, mask

DEFAULT = SECRET_NAMES
HIDDEN = "••••••"
"""What is shown instead."""

_LONGEST_LINE = 160
_DEEPEST = 60


class Redaction:
    """Makes stored values plain and harmless: what JSON can say, with secrets hidden."""

    def __init__(self, pattern: str = DEFAULT) -> None:
        self._pattern = re.compile(pattern, re.IGNORECASE) if pattern else None

    def hides(self, key: str) -> bool:
        """Whether the value of this key, or of a key in this path, is a secret."""
        return self._pattern is not None and self._pattern.search(key) is not None

    def plain(self, value: Any, depth: int = 0) -> Any:
        """The value as JSON can say it, without secrets."""
        if isinstance(value, str):
            return mask(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if depth > _DEEPEST:
            return "…"
        if isinstance(value, Mapping):
            return {
                str(key): HIDDEN if self.hides(str(key)) else self.plain(inner, depth + 1)
                for key, inner in value.items()
            }
        if hasattr(value, "_asdict"):
            return self.plain(value._asdict(), depth)
        if isinstance(value, list | tuple | set | frozenset):
            return [self.plain(inner, depth + 1) for inner in value]
        if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return f"{len(value):,} bytes" if isinstance(value, bytes) else str(value)

    def line(self, args: Any) -> str:
        """Arguments in one line, like a call: `to="ada@b.c", order=7`."""
        plain = self.plain(args)
        if isinstance(plain, dict):
            parts = [f"{key}={_short(value)}" for key, value in list(plain.items())[:20]]
        elif isinstance(plain, list):
            parts = [_short(value) for value in plain[:20]]
        else:
            parts = [] if plain is None else [_short(plain)]
        text = ", ".join(parts)
        return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"


def _short(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value[:_LONGEST_LINE]}"' if value != HIDDEN else HIDDEN
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(inner)}" for key, inner in list(value.items())[:8]) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_short(inner) for inner in value[:8]) + (", …]" if len(value) > 8 else "]")
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
