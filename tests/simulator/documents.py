"""The language of MongoDB that the store speaks: queries, updates, projections, as much as it uses of each.

Whatever is not understood raises NotImplementedError, so that the store cannot use something that is only half there.
`test_conformance.py` runs the same random operations on a real MongoDB and compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bson import Binary, Int64, ObjectId
from bson.raw_bson import RawBSONDocument

from recruiter.domain.state import State, Why
from recruiter.store.codec import decode, encode

Document = dict[str, Any]
MISSING = object()
_PLAIN = frozenset({int, Int64, float, str, bytes, ObjectId, datetime, UUID})
"""Types whose values Python compares like MongoDB, if both values have the same type."""

_RANKS: dict[type, int] = {
    type(None): 1,
    object: 1,
    int: 2,
    Int64: 2,
    float: 2,
    str: 3,
    dict: 4,
    list: 5,
    bytes: 6,
    Binary: 6,
    UUID: 6,
    ObjectId: 7,
    bool: 8,
    datetime: 9,
    State: 3,
    Why: 3,
}
_KEPT = frozenset({type(None), bool, float, str, bytes, ObjectId, UUID, Int64})
"""Types that MongoDB returns unchanged. An int is not among them: a large int comes back as an Int64."""
_SMALL = range(-(2**31), 2**31)
_TYPES = {"int": int, "long": int, "double": float, "string": str, "date": datetime, "array": list, "object": dict}


def stored(document: Mapping[str, Any]) -> Document:
    """A copy of the document as MongoDB would keep it: with milliseconds, without tuples, the `_id` first."""
    if isinstance(document, RawBSONDocument):
        return decode(bytes(document.raw))
    copy = {name: value(each) for name, each in document.items()}
    return {"_id": copy.pop("_id"), **copy} if "_id" in copy else copy


def value(something: Any) -> Any:
    """The value as MongoDB would store it. Stored values are never changed in place, so they need not be copied."""
    kind = type(something)
    if kind in _KEPT or (kind is int and something in _SMALL):
        return something
    if kind is dict:
        return {name: value(each) for name, each in something.items()}
    if kind is list or kind is tuple:
        return [value(each) for each in something]
    if kind is datetime and something.tzinfo is UTC:
        return something.replace(microsecond=something.microsecond // 1000 * 1000)
    return decode(encode({"v": something}))["v"]


def _rank(value: Any) -> int:
    rank = _RANKS.get(type(value))
    if rank is None:
        raise NotImplementedError(f"values of type {type(value).__name__}")
    return rank


def sort_key(value: Any) -> tuple[Any, ...]:
    rank = _rank(value)
    if rank == 1:
        return (1,)
    if rank == 4:
        return (4, tuple((_rank(item), name, sort_key(item)) for name, item in value.items()))
    if rank == 5:
        return (5, tuple(map(sort_key, value)))
    return (rank, value)


def equal(one: Any, other: Any) -> bool:
    if type(one) is type(other) and type(one) in _PLAIN:
        return bool(one == other)
    rank = _rank(one)
    if rank != _rank(other):
        return False
    return sort_key(one) == sort_key(other) if rank in (1, 4, 5) else bool(one == other)


# -- queries ---------------------------------------------------------------------------------------------------------


def lookup(document: Any, path: str) -> Any:
    """The value at this path, which leads through documents only."""
    for name in path.split("."):
        if not isinstance(document, dict) or name not in document:
            return MISSING
        document = document[name]
    return document


def _found(document: Any, path: str) -> list[Any]:
    """The values that a query sees at this path: also inside arrays."""
    if "." not in path and isinstance(document, dict):
        return [document[path]] if path in document else []
    head, _, rest = path.partition(".")
    if isinstance(document, list):
        inside = [found for item in document if isinstance(item, dict) for found in _found(item, path)]
        if head.isdigit() and int(head) < len(document):
            inside += _found(document[int(head)], rest) if rest else [document[int(head)]]
        return inside
    if not isinstance(document, dict) or head not in document:
        return []
    return _found(document[head], rest) if rest else [document[head]]


def matches(document: Document, query: Mapping[str, Any]) -> bool:
    for path, condition in query.items():
        if path[0] == "$":
            if not _logical(document, path, condition):
                return False
        elif type(condition) in _PLAIN and type(document.get(path)) is type(condition):  # by far the most frequent
            if document[path] != condition:
                return False
        elif not _meets(_found(document, path), condition):
            return False
    return True


def _logical(document: Document, operator: str, condition: Any) -> bool:
    match operator:
        case "$and":
            return all(matches(document, each) for each in condition)
        case "$or":
            return any(matches(document, each) for each in condition)
        case "$nor":
            return not any(matches(document, each) for each in condition)
        case "$expr":
            return bool(evaluate(condition, document))
    raise NotImplementedError(operator)


def _meets(found: Sequence[Any], condition: Any) -> bool:
    if _has_operators(condition):
        for name, operand in condition.items():  # noqa: SIM110 - asked for every document
            if not _OPERATORS[name](found, operand):
                return False
        return True
    return _equals(found, condition)


def _has_operators(condition: Any) -> bool:
    if type(condition) in _PLAIN:
        return False
    return isinstance(condition, dict | RawBSONDocument) and next(iter(condition), "")[:1] == "$"


def _candidates(found: Sequence[Any]) -> Iterable[Any]:
    """Each value itself, and the items of arrays."""
    if len(found) == 1 and type(found[0]) is not list:
        return found
    return [item for each in found for item in (each, *(each if type(each) is list else ()))]


def _equals(found: Sequence[Any], operand: Any) -> bool:
    if type(operand) is RawBSONDocument:
        operand = decode(bytes(operand.raw))
    if operand is None and not found:
        return True
    for each in _candidates(found):  # noqa: SIM110 - asked for every document
        if equal(each, operand):
            return True
    return False


def _compares(holds: Callable[[Any, Any], bool]) -> Callable[[Sequence[Any], Any], bool]:
    def compare(found: Sequence[Any], operand: Any) -> bool:
        if type(operand) is datetime and operand.tzinfo is None:
            operand = operand.replace(tzinfo=UTC)
        if len(found) == 1 and type(found[0]) is type(operand) and type(operand) in _PLAIN:
            return holds(found[0], operand)
        rank, key = _rank(operand), sort_key(operand)
        if rank == 1 and not found:  # a missing field compares like null
            return holds(key, key)
        return any(_rank(each) == rank and holds(sort_key(each), key) for each in _candidates(found))

    return compare


def _is_in(found: Sequence[Any], operand: Sequence[Any]) -> bool:
    return any(_equals(found, each) for each in operand)


def _has_type(found: Sequence[Any], operand: str | Sequence[str]) -> bool:
    types = tuple(_TYPES[name] for name in ([operand] if isinstance(operand, str) else operand))
    return any(isinstance(each, types) and not isinstance(each, bool) for each in _candidates(found))


def _like(found: Sequence[Any], operand: str) -> bool:
    return any(isinstance(each, str) and re.search(operand, each) for each in _candidates(found))


_OPERATORS: dict[str, Callable[[Sequence[Any], Any], bool]] = {
    "$eq": _equals,
    "$ne": lambda found, operand: not _equals(found, operand),
    "$in": _is_in,
    "$nin": lambda found, operand: not _is_in(found, operand),
    "$gt": _compares(lambda one, other: one > other),
    "$gte": _compares(lambda one, other: one >= other),
    "$lt": _compares(lambda one, other: one < other),
    "$lte": _compares(lambda one, other: one <= other),
    "$exists": lambda found, operand: bool(found) == bool(operand),
    "$type": _has_type,
    "$regex": _like,
    "$not": lambda found, operand: not _meets(found, operand),
}


# -- expressions -----------------------------------------------------------------------------------------------------


def evaluate(expression: Any, document: Document) -> Any:
    """The value of an expression; null where it has none."""
    found = _valued(expression, document)
    return None if found is MISSING else found


def _valued(expression: Any, document: Document, this: Any = MISSING) -> Any:
    """`this` is the current item of `$filter`."""
    kind = type(expression)
    if kind is str:
        if expression[:1] != "$":
            return expression
        if expression[:2] == "$$":
            name, _, path = expression[2:].partition(".")
            found = {"ROOT": document, "this": this}[name]
            return lookup(found, path) if path else found
        return lookup(document, expression[1:])
    if kind is list:
        return [None if (item := _valued(each, document, this)) is MISSING else item for each in expression]
    if kind is dict:
        if len(expression) == 1:
            ((operator, operand),) = expression.items()
            if operator[:1] == "$":
                return _evaluate(operator, operand, document, this)
        found = {name: _valued(each, document, this) for name, each in expression.items()}
        return {name: each for name, each in found.items() if each is not MISSING}
    if isinstance(expression, Mapping):
        raise NotImplementedError(f"an expression of type {kind.__name__}")
    return expression


def _evaluate(operator: str, operand: Any, document: Document, this: Any) -> Any:
    match operator:  # these do not look at all their operands, or not at their values
        case "$literal":
            return value(operand)
        case "$cond":
            condition, then, otherwise = operand
            return _valued(then if _is_true(_valued(condition, document, this)) else otherwise, document, this)
        case "$ifNull":
            *wanted, otherwise = (_valued(each, document, this) for each in operand)
            return next((each for each in wanted if each is not MISSING and each is not None), otherwise)
        case "$filter":
            items = _valued(operand["input"], document, this)
            return [item for item in items if _is_true(_valued(operand["cond"], document, item))]
        case "$eq" | "$ne":
            one, other = (_valued(each, document, this) for each in operand)
            same = one is other if MISSING in (one, other) else equal(one, other)
            return same is (operator == "$eq")
        case "$type" if _valued(operand, document, this) is MISSING:
            return "missing"
        case "$mergeObjects":
            parts = (_valued(each, document, this) for each in operand)
            return {name: each for part in parts if part not in (None, MISSING) for name, each in part.items()}
    arguments = _valued(operand, document, this)
    if arguments is MISSING:
        arguments = None
    match operator:
        case "$and":
            return all(map(_is_true, arguments))
        case "$or":
            return any(map(_is_true, arguments))
        case "$in":
            item, array = arguments
            return any(equal(item, each) for each in array)
        case "$concatArrays":
            return [item for array in arguments for item in array]
        case "$bsonSize":
            return len(encode(arguments))
        case "$isArray":
            return isinstance(arguments[0] if isinstance(operand, list) else arguments, list)
        case "$size":
            return len(arguments)
        case "$slice":
            array, start, *count = arguments
            return array[start : start + count[0]] if count else (array[:start] if start >= 0 else array[start:])
        case "$strLenBytes":
            return len(arguments.encode())
        case "$type":
            return {1: "null", 2: "int", 3: "string", 4: "object", 5: "array", 8: "bool", 9: "date"}[_rank(arguments)]
        case "$lte":
            return sort_key(arguments[0]) <= sort_key(arguments[1])
        case "$gte":
            return sort_key(arguments[0]) >= sort_key(arguments[1])
    raise NotImplementedError(operator)


def _is_true(found: Any) -> bool:
    return found is not MISSING and found is not None and (found is not False) and found != 0


def project(document: Document, fields: Mapping[str, Any] | None) -> Document:
    if not fields:
        return document
    shown: Document = {}
    if fields.get("_id", 1) and "_id" in document:
        shown["_id"] = document["_id"]
    for name, wanted in fields.items():
        plain = type(wanted) is int or type(wanted) is bool
        is_slice = isinstance(wanted, dict) and "$slice" in wanted and type(wanted["$slice"]) is int
        if name == "_id" and plain:
            continue
        if plain and not wanted:
            raise NotImplementedError(f"projection {fields}")
        found = lookup(document, name) if plain or is_slice else _valued(wanted, document)
        if is_slice and isinstance(found, list):
            found = _evaluate("$slice", [{"$literal": found}, wanted["$slice"]], document, MISSING)
        _show(document, shown, name, found)
    return shown


def _show(document: Document, shown: Document, path: str, found: Any) -> None:
    """Stores a value at this path, and as many of the documents around it as exist."""
    *way, name = path.split(".")
    for step in way:
        inner = document.get(step)
        if not isinstance(inner, dict):
            if isinstance(inner, list):
                raise NotImplementedError(f"a part {path} of the documents in an array")
            return
        document, shown = inner, shown.setdefault(step, {})
    if found is not MISSING:
        shown[name] = found


def in_order(documents: Iterable[Document], order: Sequence[tuple[str, int]]) -> list[Document]:
    ordered = list(documents)
    if len(ordered) > 1:
        for path, direction in reversed(order):
            ordered.sort(key=lambda document: sort_key(lookup(document, path)), reverse=direction < 0)
    return ordered


# -- updates ---------------------------------------------------------------------------------------------------------


def updated(document: Document, update: Mapping[str, Any] | Sequence[Mapping[str, Any]], now: datetime) -> Document:
    """The document after this update; the old document stays unchanged."""
    if isinstance(update, list):
        for stage in update:
            document = _stage(document, stage)
        return document
    assert isinstance(update, Mapping)
    new = dict(document)
    for operator, changes in update.items():
        for path, operand in changes.items():
            place, name = new, path
            if "." in path:
                if operator in ("$unset", "$pull") and lookup(document, path) is MISSING:
                    continue
                place, name = _place(new, path)
            _change(place, name, operator, operand, now)
    return new


def _place(new: Document, path: str) -> tuple[Document, str]:
    """The document in which the last name of the path stands; all on the way there are copied."""
    *way, name = path.split(".")
    for step in way:
        inner = new.get(step, {})
        new[step] = dict(inner) if isinstance(inner, dict) else {}
        new = new[step]
    return new, name


def _stage(document: Document, stage: Mapping[str, Any]) -> Document:
    """A stage of an update that is a pipeline."""
    ((operator, operand),) = stage.items()
    if operator == "$replaceWith":
        return stored({"_id": document["_id"], **_valued(operand, document)})
    if operator != "$set":
        raise NotImplementedError(operator)
    new = dict(document)
    for path, expression in operand.items():
        place, name = _place(new, path)
        found = _valued(expression, document)
        if found is MISSING:
            place.pop(name, None)
        else:
            place[name] = value(found)
    return new


def _change(place: Document, name: str, operator: str, operand: Any, now: datetime) -> None:
    old = place.get(name, MISSING)
    match operator:
        case "$set":
            place[name] = value(operand)
        case "$unset":
            place.pop(name, None)
        case "$inc":
            place[name] = (0 if old is MISSING else old) + operand
        case "$max":
            if old is MISSING or sort_key(value(operand)) > sort_key(old):
                place[name] = value(operand)
        case "$min":
            if old is MISSING or sort_key(value(operand)) < sort_key(old):
                place[name] = value(operand)
        case "$push":
            several = type(operand) is dict and "$each" in operand
            items = [*([] if old is MISSING else old), *value(list(operand["$each"] if several else [operand]))]
            place[name] = items[operand["$slice"] :] if several and operand.get("$slice", 0) < 0 else items
        case "$addToSet":
            place[name] = [] if old is MISSING else list(old)
            for item in value(list(operand["$each"])):
                if not any(equal(item, other) for other in place[name]):
                    place[name].append(item)
        case "$pull":
            if old is not MISSING:
                place[name] = [item for item in old if not _pulled(item, operand)]
        case "$currentDate":
            place[name] = value(now)
        case _:
            raise NotImplementedError(operator)


def _pulled(item: Any, condition: Any) -> bool:
    if isinstance(condition, Mapping) and not _has_operators(condition):
        return isinstance(item, dict) and matches(item, condition)
    return _meets([item], condition)


def upserted(query: Mapping[str, Any]) -> Document:
    """The fields that an upsert takes from a query without a match."""
    plain = {
        name: condition
        for name, condition in query.items()
        if not name.startswith("$") and not _has_operators(condition)
    }
    return stored(plain)
