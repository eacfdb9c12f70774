"""These tests share one prepared database."""

from __future__ import annotations

from tests.prepared import prepared, store, target

__all__ = ["prepared", "store", "target"]
