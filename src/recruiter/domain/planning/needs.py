"""Needs and resources: the amounts of named resources that a job asks for, and that a host has.

`proc` is a number of processors, `mem` an amount of memory, kept in bytes; the users agree on the meaning of any other
name (`gpu`, `licence:matlab`). Amounts are kept as whole thousandths, so sums are exact: ten jobs of 0.1 processors
fill one processor, and nothing is ever left over or missing because of rounding. Finer fractions are rounded to the
nearest thousandth, but never to nothing.

Memory may be written as text. `MB` is a million bytes and `MiB` is 1024 * 1024, as the standards say (and as pydantic's
ByteSize reads them), in small or capital letters; `2G` is `2GB`, and `2Gi` is `2GiB`. Part of a byte counts as one.

A plain number of memory is in GiB if it is below 1,048,576, as people write it (`mem: 4`), and in bytes otherwise, as
documents have it. No job needs less than 1 MiB and no host has 1,048,576 GiB, so no number has two meanings. Less than
1 MiB counts as 1 MiB: every amount of bytes can be read again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from recruiter.domain.names import check_name
from recruiter.domain.text import said_by
from recruiter.errors import InvalidJob

AmountLike = int | float | str

MAX_RESOURCES = 16
"""Maximum number of kinds that a job needs or a host has: the needs of a job are part of an index key."""
MAX_AMOUNT = 2**60
"""An exbibyte, and more of anything than there is."""
MIN_MEMORY_BYTES = 2**20
THOUSAND = 1000

_NUMBER = re.compile(r"[0-9]{1,25}(?:\.[0-9]{1,25})?")
_BYTES = re.compile(r"([0-9]{1,25}(?:\.[0-9]{1,25})?) ?((?:([kmgtpe])(i?))?b?)", re.IGNORECASE)
_PREFIXES = " kmgtpe"


@dataclass(frozen=True, slots=True)
class Needs:
    """Amounts of resources: sorted by name, none of them zero, so that two that mean the same are equal.

    Made by `Needs.of(proc=2, mem="2GiB")`, read back from its text by `Needs.parse`.
    """

    thousandths: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, amounts: Mapping[str, AmountLike | None] | None = None, /, **named: AmountLike | None) -> Needs:
        """From a mapping, from keywords or from both; None and zero ask for nothing. Raises InvalidJob."""
        given = {} if amounts is None else amounts
        if not isinstance(given, Mapping):
            raise InvalidJob(f"needs are a mapping such as {{'proc': 2}}, not {said_by(amounts, repr, 100)}")
        if twice := given.keys() & named.keys():
            raise InvalidJob(f"{min(map(str, twice))} is given twice; write it once")
        return cls._sorted((_checked(name), amount_of(name, value)) for name, value in {**given, **named}.items())

    @classmethod
    def parse(cls, text: str) -> Needs:
        """From `mem=4294967296,proc=2`, or from a string that a person writes, as in "proc=2, mem=4GiB"."""
        amounts: dict[str, AmountLike | None] = {}
        for part in text.split(",", MAX_RESOURCES) if text.strip() else ():
            name, equals, amount = (piece.strip() for piece in part.partition("="))
            if not equals:
                raise InvalidJob(f"{said_by(text, repr, 100)} is not a list of needs; write 'proc=2,mem=4GiB'")
            if name in amounts:
                raise InvalidJob(f"{name} is given twice in {said_by(text, repr, 100)}; write it once")
            amounts[name] = amount
        return cls.of(amounts)

    @classmethod
    def _sorted(cls, amounts: Iterable[tuple[str, int]]) -> Needs:
        kept = sorted((name, amount) for name, amount in amounts if amount > 0)
        if len(kept) > MAX_RESOURCES:
            raise InvalidJob(f"at most {MAX_RESOURCES} kinds of resources, not {len(kept)}")
        return cls(tuple(kept))

    def __str__(self) -> str:
        """The one way to write it: sorted, and each number as short as it can be."""
        return ",".join(f"{name}={_number(amount)}" for name, amount in self.thousandths)

    def __bool__(self) -> bool:
        return bool(self.thousandths)

    def __add__(self, other: Needs) -> Needs:
        total = dict(self.thousandths)
        for name, amount in other.thousandths:
            total[name] = total.get(name, 0) + amount
        return Needs(tuple(sorted(total.items())))

    def __sub__(self, other: Needs) -> Needs:
        """The remaining amounts, never below zero."""
        taken = dict(other.thousandths)
        left = ((name, amount - taken.get(name, 0)) for name, amount in self.thousandths)
        return Needs(tuple((name, amount) for name, amount in left if amount > 0))

    def fits(self, room: Needs) -> bool:
        """Whether there is room for all of it; of what `room` does not name there is none."""
        there = dict(room.thousandths)
        return all(amount <= there.get(name, 0) for name, amount in self.thousandths)

    def amounts(self) -> dict[str, int | float]:
        """By name, in processors, bytes and whatever the others count."""
        return {
            name: amount / THOUSAND if amount % THOUSAND else amount // THOUSAND for name, amount in self.thousandths
        }

    def described(self) -> str:
        """For people: "4 GiB of mem and 2 of proc"."""
        return " and ".join(f"{said(name, amount)[0]} of {name}" for name, amount in self.thousandths) or "nothing"


NOTHING = Needs()


def amount_of(resource: str, value: object) -> int:
    """The thousandths of this resource. Raises InvalidJob for a value that is not an amount."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _refused(resource, value)
    if isinstance(value, float) and not math.isfinite(value):
        raise _refused(resource, value)
    amount = _parse(resource, value) if isinstance(value, str) else _unit(resource, Fraction(value))
    if amount < 0:
        raise InvalidJob(f"{resource} cannot be negative: {said_by(value, repr, 100)}")
    if amount > MAX_AMOUNT:
        raise InvalidJob(f"{said_by(value, repr, 100)} of {resource} is more than there can be")
    if resource == "mem":
        return max(MIN_MEMORY_BYTES, math.ceil(amount)) * THOUSAND if amount else 0
    return max(1, round(amount * THOUSAND)) if amount else 0


def said(resource: str, *thousandths: int) -> list[str]:
    """Amounts for people: "1.5 GB", "4 GiB", "2". All in the units of the first, so that they can be compared."""
    if resource != "mem":
        return [_number(each) for each in thousandths]
    sizes = [each // THOUSAND for each in thousandths]
    binary = sizes[0] % 2**20 == 0 and sizes[0] % 10**6 != 0
    return [_size(size, binary) for size in sizes]


def _size(size: int, binary: bool) -> str:
    base, unit = (1024, "iB") if binary else (1000, "B")
    power = 0
    while size >= base ** (power + 1) and power < len(_PREFIXES) - 1:
        power += 1
    return f"{size / base**power:.4g} {_PREFIXES[power].upper()}{unit}" if power else f"{size} bytes"


def _checked(name: object) -> str:
    checked = check_name("a resource", name)
    if "=" in checked or "," in checked:
        raise InvalidJob(f"the name of a resource has no '=' and no ',': {checked!r}")
    return checked


def _parse(resource: str, text: str) -> Fraction:
    """The amount in a string: bytes of memory, or a number of any other resource."""
    if resource == "mem":
        found = _BYTES.fullmatch(text.strip())
        if not found:
            raise _refused(resource, text)
        number, unit, prefix, binary = found.groups()
        if not unit:
            return _unit(resource, Fraction(number))
        base = 1024 if binary else 1000
        return Fraction(number) * Fraction(base ** _PREFIXES.index((prefix or " ").lower()))
    if not _NUMBER.fullmatch(text.strip()):
        raise _refused(resource, text)
    return Fraction(text.strip())


def _unit(resource: str, number: Fraction) -> Fraction:
    """A plain number in the unit of the resource."""
    return number * 2**30 if resource == "mem" and number < MIN_MEMORY_BYTES else number


def _refused(resource: str, value: object) -> InvalidJob:
    wanted = "a number of GiB or a text such as '2GiB'" if resource == "mem" else "a number"
    return InvalidJob(f"{said_by(value, repr, 100)} is not an amount of {resource}; write {wanted}")


def _number(thousandths: int) -> str:
    whole, rest = divmod(thousandths, THOUSAND)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)
