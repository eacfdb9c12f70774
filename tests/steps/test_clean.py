"""Clean: what ended long ago goes, the oldest first, a batch at a time; nothing else does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recruiter import Recruiter
from recruiter.steps import clean as clean_step
from recruiter.steps.clean import clean
from recruiter.store.database import Store
from tests.samples import NOW

DAY = timedelta(days=1)


def archive(store: Store, *ages: timedelta) -> None:
    store.archived.collection.insert_many(
        {"_id": number, "done": True, "why": "done", "archived_at": NOW - age} for number, age in enumerate(ages)
    )


def left(store: Store) -> set[object]:
    return {document["_id"] for document in store.archived.collection.find()}


def test_a_batch_at_a_time_the_oldest_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_step, "MAX_REMOVED_PER_BATCH", 3)
    archive(store, *(number * DAY for number in range(10, 18)))

    assert clean(store, NOW, keep_for=DAY) == 3
    assert left(store) == {0, 1, 2, 3, 4}
    assert [clean(store, NOW, keep_for=DAY) for _ in range(3)] == [3, 2, 0]


def ended(store: Store, id: str, age: timedelta, *, succeeded: bool, keep_failed: float | None = None) -> None:
    own = {} if keep_failed is None else {"keep_failed": keep_failed}
    why = "done" if succeeded else "tried-too-many-times"
    store.archived.collection.insert_one({"_id": id, "done": succeeded, "why": why, "archived_at": NOW - age, **own})


def test_a_job_may_say_how_long_it_is_kept_if_it_fails(store: Store) -> None:
    day = DAY.total_seconds()
    for days in (1, 9, 40):
        for keep in (2, 20, 365):
            ended(store, f"{days} of {keep}", days * DAY, succeeded=False, keep_failed=keep * day)
    ended(store, "success", 9 * DAY, succeeded=True, keep_failed=20 * day)
    ended(store, "for ever", 9 * DAY, succeeded=False, keep_failed=1e300)

    clean(store, NOW, 5 * DAY, DAY / 2)

    kept = {f"{days} of {keep}" for days in (1, 9, 40) for keep in (2, 20, 365) if days < keep}
    assert left(store) == {*kept, "for ever"}


def test_a_task_says_it_for_its_jobs(store: Store, target: str) -> None:
    with Recruiter(target) as recruiter:
        task = recruiter.task(name="kept", keep_failed="30 days")(lambda: 1 / 0)
        job = task.enqueue()
        recruiter.run("kept")

        ended = store.archived.collection.find_one({"_id": job.id})
        assert ended is not None
        assert ended["keep_failed"] == 30 * DAY.total_seconds()
        assert task.job().keep_failed("1 day").build().keep_failed == DAY.total_seconds()


def test_the_batch_counts_all_of_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_step, "MAX_REMOVED_PER_BATCH", 3)
    for number in range(4):
        ended(store, f"s{number}", 9 * DAY, succeeded=True)
        ended(store, f"f{number}", 9 * DAY, succeeded=False)
        ended(store, f"k{number}", 9 * DAY, succeeded=False, keep_failed=60 + number)

    assert [clean(store, NOW, DAY) for _ in range(5)] == [3, 3, 3, 3, 0]
