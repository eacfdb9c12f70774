"""Documents as other programs insert them, and the leader that looks through them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bson import CodecOptions
from bson.binary import UuidRepresentation
from bson.raw_bson import RawBSONDocument

from recruiter.steps.adopt import Adoption, adopt
from recruiter.store.database import Store
from tests.samples import NOW

STANDARD: CodecOptions[dict[str, Any]] = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)


class Leader:
    """The only one who may adopt."""

    def __init__(self, store: Store) -> None:
        self.store = store
        assert store.leases.acquire(None, "me", {}) is not None

    def adopts(self, now: datetime = NOW) -> Adoption:
        return adopt(self.store, 1, "me", now)


def by_hand(store: Store, *documents: dict[str, Any] | bytes) -> None:
    """Inserts as any other program would: nothing of ours looks at it."""
    foreign = store.scheduled.collection.with_options(codec_options=STANDARD)
    foreign.insert_many(RawBSONDocument(each) if isinstance(each, bytes) else each for each in documents)
