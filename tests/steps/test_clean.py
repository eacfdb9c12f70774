"""Clean: what ended long ago goes, the oldest first, a batch at a time; nothing else does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recruiter.steps import clean as clean_step
from recruiter.steps.clean import clean
from recruiter.store.codec import encode
from recruiter.store.database import Store
from tests.samples import NOW, a_job, done, insert, places

DAY = timedelta(days=1)


def archive(store: Store, *ages: timedelta) -> None:
    store.archived.collection.insert_many(
        {"_id": number, "done": True, "why": "done", "archived_at": NOW - age} for number, age in enumerate(ages)
    )


def left(store: Store) -> set[object]:
    return {document["_id"] for document in store.archived.collection.find()}


def test_what_is_older_goes_and_the_rest_stays(store: Store) -> None:
    archive(store, 5 * DAY + timedelta(milliseconds=1), 5 * DAY, 4 * DAY, 50 * DAY, -DAY)

    assert clean(store, NOW, keep_for=5 * DAY) == 2

    assert left(store) == {1, 2, 4}
    assert clean(store, NOW, keep_for=5 * DAY) == 0


def test_a_batch_at_a_time_the_oldest_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_step, "BATCH", 3)
    archive(store, *(number * DAY for number in range(10, 18)))

    assert clean(store, NOW, keep_for=DAY) == 3
    assert left(store) == {0, 1, 2, 3, 4}
    assert [clean(store, NOW, keep_for=DAY) for _ in range(3)] == [3, 2, 0]


def test_waiting_jobs_are_never_cleaned(store: Store) -> None:
    long_ago = NOW - 1000 * DAY
    job = a_job("old", created_at=long_ago, scheduled_at=long_ago)
    insert(store, job)

    assert clean(store, NOW, keep_for=DAY) == 0

    assert places(store, ["old"]) == {"old": "scheduled"}


def test_every_way_to_end_is_cleaned(store: Store) -> None:
    store.settlement.archive_new("done", done(a_job("done")))
    malformed = {"_id": "bad", "done": False, "why": "malformed", "archived_at": NOW, "original": {"x": 1}}
    store.settlement.archive_new("bad", encode(malformed))

    assert clean(store, NOW + 2 * DAY, keep_for=DAY) == 2

    assert left(store) == set()


def test_an_empty_archive(store: Store) -> None:
    assert clean(store, NOW, keep_for=DAY) == 0
