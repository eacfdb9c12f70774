"""Once, ever, also for a task that has another name by now."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from recruiter import Recruiter
from recruiter.store.database import Store


@pytest.fixture
def before(target: str, store: Store) -> Iterator[Recruiter]:
    """A producer with the code of yesterday."""
    del store  # prepared
    with Recruiter(target) as recruiter:
        recruiter.task(name="resize")(lambda id: id)
        yield recruiter


@pytest.fixture
def after(target: str, store: Store) -> Iterator[Recruiter]:
    """A producer with the code of today."""
    del store
    with Recruiter(target) as recruiter:
        recruiter.task(name="image.resize", aliases=["resize", "older"])(lambda id: id)
        yield recruiter


def test_also_when_it_has_ended_and_is_forgotten(before: Recruiter, after: Recruiter, store: Store) -> None:
    old = before.create("resize", {"id": 7})
    before.run("resize")
    store.archived.collection.delete_many({})

    again = after.create("image.resize", {"id": 7})

    assert (again.created, again.id) == (False, old.id)
    assert store.scheduled.waiting() == []


def test_old_and_new_name_at_the_same_time_make_one_job(before: Recruiter, after: Recruiter, store: Store) -> None:
    calls = [(before, "resize"), (after, "image.resize")] * 10

    with ThreadPoolExecutor(20) as pool:
        handles = list(pool.map(lambda call: call[0].create(call[1], {"id": 1}), calls))

    (job,) = store.scheduled.waiting()
    assert sum(bool(handle.created) for handle in handles) == 1
    assert {handle.id for handle in handles} == {job.id}
