"""Trace context: what a job carries of the trace in which it was made, in the words of W3C Trace Context."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MOST_ENTRIES, LONGEST_ENTRY = 20, 8_192
"""What is beyond that is neither stored nor read."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_context(value: Any) -> dict[str, str] | None:
    """What can be stored and believed of a trace context: texts by name, few and not long."""
    if not isinstance(value, Mapping):
        return None
    sound = {
        name: text
        for name, text in list(value.items())[:MOST_ENTRIES]
        if isinstance(name, str) and isinstance(text, str) and len(text) <= LONGEST_ENTRY and "\0" not in name
    }
    return sound or None


def trace_id_of(context: Any) -> str | None:
    """The id of the trace in a W3C trace context, if there is one."""
    parent = context.get("traceparent") if isinstance(context, Mapping) else None
    found = _TRACEPARENT.fullmatch(parent) if isinstance(parent, str) else None
    return found[1] if found else None
