"""Text that can be stored and shown: whatever somebody's exception, policy or document has to say."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

LONGEST_MESSAGE = 2_000

_CREDENTIALS = re.compile(r"(?<=://)\S*@")


def mask(text: str) -> str:
    """The same text without any user name or password of a URI in it, also of one that was not escaped."""
    return _CREDENTIALS.sub("***@", text)


def clean(text: str) -> str:
    """What can be stored of it."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\\0")


def head(text: str, longest: int) -> str:
    """Its beginning; what was cut is said."""
    return text if len(text) <= longest else f"{text[:longest]} … {len(text) - longest:,} characters cut"


def cut(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Valid, and not longer than this. The end is what matters in a trace; what was cut is said."""
    text = clean(text)
    return text if len(text) <= longest else f"… {len(text) - longest:,} characters cut …\n{text[-longest:]}"


def said_by(value: Any, how: Callable[[Any], str] = str, longest: int = LONGEST_MESSAGE) -> str:
    """What a value says of itself, even if asking it raises."""
    try:
        return cut(how(value), longest)
    except BaseException:  # user code may raise anything here, SystemExit too
        return f"<{type(value).__name__} that cannot say what it is>"


def shown(value: Any, longest: int = 100) -> str:
    """A value in a message about it: in one line, and not all of it if it is long."""
    text = said_by(value, repr, 1_000_000)
    return " ".join(text.split()) if len(text) <= longest else f"{' '.join(text[:longest].split())}…"
