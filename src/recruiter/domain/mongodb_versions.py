"""Versions of MongoDB: the oldest that is supported, and those with a hole for everybody who can reach the port.

Only holes that need no password are listed: users and roles do not protect from these. The versions are those of
MongoDB's own CVE records, as of November 2026; newer holes are at https://www.mongodb.com/resources/products/alerts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Version = tuple[int, int, int]

OLDEST: Version = (6, 0, 0)


@dataclass(frozen=True, slots=True)
class Hole:
    cve: str
    told: str
    """What an attacker without a password can do."""
    fixed: Mapping[tuple[int, int], int]
    """In which patch of which series. Series that are not named are not affected, or were never mended."""

    def is_in(self, version: Version) -> bool:
        patch = self.fixed.get(version[:2])
        return patch is not None and version[2] < patch

    def mended_in(self, version: Version) -> str:
        major, minor = version[:2]
        return f"{major}.{minor}.{self.fixed[(major, minor)]}"


HOLES = (
    Hole(
        "CVE-2025-14847",
        "read the server's memory, passwords and data in it (MongoBleed, used in the wild)",
        {(6, 0): 27, (7, 0): 28, (8, 0): 17, (8, 2): 3},
    ),
    Hole("CVE-2025-6709", "crash the server", {(7, 0): 17, (8, 0): 5}),  # in 6.0 only after logging in
    Hole("CVE-2026-25611", "exhaust the server's memory and crash it", {(7, 0): 29, (8, 0): 18, (8, 2): 4}),
    Hole("CVE-2026-9740", "crash the server", {(7, 0): 35, (8, 0): 24, (8, 2): 10, (8, 3): 3}),
)


def parse(text: str) -> Version | None:
    """From "7.0.14" or "8.0.0-rc1"; None for what is no version."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def holes_in(version: Version) -> list[Hole]:
    return [hole for hole in HOLES if hole.is_in(version)]


def safe_version(version: Version) -> str:
    """The first of its series without any of the holes."""
    major, minor = version[:2]
    patch = max(hole.fixed[(major, minor)] for hole in holes_in(version))
    return f"{major}.{minor}.{patch}"
