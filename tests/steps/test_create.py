"""Create: the same task with the same data is one job, ever; and an id of one's own is used once while it is known."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from recruiter import ArchivedJob, JobHandle, Recruiter, Task
from recruiter.errors import JobExists, JobTooLarge
from recruiter.steps.settle import settle
from recruiter.store.codec import LARGEST_JOB
from recruiter.store.collections.creations import content_id
from recruiter.store.database import Store
from tests.samples import a_job, done, give, hold, places

UTC_NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def note(data: Any) -> Any:
    return data


@pytest.fixture
def notes(recruiter: Recruiter) -> Task[[Any], Any, Any]:
    return recruiter.task(note)


class TestTheSame:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
            ({"x": {"a": [{"b": 1, "c": 2}], "d": 3}}, {"x": {"d": 3, "a": [{"c": 2, "b": 1}]}}),
            pytest.param({"z", "y", "x"}, {"x", "y", "z"}, id="set"),
            pytest.param({1, 2.5, "three", None}, {None, "three", 2.5, 1}, id="mixed set"),
            pytest.param(frozenset({"a", frozenset({1, 2})}), frozenset({frozenset({2, 1}), "a"}), id="set in a set"),
            (UTC_NOON, datetime(2030, 1, 1, 12, tzinfo=ZoneInfo("UTC"))),
            (UTC_NOON, datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(0), "UTC"))),
            ({"$ref": 1, "a": 2}, {"a": 2, "$ref": 1}),
            (b"bytes", bytearray(b"bytes")),
            ([], []),
        ],
        ids=repr,
    )
    def test_equal_data_makes_one_job(self, notes: Task[[Any], Any, Any], store: Store, one: Any, other: Any) -> None:
        first, second = notes.create(one), notes.create(other)

        assert first.id == second.id
        assert (first.created, second.created) == (True, False)
        assert store.scheduled.collection.count_documents({}) == 1


def test_a_job_of_an_earlier_release_is_known(recruiter: Recruiter, notes: Task[[Any], Any, Any], store: Store) -> None:
    """Its id told floats from integers."""
    former = content_id("note", {"data": 2.0}, exact_numbers=True)
    assert recruiter.create("note", {"data": 2.0}, id=former).created

    again = notes.create(2.0)

    assert (again.created, again.id) == (False, former)
    assert store.scheduled.collection.count_documents({}) == 1


class TestOnceEver:
    def test_when_the_archive_has_forgotten_it(self, notes: Task[[Any], Any, Any], store: Store) -> None:
        first = notes.create(1)
        archive(store, first)
        store.archived.collection.delete_many({})
        assert places(store, [first.id]) == {first.id: "nowhere"}

        assert not notes.create(1).created

        assert places(store, [first.id]) == {first.id: "nowhere"}


class TestAnIdOfOnesOwn:
    def test_one_that_is_archived_in_the_same_moment_is_never_in_both_places(
        self, notes: Task[[Any], Any, Any], store: Store
    ) -> None:
        """Given jobs that end while somebody makes others with their ids, then nobody succeeds and nothing is torn."""
        jobs = [a_job(f"job{number}", task="note", args={"data": 1}) for number in range(25)]
        hold(store, *jobs)
        together = threading.Barrier(2, timeout=20)

        def end_them() -> None:
            for job in jobs:
                together.wait()
                settle(store, "w1", [(job.id, done(job))], {})

        def reuse_them() -> list[str]:
            refused = []
            for job in jobs:
                together.wait()
                try:
                    notes.job(2).with_id(job.id).in_background().execute()
                except JobExists as error:
                    refused.append(str(error))
            return refused

        with ThreadPoolExecutor(2) as threads:
            ending, reusing = threads.submit(end_them), threads.submit(reuse_them)
            ending.result()
            assert len(reusing.result()) == len(jobs)

        ids = [job.id for job in jobs]
        assert places(store, ids) == dict.fromkeys(ids, "archived")

    @pytest.mark.parametrize(
        "first_is_archived", [False, True], ids=["while the first waits", "when the first has ended"]
    )
    def test_an_optimistic_job_with_an_id_in_use_is_refused_before_it_runs(
        self, recruiter: Recruiter, store: Store, first_is_archived: bool
    ) -> None:
        ran: list[int] = []
        task = recruiter.task(name="run")(lambda number: ran.append(number))
        first = task.job(1).with_id("x").in_background().execute()
        if first_is_archived:
            archive(store, first)

        try:
            with pytest.raises(JobExists):
                task.job(2).with_id("x").here().execute()
        finally:
            assert (ran, places(store, ["x"])["x"] == "both") == ([], False)


class TestRefused:
    @pytest.mark.parametrize("with_id", [False, True])
    def test_a_job_that_is_too_large_is_refused(
        self, notes: Task[[Any], Any, Any], store: Store, with_id: bool
    ) -> None:
        job = notes.job("x" * LARGEST_JOB)

        with pytest.raises(JobTooLarge, match=r"'note' has 15,\d{3},\d{3} bytes; at most 15,728,640"):
            (job.with_id("big") if with_id else job).create()

        assert stored_ids(store) == ([], [])


def archive(store: Store, handle: JobHandle[Any], result: Any = 1) -> None:
    """What a worker does when the job has ended."""
    job = store.scheduled.get(handle.id)
    assert job is not None
    worker = give(store, job.id)
    settle(store, worker, [(job.id, done(job, worker, result))], {})
    assert isinstance(store.archived.get(job.id), ArchivedJob)


def stored_ids(store: Store) -> tuple[list[Any], list[Any]]:
    """The ids of jobs, and those that are remembered for good."""
    return [d["_id"] for d in store.scheduled.collection.find()], [d["_id"] for d in store.creations.find()]


@pytest.fixture
def before(target: str, store: Store) -> Iterator[Recruiter]:
    """A producer with the code of yesterday."""
    with Recruiter(target) as recruiter:
        recruiter.task(name="resize")(lambda id: id)
        yield recruiter


@pytest.fixture
def after(target: str, store: Store) -> Iterator[Recruiter]:
    """A producer with the code of today."""
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
