"""Search: what a filter means, all of it and nothing else, in order, page by page."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from bson import ObjectId
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recruiter.domain.job import Job, JobId
from recruiter.domain.search.conditions import STATES
from recruiter.domain.search.filter import JobFilter
from recruiter.domain.state import State
from recruiter.embedded import EmbeddedServer
from recruiter.errors import InvalidFilter
from recruiter.store.codec import encode
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.store.search.search import MINIMAL, JobSearch
from tests.crowd import EACH_WORD, ERRORS, MINUTE, Everything, fill
from tests.depth import examples
from tests.samples import NOW


@pytest.fixture(scope="module")
def crowd(server: EmbeddedServer) -> Iterator[Store]:
    """A store with a job of every kind; the tests here only look."""
    name = f"test_{ObjectId()}"
    store = Store(Target.parse(server.uri.replace("/?", f"/{name}?")))
    store.prepare()
    fill(store)
    yield store
    store.client.drop_database(name)
    store.close()


@pytest.fixture(scope="module")
def everything(crowd: Store) -> Everything:
    return Everything(crowd)


HARDSHIPS: dict[str, dict[str, int]] = {
    "as it is": {},
    "windows of a few": {"search.WINDOW": 7, "search.LOOKS_AT": 15},
    "merges of a few": {"indexes.MOST_MERGED": 4, "search.WINDOW": 30},
    "too many lanes": {"indexes.MOST_LANES": 1, "indexes.MOST_QUERIES": 0, "search.WINDOW": 20},
}


EACH_WITH_ONE = [
    pytest.param(words, list(HARDSHIPS)[number % len(HARDSHIPS)], id=str(words))
    for number, words in enumerate(EACH_WORD)
]
"""Every word with one of the hardships in turn; all of them together are for the examples that chance makes."""


@pytest.fixture(params=HARDSHIPS)
def hardship(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With so few jobs nothing would be asked twice; so the limits are lower."""
    for name, value in HARDSHIPS[request.param].items():
        monkeypatch.setattr(f"recruiter.store.search.{name}", value)
    return str(request.param)


def all_pages(store: Store, filter: JobFilter, limit: int, read: Any = JobSearch.ids, **more: Any) -> list[Any]:
    found: list[Any] = []
    after: str | None = None
    for _ in range(1_000):
        page = read(store.search, filter, NOW, limit=limit, after=after, **more)
        assert len(page) <= limit
        found += page.jobs
        after = page.next
        if after is None:
            return found
    raise AssertionError("it never ends")


def same(found: list[JobId], expected: set[JobId]) -> None:
    assert len(found) == len({(type(id), id) for id in found}), "one was seen twice"
    assert set(found) == expected


@pytest.mark.parametrize(("words", "hardship"), EACH_WITH_ONE, indirect=["hardship"])
def test_what_a_filter_means_is_found(
    crowd: Store, everything: Everything, hardship: str, words: dict[str, Any]
) -> None:
    filter = JobFilter(**words)

    found = all_pages(crowd, filter, 40)

    same(found, everything.meant_by(filter, NOW))
    assert crowd.search.count(filter, NOW, None) == (len(found), True)


_words = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sets(st.sampled_from(STATES), min_size=1, max_size=3),
        "task": st.sets(st.sampled_from(["send", "resize", "charge", "nobody"]), min_size=1),
        "group": st.sets(st.sampled_from(["mail", "mail2", "shop"]), min_size=1),
        "tag": st.sets(st.sampled_from(["eu", "new"]), min_size=1),
        "owner": st.sampled_from(["ada", "bob"]),
        "urn": st.just("report:1"),
        "limited_by": st.sampled_from(["customer:1", "customer:3"]),
        "worker": st.sampled_from(["w1", "w2", "w7"]),
        "error": st.sampled_from([*ERRORS, "Refused"]),
        "args": st.fixed_dictionaries({"customer.id": st.integers(0, 3)}),
        "since": st.integers(0, 1_000),
        "created_until": st.integers(0, 300),
        "attempts": st.integers(0, 4),
        "slow": st.integers(0, 8),
        "delayed": st.integers(0, 8),
    },
)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=_words, limit=st.integers(5, 60))
def test_words_together_mean_what_each_means(
    crowd: Store, everything: Everything, hardship: str, words: dict[str, Any], limit: int
) -> None:
    try:
        filter = JobFilter(**words)
    except InvalidFilter:
        return

    same(all_pages(crowd, filter, limit), everything.meant_by(filter, NOW))


class TestOrder:
    def test_those_that_run_then_those_that_wait_then_those_that_have_ended(self, crowd: Store) -> None:
        found: list[Job] = all_pages(crowd, JobFilter(), 50, JobSearch.jobs, fields=MINIMAL)

        def section(job: Job) -> int:
            if job.state is State.RUNNING:
                return 0
            if job.state is State.WAITING:
                return 3 if job.cancelling else 2 if job.scheduled_at > NOW else 1
            return 4

        assert [section(job) for job in found] == sorted(section(job) for job in found)
        assert {section(job) for job in found} == {0, 1, 2, 3, 4}
        queued = [job for job in found if section(job) == 1]
        assert [(-job.priority, job.scheduled_at) for job in queued] == sorted(
            (-job.priority, job.scheduled_at) for job in queued
        )
        ended = [job.ended_at for job in found if job.ended_at]
        assert ended == sorted(ended, reverse=True)
        running = [job.locked_at for job in found if job.state is State.RUNNING]
        known = [moment for moment in running if moment is not None]
        assert running == [*sorted(known), *[None] * (len(running) - len(known))]

    def test_it_stays_as_jobs_come_and_go(self, store: Store) -> None:
        """Given two pages of three, when jobs end and others come in between, then nobody is missed or seen twice."""
        fill(store, waiting=40, ended=40, seed=5)
        filter = JobFilter(state=["succeeded", "failed", "lost", "cancelled"])
        before = all_pages(store, filter, 1_000)
        first = store.search.ids(filter, NOW, limit=20)

        store.archived.collection.delete_many({"_id": {"$in": [*first.jobs[-5:], before[25]]}})
        store.archived.collection.insert_one(
            {"_id": "new", "done": True, "why": "done", "archived_at": NOW + MINUTE, "group": "mail", "task": "send"}
        )
        rest = store.search.ids(filter, NOW, limit=1_000, after=first.next)

        assert [*rest.jobs] == [id for id in before[20:] if id != before[25]]


class TestCounting:
    def test_it_stops_where_it_is_told_to(self, crowd: Store) -> None:
        succeeded = JobFilter(state="succeeded")
        number = crowd.search.count(succeeded, NOW, None).number

        assert crowd.search.count(succeeded, NOW, 10) == (10, False)
        assert crowd.search.count(succeeded, NOW, number + 1) == (number, True)
        assert str(crowd.search.count(succeeded, NOW, 10)) == "at least 10"

    def test_what_no_index_answers_is_looked_for_and_no_further(
        self, crowd: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("recruiter.store.search.search.WINDOW", 20)
        monkeypatch.setattr("recruiter.store.search.search.LOOKS_AT", 40)
        filter = JobFilter(args={"customer.id": 2}, state="succeeded")

        some, all_ = crowd.search.count(filter, NOW, 1_000), crowd.search.count(filter, NOW, None)

        assert not some.exact
        assert 0 < some.number < all_.number
        assert all_.exact


class TestCursors:
    @pytest.mark.parametrize(
        ("section", "position"),
        [("nowhere", None), ("ended", [1]), ("ended", [{"$gt": 1}, 1]), ("ended", 5), ("running", [1, 2]), (7, None)],
    )
    def test_one_that_was_made_up_is_refused(self, crowd: Store, section: Any, position: Any) -> None:
        document = {"s": section, "p": position, "t": NOW, "f": JobFilter().fingerprint}
        text = base64.urlsafe_b64encode(encode(document)).decode().rstrip("=")

        with pytest.raises(InvalidFilter, match="cursor"):
            crowd.search.ids(JobFilter(), NOW, limit=5, after=text)


def test_a_job_that_ends_while_the_page_is_read_is_on_it_once(store: Store) -> None:
    """Given a job that is read among the waiting and, when it has ended meanwhile, among the ended."""
    fill(store, waiting=30, ended=3)
    one = store.archived.collection.find_one({}, {"_id": 1})
    assert one is not None
    waits = store.scheduled.collection.find_one({"lane": {"$exists": True}, "cancelled": {"$exists": False}})
    assert waits is not None
    store.scheduled.collection.insert_one({**waits, "_id": one["_id"]})

    page = store.search.jobs(JobFilter(), NOW, limit=50, fields=MINIMAL)

    listed = [job for job in page.jobs if job.id == one["_id"]]
    assert len(listed) == 1
    assert listed[0].state not in (State.WAITING, State.RUNNING)
