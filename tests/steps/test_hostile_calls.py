"""Whatever is said to a public call that talks to MongoDB, what cannot be is refused in our own words."""

from __future__ import annotations

from tests.hostile_calls import TALKING, escaping, nowhere


def test_every_hostile_value_is_refused_with_an_error_of_ours(target: str) -> None:
    nowhere.point_at(target)
    nowhere.patience = 30.0
    try:
        assert escaping(sorted(TALKING)) == []
    finally:
        nowhere.close()
        nowhere.point_at(None)
