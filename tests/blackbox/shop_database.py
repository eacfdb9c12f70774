"""An application's own database, in which every everyday name is taken: documents, validators, indexes and a TTL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pymongo import MongoClient
from pymongo.database import Database

NAMES = (
    *("scheduled", "archived", "roster", "schedulers", "leases", "creations", "limits", "statistics", "processes"),
    *("actions", "flows", "flow_markers", "unique_keys", "meta"),
)
"""The plain names of Recruiter's collections."""
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
_DOCUMENTS: list[dict[str, Any]] = [
    {"kind": "order", "at": _LONG_AGO, "total": 1200},
    {"kind": "audit", "at": _LONG_AGO, "by": "ada", "verb": "login", "subject": "shop"},
    {"kind": "job", "at": _LONG_AGO, "task": "add", "args": {"a": 1, "b": 2}},
    {"kind": "job", "at": _LONG_AGO, "task": "add", "args": [1, 2], "lane": "generic/add", "locked": True},
    {"kind": "lease", "at": _LONG_AGO, "term": 9, "holder": "bob", "beats": 1, "expires": _LONG_AGO},
]


def opened(uri: str) -> Database[dict[str, Any]]:
    client: MongoClient[dict[str, Any]] = MongoClient(uri)
    return client.get_default_database()


def fill(database: Database[dict[str, Any]], *names: str) -> None:
    """Collections as an application makes them, in these names or in all of them."""
    for name in names or NAMES:
        schema = {"required": ["kind", "at"], "properties": {"kind": {"bsonType": "string"}}}
        database.create_collection(name, validator={"$jsonSchema": schema})
        database[name].create_index("kind")
        database[name].create_index("at", expireAfterSeconds=10**9)
        database[name].insert_many([dict(document) for document in _DOCUMENTS])


def snapshot(database: Database[dict[str, Any]], *, beside: str | None = None) -> dict[str, Any]:
    """Everything in the database, but for collections that start with `beside`: options, indexes and documents."""
    infos = {info["name"]: info for info in database.list_collections()}
    return {
        name: (
            {"type": info["type"], "options": info["options"]},
            [] if info["type"] == "view" else sorted(database[name].index_information().items()),
            sorted(database[name].find(), key=lambda document: str(document["_id"])),
        )
        for name, info in sorted(infos.items())
        if (beside is None or not name.startswith(beside)) and not name.startswith("system.")
    }
