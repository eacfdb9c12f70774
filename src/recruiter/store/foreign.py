"""Documents of other programs: read, and never written."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from recruiter.store.database import Store
from recruiter.store.errors import store_call
from recruiter.store.target import Target


@store_call
def documents(target: Target, collection: str) -> list[Mapping[str, Any]]:
    """Every document of this collection, the oldest id first."""
    with closing(Store(target)) as store:
        return list(store.client[target.database][collection].find({}, sort=[("_id", 1)]))
