"""What the user of this connection may do, asked before a process begins: better one sentence at the start than a
refusal in the middle of a job's life."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pymongo import MongoClient

from recruiter.store.codec import Document

READ, WRITE = frozenset({"find"}), frozenset({"find", "insert", "update", "remove"})
LOOK_AROUND = frozenset({"listCollections", "listIndexes"})
"""On the database: to see whether it is prepared."""


def lacking(client: MongoClient[Document], database: str, needs: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """What this user may not do, by collection ("" for the database). Empty also where MongoDB has no users at all, or
    does not tell."""
    answer = client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    granted: Sequence[Mapping[str, Any]] | None = answer.get("authenticatedUserPrivileges")
    if not answer["authenticatedUsers"] or granted is None:
        return {}
    found: dict[str, list[str]] = {}
    for collection, actions in needs.items():
        allowed = {
            action
            for privilege in granted
            if _covers(privilege["resource"], database, collection)
            for action in privilege["actions"]
        }
        missing = sorted(set(actions) - allowed) if "anyAction" not in allowed else []
        if missing:
            found[collection] = missing
    return found


def _covers(resource: Mapping[str, Any], database: str, collection: str) -> bool:
    if resource.get("anyResource"):
        return True
    return resource.get("db") in ("", database) and resource.get("collection") in ("", collection)
