"""The schema: the collections, indexes and validators that must exist; how a database differs; how to prepare it.

Preparing needs more rights than anything else in Recruiter. A process with fewer rights works with a prepared database:
an administrator runs `recruiter prepare` once, with every new version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from pymongo import IndexModel
from pymongo.database import Database
from pymongo.errors import OperationFailure

from recruiter.errors import StoreError, StoreRefused
from recruiter.store.codec import Document, decode, encode
from recruiter.store.errors import UNAUTHORIZED
from recruiter.store.ownership import require_marked

Wanted: TypeAlias = Mapping[str, tuple[Sequence[IndexModel], Document]]
"""Collections by name, with their indexes and validator."""

_EXISTS = 48
_CHECKED = {"validationLevel": "moderate", "validationAction": "error"}
"""Every insert is checked, and every update of a valid document. An invalid document, which bypassed the validator, can
be changed: otherwise it could be neither fenced, nor marked as broken, nor corrected."""
_BY_DEFAULT = {"validationLevel": "strict", "validationAction": "error"}
_OF_THE_SERVER = {"v", "ns", "background"}


class Kind(StrEnum):
    """The kinds of differences between the database and what this release wants."""

    NO_COLLECTION = "no collection"
    NO_INDEX = "no index"
    OTHER_INDEX = "other index"
    EXTRA_INDEX = "extra index"
    OTHER_VALIDATOR = "other validator"


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of the database that is not as this release wants it."""

    kind: Kind
    collection: str
    index: str | None = None

    @property
    def harmless(self) -> bool:
        """Whether jobs run anyway: it costs a little, or another version is about to be rolled out."""
        return self.kind in (Kind.EXTRA_INDEX, Kind.OTHER_VALIDATOR)

    def __str__(self) -> str:
        match self.kind:
            case Kind.NO_COLLECTION:
                return f"collection {self.collection}"
            case Kind.OTHER_VALIDATOR:
                return f"validator of {self.collection}"
            case _:
                return f"index {self.index} of {self.collection}"


def differences(database: Database[Document], wanted: Wanted) -> list[Difference]:
    existing = {info["name"]: info.get("options", {}) for info in database.list_collections()}
    found: list[Difference] = []
    for name, (indexes, validator) in wanted.items():
        if name not in existing:
            found.append(Difference(Kind.NO_COLLECTION, name))
            continue
        options = {**_BY_DEFAULT, **existing[name]}
        wanted_options = {"validator": _as_stored(validator), **_CHECKED}
        if any(_as_stored(options).get(key) != value for key, value in wanted_options.items()):
            found.append(Difference(Kind.OTHER_VALIDATOR, name))
        found.extend(_index_differences(name, indexes, database.get_collection(name).list_indexes()))
    return found


def _index_differences(name: str, wanted: Sequence[IndexModel], existing: Any) -> Iterator[Difference]:
    there = {index["name"]: _comparable(index) for index in existing}
    for index in wanted:
        model = _comparable(index.document)
        found = there.pop(model["name"], None)
        if found is None:
            yield Difference(Kind.NO_INDEX, name, model["name"])
        elif found != model:
            yield Difference(Kind.OTHER_INDEX, name, model["name"])
    for extra in there.keys() - {"_id_"}:
        yield Difference(Kind.EXTRA_INDEX, name, extra)


def _as_stored(document: Mapping[str, Any]) -> Document:
    """Dates of the server's own answers have no time zone."""
    return decode(encode(document))


def _comparable(index: Mapping[str, Any]) -> Document:
    plain = {key: value for key, value in index.items() if key not in _OF_THE_SERVER}
    return {**plain, "key": list(dict(index["key"]).items())}


def prepare(
    database: Database[Document], wanted: Wanted, *, validators: bool = True, insist: bool = False
) -> list[Difference]:
    """Creates missing parts, and updates the validators of existing collections only with `validators`; returns the
    changes. Raises StoreRefused if this user may not do it and a part is needed, or with `insist`."""
    left = {Kind.EXTRA_INDEX} if validators else {Kind.EXTRA_INDEX, Kind.OTHER_VALIDATOR}
    to_make = [difference for difference in differences(database, wanted) if difference.kind not in left]
    other_indexes = [str(difference) for difference in to_make if difference.kind == Kind.OTHER_INDEX]
    if other_indexes:
        raise StoreError(
            f"{', '.join(other_indexes)} in database {database.name} is not what this version of Recruiter needs: "
            "drop it in mongosh, then run `recruiter prepare`"
        )
    try:
        for difference in to_make:
            _make(database, difference, *wanted[difference.collection])
    except OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        missing = [str(difference) for difference in to_make if insist or not difference.harmless]
        if missing:
            raise StoreRefused(
                f"database {database.name} is not prepared ({', '.join(missing)}), and this user may not prepare "
                'it; run `recruiter prepare` once as a user who may ("Users and roles in MongoDB" in the documentation)'
            ) from error
        return []
    return to_make


def _make(
    database: Database[Document], difference: Difference, indexes: Sequence[IndexModel], validator: Document
) -> None:
    name = difference.collection
    if difference.kind == Kind.OTHER_VALIDATOR:
        database.command({"collMod": name, "validator": validator, **_CHECKED})
        return
    if difference.kind == Kind.NO_COLLECTION:
        try:
            database.command({"create": name, "validator": validator, **_CHECKED})
        except OperationFailure as error:
            if error.code != _EXISTS:
                raise
            require_marked(database, name)  # by another process that has just made it
    missing = [index for index in indexes if difference.index in (None, index.document["name"])]
    if missing:
        database.get_collection(name).create_indexes(missing)
