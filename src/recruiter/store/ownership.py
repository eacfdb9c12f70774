"""Ownership: the collections of the database that are ours, and the version of their schema.

The database belongs to the application, and its collections may have any name. So a collection is ours only if

- the document of `meta` lists it; or
- its validator has our mark. One command creates a collection with its validator, so our collections are never without
  the mark: a crash during preparing, and two processes that prepare together, do no harm; or
- it was made by the first release, which had neither `meta` nor mark (`_is_schema_0`).

Every other collection is foreign, whether it is empty or not; so is a view or a time series. If a collection that we
need is foreign, ForeignCollection is raised, before anything is read from it or written to the database.

    {_id: "recruiter", schema: 1, collections: ["recruiter.scheduled", …], prepared_by: "0.1.0", prepared_at: …}

The version of the schema is a separate number, because most releases do not change it. A process of version N works
with the schemas N - 1, N and N + 1, so that old and new processes run side by side during an upgrade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

from recruiter.errors import ForeignCollection, SchemaMismatch, StoreError
from recruiter.store.codec import Document

NAME = "meta"
SCHEMA = 1
"""The version of the schema that this release makes. See docs/how-to/upgrading.md before you change it."""
VALIDATOR: Document = {
    "$jsonSchema": {
        "required": ["schema", "collections"],
        "properties": {
            "schema": {"bsonType": "int", "minimum": 0},
            "collections": {"bsonType": "array", "items": {"bsonType": "string"}},
        },
    }
}
_ID = "recruiter"
_MARK: Document = {"$jsonSchema": {"title": "Made by Recruiter"}}
_NAMES_OF_SCHEMA_0 = (
    *("scheduled", "archived", "roster", "schedulers", "leases", "creations", "limits", "statistics", "processes"),
    *("actions", "flows", "flow_markers", "unique_keys"),
)
_DUE_OF_SCHEMA_0 = [("lane", 1), ("priority", -1), ("scheduled_at", 1), ("_id", 1)]

Infos = Mapping[str, Mapping[str, Any]]
"""The collections of a database by name, as `listCollections` describes them."""


@dataclass(frozen=True, slots=True)
class MetaDocument:
    schema: int
    collections: frozenset[str]
    prepared_by: str


def marked(validator: Document) -> Document:
    return {"$and": [_MARK, validator]}


def read_meta(collection: Collection[Document]) -> MetaDocument | None:
    """None if there is none yet. Raises StoreError for a record that cannot be read."""
    found = collection.find_one({"_id": _ID})
    if found is None:
        return None
    schema, names = found.get("schema"), found.get("collections")
    if not isinstance(schema, int) or not isinstance(names, list):
        raise StoreError(
            f"document {_ID!r} of {collection.full_name} cannot be read: remove it, then run `recruiter prepare`"
        )
    return MetaDocument(schema, frozenset(map(str, names)), str(found.get("prepared_by", "unknown")))


def write_meta(collection: Collection[Document], names: Sequence[str], version: str, now: datetime) -> None:
    """Records that these collections are ours and have the schema of this release. Processes may do it together."""
    by = {"prepared_by": version, "prepared_at": now}
    update = {"$max": {"schema": SCHEMA}, "$addToSet": {"collections": {"$each": list(names)}}, "$set": by}
    try:
        collection.update_one({"_id": _ID}, update, upsert=True)
    except DuplicateKeyError:  # another process has just inserted it
        collection.update_one({"_id": _ID}, update)


def collection_infos(database: Database[Document], *names: str) -> Infos:
    only = {"name": {"$in": list(names)}} if names else None
    return {info["name"]: info for info in database.list_collections(filter=only)}


def schema_of(database: Database[Document], prefix: str, names: Sequence[str], meta: MetaDocument | None) -> int | None:
    """The version of the schema; None if the database is not prepared. Raises ForeignCollection.

    If `meta` lists everything, no other question is asked: a producer may not list collections."""
    if meta is not None and meta.collections.issuperset(names):
        return meta.schema
    infos = collection_infos(database)
    if meta is None and _is_schema_0(database, prefix, infos):
        earlier = {f"{prefix}{name}" for name in _NAMES_OF_SCHEMA_0}
        _require_no_foreign(database, infos, [name for name in names if name not in earlier], meta)
        return 0
    _require_no_foreign(database, infos, names, meta)
    return None if meta is None else meta.schema


def _require_no_foreign(
    database: Database[Document], infos: Infos, names: Sequence[str], meta: MetaDocument | None
) -> None:
    """Raises ForeignCollection if a foreign collection has such a name."""
    ours = frozenset[str]() if meta is None else meta.collections
    foreign = sorted(name for name in names if name in infos and name not in ours and not _is_marked(infos[name]))
    if foreign:
        raise _foreign_error(database, foreign)


def _foreign_error(database: Database[Document], foreign: Sequence[str]) -> ForeignCollection:
    which = f"collection {foreign[0]}" if len(foreign) == 1 else f"collections {', '.join(foreign)}"
    exist = "exists, and Recruiter did not make it" if len(foreign) == 1 else "exist, and Recruiter did not make them"
    return ForeignCollection(
        f"{which} of database {database.name} {exist}; nothing was read or changed. Give Recruiter another prefix for "
        "its collections (prefix=…, --prefix or RECRUITER_PREFIX), or another database (--target or RECRUITER_TARGET). "
        "If the database was dropped while processes of Recruiter ran: stop them, and drop it again"
    )


def require_marked(database: Database[Document], name: str) -> None:
    """Raises ForeignCollection if a collection that we wanted to create has just been made by another program."""
    infos = collection_infos(database, name)
    if name in infos and not _is_marked(infos[name]):
        raise _foreign_error(database, [name])


def _is_marked(info: Mapping[str, Any]) -> bool:
    conditions = info.get("options", {}).get("validator", {}).get("$and")
    return isinstance(conditions, list) and _MARK in conditions


def _is_schema_0(database: Database[Document], prefix: str, infos: Infos) -> bool:
    """Whether the first release has prepared it: each of its collections has a validator, which is not strict, and
    `scheduled` has the index that no other program would make. Some of them may have our mark already, after a crash in
    the middle of an upgrade."""
    found = [infos.get(f"{prefix}{name}", {}) for name in _NAMES_OF_SCHEMA_0]
    options = [info.get("options", {}) for info in found]
    if not all(option.get("validator") and option.get("validationLevel") == "moderate" for option in options):
        return False
    if all(map(_is_marked, found)):
        return False
    indexes = database.get_collection(f"{prefix}scheduled").index_information()
    return bool(indexes.get("due", {}).get("key") == _DUE_OF_SCHEMA_0)


def require_compatible(schema: int | None, meta: MetaDocument | None, database: str, version: str) -> None:
    """Raises SchemaMismatch unless this release works with this schema."""
    if schema is None or abs(schema - SCHEMA) <= 1:
        return
    by = "" if meta is None else f", made by Recruiter {meta.prepared_by}"
    known = f"database {database} has schema {schema}{by}; Recruiter {version} works with schemas"
    if schema > SCHEMA:
        raise SchemaMismatch(f"{known} up to {SCHEMA + 1}. Upgrade Recruiter here, or use another database")
    raise SchemaMismatch(f"{known} from {SCHEMA - 1}. Run `recruiter prepare` with Recruiter {version} first")


def require_not_newer(schema: int | None, meta: MetaDocument | None, database: str, version: str) -> None:
    """Raises SchemaMismatch if a newer release has prepared the database: this one would undo that."""
    if schema is not None and schema > SCHEMA:
        by = "a newer release" if meta is None else f"Recruiter {meta.prepared_by}"
        raise SchemaMismatch(
            f"database {database} has schema {schema}, made by {by}; Recruiter {version} makes schema {SCHEMA} and "
            "cannot prepare it. Run `recruiter prepare` of the newer release"
        )
