"""Documents that cannot be read (`Unreadable`), beside the values of those that can (`Parsed`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A document that cannot be read, and why."""

    collection: str
    id: str
    """Its `_id`, as people see it."""
    reason: str
    raw: bytes = field(default=b"", repr=False, compare=False)
    """The document itself, as it is stored."""

    def __str__(self) -> str:
        return f"document {self.id} of {self.collection} cannot be read: {self.reason}"


class Parsed(Sequence[T]):
    """The values of the documents that could be read, in order, and the documents that could not."""

    __slots__ = ("_values", "unreadable")

    def __init__(self, values: Iterable[T] = (), unreadable: Iterable[Unreadable] = ()) -> None:
        self._values = tuple(values)
        self.unreadable = tuple(unreadable)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: Any) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Parsed({list(self._values)!r}, unreadable={list(self.unreadable)!r})"
