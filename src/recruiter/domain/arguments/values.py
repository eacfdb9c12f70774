"""Values in BSON: a value comes out equal to what went in, or it is refused before anything is stored.

BSON alone is not faithful: it cuts microseconds, forgets time zones, turns tuples into lists and refuses
decimals. Values that BSON keeps pass unchanged; all others travel in a tagged form:

    Decimal("1.10") ──to_bson──▶ {"__recruiter__": "decimal", "value": "1.10"} ──from_bson──▶ Decimal("1.10")

The list of tags is closed, and none names a class: a hostile document can make a date, never an object.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from bson import Binary, Decimal128, MaxKey, MinKey, ObjectId, Regex, Timestamp

from recruiter.domain.text import shown
from recruiter.errors import UnsupportedValue

TAG = "__recruiter__"
MAX_DEPTH = 80
"""MongoDB takes 100 levels; the document around the value needs some of them."""

PLAIN = frozenset({str, int, float, bool, type(None), bytes})
"""Types that BSON keeps unchanged, apart from lone surrogates and integers of more than 64 bits."""

_NATIVE = frozenset({float, bool, type(None), bytes, UUID, ObjectId, Decimal128, Timestamp, Regex, MinKey, MaxKey})
# pymongo reads every document with a "$ref" as a DBRef.
KEYS_THAT_CHANGE = frozenset({TAG, "$ref"})


class Refused(Exception):
    """This cannot travel. `path` grows while the exception climbs: it costs nothing when all is well."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []

    def named(self, root: str) -> UnsupportedValue:
        parts = self.path[::-1]
        path = "".join(parts if len(parts) <= 12 else [*parts[:12], "…"])
        return UnsupportedValue(f"{root}{path}: {self}")


def type_name(value: Any) -> str:
    """A value in a message: its type. Arguments and results may be secrets, and messages are logged and archived."""
    return type(value).__name__


def to_bson(value: Any, path: str = "args") -> Any:
    """The value as BSON takes it; UnsupportedValue names the path to whatever cannot travel."""
    try:
        return encode(value)
    except Refused as refused:
        raise refused.named(path) from None


def from_bson(value: Any) -> Any:
    """The reverse of `to_bson`. Documents of other programs pass too; UnsupportedValue for an unknown tag."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, dict):
        if TAG in value:
            return _decode_tagged(value)
        return {key: from_bson(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_bson(item) for item in value]
    if kind is datetime and value.tzinfo is not None:
        return value.replace(tzinfo=UTC)  # pymongo has its own UTC
    return int(value) if isinstance(value, int) else value  # bson's Int64


def encode(value: Any, depth: int = 0, typed: bool = False) -> Any:
    """`to_bson`, raising Refused. `typed`: an annotation will rebuild enums and keys that are not text."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if kind is int:
        return value if -(2**63) <= value < 2**63 else tagged("int", _digits(value))
    if kind in _NATIVE:
        return value
    if depth >= MAX_DEPTH:
        raise Refused(f"more than {MAX_DEPTH} levels deep, or a structure that contains itself")
    encoder = _ENCODERS.get(kind)
    return encoder(value, depth, typed) if encoder else _unusual(value, depth, typed)


def tagged(tag: str, value: Any, **more: Any) -> dict[str, Any]:
    return {TAG: tag, "value": value, **more}


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused("a text with a lone surrogate is not valid Unicode; pass bytes") from None
    return str(value)


def _digits(value: int) -> str:
    try:
        return str(int(value))
    except ValueError:
        raise Refused("an integer of more than 4300 digits cannot travel") from None


def _dict(value: dict[Any, Any], depth: int, typed: bool) -> dict[str, Any]:
    is_plain = _has_plain_keys(value, typed)
    levels = 1 if is_plain else 3  # as a list of pairs in a tagged document, its items are two levels deeper
    encoded, key = {}, None
    try:
        for key, item in value.items():
            encoded[key] = encode(item, depth + levels, typed)
    except Refused as refused:
        refused.path.append(f".{key}" if isinstance(key, str) else f"[{type_name(key)}]")
        raise
    if is_plain:
        return encoded
    return tagged("dict", [[encode(key, depth + levels, typed), item] for key, item in encoded.items()])


def _has_plain_keys(value: dict[Any, Any], typed: bool) -> bool:
    """Whether BSON can have these keys. If not, the dict travels as a list of pairs. Refused if it cannot travel."""
    is_plain = KEYS_THAT_CHANGE.isdisjoint(value)
    for key in value:
        if type(key) is str:
            if not key.isascii():
                _text(key)
            if "\0" in key:
                raise Refused("a key contains a NUL character, which MongoDB refuses")
        elif typed:
            is_plain = False
        else:
            raise Refused(
                f"a key must be text, not {type_name(key)}; other keys need an annotation such as dict[int, str]"
            )
    return is_plain


def _list(value: list[Any], depth: int, typed: bool) -> list[Any]:
    encoded: list[Any] = []
    try:
        for item in value:
            encoded.append(encode(item, depth + 1, typed))
    except Refused as refused:
        refused.path.append(f"[{len(encoded)}]")
        raise
    return encoded


def _set(value: set[Any] | frozenset[Any], depth: int, typed: bool) -> dict[str, Any]:
    # Sorted, so that equal sets make equal documents in every process.
    items = sorted(_list(list(value), depth + 1, typed), key=repr)
    return tagged("frozenset" if isinstance(value, frozenset) else "set", items)


def _datetime(value: datetime, _depth: int, _typed: bool) -> Any:
    offset = value.utcoffset()
    if offset is not None and not offset and value.tzname() == "UTC" and value.microsecond % 1000 == 0:
        return value
    if isinstance(value.tzinfo, ZoneInfo) and value.tzinfo.key:
        return tagged("datetime", value.isoformat(), zone=value.tzinfo.key, fold=value.fold)
    return tagged("datetime", value.isoformat())


def _time(value: time, _depth: int, _typed: bool) -> dict[str, Any]:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Refused("a time in a zone whose offset depends on the date cannot travel; pass a datetime")
    return tagged("time", value.isoformat())


def _unusual(value: Any, depth: int, typed: bool) -> Any:
    """Encodes a value whose type has no encoder. A subclass becomes an equal value of its base class."""
    if isinstance(value, Enum):
        if not typed:
            raise Refused(
                f"a value of the enum {type_name(value)} needs an annotation to be rebuilt; annotate {type_name(value)}"
            )
        return encode(value.value, depth, typed)
    if isinstance(value, Binary):
        if value.subtype < 5:
            raise Refused("this Binary would come back as something else; pass bytes or a UUID")
        return value
    if isinstance(value, PurePosixPath):
        return tagged("path", _text(str(value)))
    plain = _plain_equal(value)
    if plain is None:
        raise Refused(_why_it_cannot_travel(value))
    return encode(plain, depth, typed)


def _plain_equal(value: Any) -> Any:
    """An equal value of its base class; None if there is none."""
    if isinstance(value, datetime):
        moment = datetime(*value.timetuple()[:6], value.microsecond, value.tzinfo, fold=value.fold)
        return moment if moment == value else None
    for kind, plain in _PLAIN_FORMS.items():
        if isinstance(value, kind):
            return plain(value)
    return None


def _why_it_cannot_travel(value: Any) -> str:
    kind = type(value)
    if isinstance(value, tuple) or hasattr(kind, "__dataclass_fields__") or hasattr(kind, "model_fields"):
        return f"the class {kind.__name__} needs an annotation to be rebuilt; annotate it, or pass a dict"
    if isinstance(value, type):
        return f"the class {value.__name__} cannot travel; pass its name"
    if callable(value):
        return "a function cannot travel; pass data, and call it in the task"
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return f"a value of type {name} cannot travel; pass plain data or a dataclass"


_PLAIN_FORMS: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes,
    bytearray: bytes,
    dict: dict,
    list: list,
    date: lambda value: date(value.year, value.month, value.day),
}

_ENCODERS: dict[type, Callable[[Any, int, bool], Any]] = {
    dict: _dict,
    list: _list,
    tuple: lambda value, depth, typed: tagged("tuple", _list(list(value), depth + 1, typed)),
    set: _set,
    frozenset: _set,
    datetime: _datetime,
    date: lambda value, _depth, _typed: tagged("date", value.isoformat()),
    time: _time,
    timedelta: lambda value, _depth, _typed: tagged(
        "timedelta", {"days": value.days, "seconds": value.seconds, "microseconds": value.microseconds}
    ),
    Decimal: lambda value, _depth, _typed: tagged("decimal", str(value)),
}


def _decode_tagged(document: dict[str, Any]) -> Any:
    decoder = _DECODERS.get(document[TAG]) if isinstance(document[TAG], str) else None
    if decoder is None:
        known = ", ".join(_DECODERS)
        raise UnsupportedValue(f"{TAG}: {shown(document[TAG])} is not a kind of value; known: {known}")
    try:
        return decoder(document)
    except UnsupportedValue:
        raise
    except Exception as error:
        raise UnsupportedValue(
            f"the value tagged {document[TAG]!r} is not a {document[TAG]} ({type_name(error)})"
        ) from None


def _items(document: dict[str, Any]) -> list[Any]:
    if not isinstance(document["value"], list):
        raise TypeError("a list is needed")
    return [from_bson(item) for item in document["value"]]


def _decode_datetime(document: dict[str, Any]) -> datetime:
    """A datetime in its time zone. Only with its offset if this host does not know the zone."""
    moment = datetime.fromisoformat(document["value"])
    if "zone" not in document:
        return moment
    try:
        zone = ZoneInfo(document["zone"])
    except Exception:
        return moment
    wall = moment.replace(tzinfo=zone, fold=document["fold"])
    # If this host has other rules for the zone, the instant counts, not the local time.
    return wall if wall.utcoffset() == moment.utcoffset() else moment.astimezone(zone)


_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "int": lambda document: int(document["value"]),
    "decimal": lambda document: Decimal(document["value"]),
    "datetime": _decode_datetime,
    "date": lambda document: date.fromisoformat(document["value"]),
    "time": lambda document: time.fromisoformat(document["value"]),
    "timedelta": lambda document: timedelta(**document["value"]),
    "path": lambda document: Path(document["value"]),
    "tuple": lambda document: tuple(_items(document)),
    "set": lambda document: set(_items(document)),
    "frozenset": lambda document: frozenset(_items(document)),
    "dict": lambda document: dict(_items(document)),
}
