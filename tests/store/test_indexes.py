"""No hot query scans a collection, sorts in memory or reads jobs that it does not want.

The commands are the ones the store really sends, and the plans are the server's own (`explain`, executionStats).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import cycle
from typing import Any

import pytest
from bson import ObjectId

from recruiter.domain.job import Job
from recruiter.domain.search.filter import JobFilter
from recruiter.embedded import EmbeddedServer
from recruiter.steps.cancel import cancel_some
from recruiter.steps.clean import clean, remove_some
from recruiter.steps.recover import recover_some
from recruiter.store.codec import decode, encode_job
from recruiter.store.database import Store
from recruiter.store.outcomes import OutcomeBatch
from tests.commands import Command, Recorder, explain, recorded, stage_names, statistics
from tests.crowd import EACH_WORD, fill
from tests.samples import NOW, a_job, beat, done, insert, on_the_roster, to_retry

HOUR = timedelta(hours=1)
LANES = ["mail/add", "mail/sub", "images/add"]
MANY_LANES = [f"group{number}/add" for number in range(150)]
DUE_IN_A_LANE, POSTPONED, EXCLUDED, IN_MANY, ARCHIVED = 800, 5_000, 5_000, 4, 3_000


def _jobs() -> Iterator[Job]:
    priorities = cycle([0, 5, -3, 10])
    for lane in LANES:
        group, task = lane.split("/")
        for number in range(DUE_IN_A_LANE):
            at = NOW - timedelta(seconds=number)
            yield a_job(group=group, task=task, priority=next(priorities), scheduled_at=at)
        for number in range(POSTPONED // len(LANES)):
            at = NOW + HOUR + timedelta(seconds=number)
            yield a_job(group=group, task=task, priority=next(priorities), scheduled_at=at)
    for _ in range(EXCLUDED):
        yield a_job(group="paused", task="add", priority=next(priorities), scheduled_at=NOW - HOUR)
    for lane in MANY_LANES:
        for number in range(IN_MANY):
            at = NOW - timedelta(seconds=number)
            yield a_job(group=lane.split("/")[0], priority=next(priorities), scheduled_at=at)


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def full(server: EmbeddedServer, recorder: Recorder) -> Iterator[Store]:
    """A store with thousands of jobs: due, postponed, in a lane nobody serves, in many lanes, ended, by hand."""
    name = f"test_{ObjectId()}"
    store = recorded(server.uri.replace("/?", f"/{name}?"), recorder)
    store.prepare()
    store.scheduled.collection.insert_many(encode_job(job) for job in _jobs())
    store.scheduled.collection.insert_many({"task": "add", "args": {"a": number}} for number in range(300))
    flag = {"cancel": {"reason": None}, "lane": "/cancelled"}
    ids = [d["_id"] for d in store.scheduled.collection.find({"lane": "mail/add"}, {"_id": 1}).limit(40)]
    store.scheduled.collection.update_many({"_id": {"$in": ids}}, {"$set": flag})
    store.archived.collection.insert_many(
        {"_id": number, "done": True, "why": "done", "archived_at": NOW + timedelta(seconds=number)}
        for number in range(ARCHIVED)
    )
    for number in range(5):
        on_the_roster(store, f"w{number}")
    yield store
    store.client.drop_database(name)
    store.close()


@pytest.fixture
def plan(full: Store, recorder: Recorder) -> Callable[[Callable[[], Any], str], list[Command]]:
    """Runs a call, and explains each command of one name that it sent."""

    def plan(call: Callable[[], Any], name: str) -> list[Command]:
        with recorder.only_these():
            call()
            sent = recorder.named(name)
        assert sent, f"{name} was not sent, but {[next(iter(command)) for command in recorder.commands]}"
        return [explained for command in sent for explained in explain(full, command)]

    return plan


Plan = Callable[[Callable[[], Any], str], list[Command]]


def _uses_an_index(explained: Command) -> None:
    names = stage_names(explained)
    assert names & {"IXSCAN", "IDHACK", "DISTINCT_SCAN", "COUNT_SCAN"}, names
    assert not names & {"COLLSCAN", "SORT", "AND_HASH", "AND_SORTED"}, names


def test_the_lanes_are_found_by_one_seek_each(full: Store, plan: Plan) -> None:
    """Given thousands of jobs, when the leader asks which lanes there are, then it jumps from lane to lane."""
    lanes = full.due_jobs.lanes()

    (explained,) = plan(full.due_jobs.lanes, "aggregate")

    assert stage_names(explained) >= {"DISTINCT_SCAN"}
    _uses_an_index(explained)
    keys, documents, _ = statistics(explained)
    assert len(lanes) == len(LANES) + len(MANY_LANES) + 2
    assert keys <= len(lanes) + 1
    assert documents == 0


@pytest.mark.parametrize("limit", [1, 50, 400])
def test_due_reads_what_it_returns(full: Store, plan: Plan, limit: int) -> None:
    """Given 5,000 postponed jobs and 5,000 of another lane, when due jobs are read, then only these are."""
    found = full.due_jobs.due(LANES, NOW, limit, set())

    (explained,) = plan(lambda: full.due_jobs.due(LANES, NOW, limit, set()), "find")

    _uses_an_index(explained)
    keys, documents, returned = statistics(explained)
    assert returned == len(found) == limit
    # a merge holds one key of each lane in hand, and each of four priorities may cost a seek past its postponed jobs
    assert keys <= limit + 8 * len(LANES)
    assert documents == 0, "the index alone answers"


def test_due_passes_held_jobs_in_the_index(full: Store, plan: Plan) -> None:
    held = set(full.due_jobs.due(LANES, NOW, 300, set()))

    (explained,) = plan(lambda: full.due_jobs.due(LANES, NOW, 50, held), "find")

    _uses_an_index(explained)
    keys, documents, returned = statistics(explained)
    assert returned == 50
    assert keys <= 50 + len(held) + 8 * len(LANES)
    assert documents == 0


def test_more_than_a_hundred_lanes_are_still_merged_not_sorted(full: Store, plan: Plan) -> None:
    """Given 150 lanes, when due jobs of all are read, then each query merges sorted scans and reads little."""
    limit = 50

    plans = plan(lambda: full.due_jobs.due(MANY_LANES, NOW, limit, set()), "find")

    assert len(plans) == 2
    for explained in plans:
        _uses_an_index(explained)
        assert "SORT_MERGE" in stage_names(explained)
        keys, documents, _ = statistics(explained)
        assert keys <= limit + 3 * 100
        assert documents <= limit
    found = full.due_jobs.due(MANY_LANES, NOW, limit, set())
    priorities = [document["priority"] for document in full.scheduled.collection.find({"_id": {"$in": list(found)}})]
    assert sorted(priorities) == [10] * limit
    assert len(set(found)) == limit


def test_the_next_of_each_lane_reads_what_it_returns(full: Store, plan: Plan) -> None:
    """Given a pile in one lane, when a few of each lane are asked for, then the pile hides nobody and is not read."""
    lanes = {"paused/add": 3, **dict.fromkeys(LANES, 2), **dict.fromkeys(MANY_LANES, 1)}
    held = set(full.due_jobs.due(LANES, NOW, 5, set()))

    found = full.due_jobs.candidates_of_each(lanes, NOW, held)

    assert Counter(str(candidate.lane) for candidate in found) == lanes
    assert held.isdisjoint(candidate.id for candidate in found)
    heads = [full.due_jobs.due([lane], NOW, count, held) for lane, count in lanes.items()]
    assert {candidate.id for candidate in found} == {id for ids in heads for id in ids}
    plans = plan(lambda: full.due_jobs.candidates_of_each(lanes, NOW, held), "aggregate")
    for explained in plans:
        _uses_an_index(explained)
    each = [found["executionStats"] for found in _cursors(plans)]
    assert (len(plans), len(each)) == (4, len(lanes))
    assert all(found["totalDocsExamined"] == 0 for found in each), "the index alone answers"
    assert all(found["totalKeysExamined"] <= found["nReturned"] + len(held) + 8 for found in each)


def _cursors(explained: Any) -> Iterator[Command]:
    """What each part of an aggregation reads, wherever it is nested."""
    if isinstance(explained, dict):
        yield from ([explained["$cursor"]] if "$cursor" in explained else [])
        for value in explained.values():
            yield from _cursors(value)
    elif isinstance(explained, list):
        for value in explained:
            yield from _cursors(value)


def test_the_next_due_time_reads_one_key(full: Store, plan: Plan) -> None:
    assert full.due_jobs.next_due(NOW) == NOW + HOUR

    (explained,) = plan(lambda: full.due_jobs.next_due(NOW), "find")

    _uses_an_index(explained)
    keys, documents, _ = statistics(explained)
    assert keys <= 2
    assert documents <= 1


def test_fetching_and_raising_flags_go_by_id(full: Store, plan: Plan) -> None:
    ids = full.due_jobs.due(LANES, NOW, 30, set())

    (fetched,) = plan(lambda: full.scheduled.fetch(ids), "find")
    flagged, inboxed = plan(lambda: full.scheduled.flag_cancelled(ObjectId(), NOW, None, None), "update")

    for explained, most in ((fetched, 31), (flagged, 1), (inboxed, 1)):
        _uses_an_index(explained)
        keys, documents, _ = statistics(explained)
        assert keys <= most * 2
        assert documents <= most


def test_the_archive_is_read_and_cleaned_by_index(full: Store, plan: Plan) -> None:
    (many,) = plan(lambda: full.archived.which_exist(range(100, 150)), "find")
    (got,) = plan(lambda: full.archived.get_many([ObjectId() for _ in range(50)]), "find")
    (one,) = plan(lambda: full.archived.get("nobody"), "find")
    for explained, most in ((many, 51), (got, 51), (one, 1)):
        _uses_an_index(explained)
        assert statistics(explained)[1] <= most
    keep = NOW - HOUR + timedelta(seconds=20)

    old, failed, *kept = plan(lambda: clean(full, keep, -HOUR), "find")

    for explained in (old, failed, *kept):
        _uses_an_index(explained)
    # explained after the twenty oldest went: the scan starts at the oldest and stops at the age
    assert statistics(old)[:2] == (0, 0)
    assert full.archived.which_exist(range(30)) == set(range(20, 30))


def test_moving_jobs_goes_by_id(full: Store, plan: Plan) -> None:
    jobs = [a_job(group="mail") for _ in range(30)]
    insert(full, *jobs)
    batch = OutcomeBatch({job.id: done(job) for job in jobs[:20]}, [to_retry(job) for job in jobs[20:]])

    def settle() -> None:
        full.roster.collection.update_one({"_id": "w1"}, {"$set": {"assigned": [job.id for job in jobs]}})
        full.transactions.settle("w1", batch, {})

    deleted, updated, released = plan(settle, "delete"), plan(settle, "update"), plan(settle, "findAndModify")

    for explained in deleted + updated + released:
        _uses_an_index(explained)
        assert statistics(explained)[1] <= 20


@pytest.mark.parametrize("collection", ["scheduled", "archived"])
@pytest.mark.parametrize("query", [{"tags": "user:7"}, {"urn": "report:7"}])
def test_tags_and_urns_are_found_by_an_index(full: Store, collection: str, query: dict[str, str]) -> None:
    jobs = [a_job(group="mail", tags=(f"user:{n}", "all"), urn=f"report:{n}") for n in range(20)]
    insert(full, *jobs)
    full.archived.collection.insert_many([decode(done(job).document) for job in jobs])

    (explained,) = explain(full, {"find": full.name_of(collection), "filter": query})

    _uses_an_index(explained)
    assert statistics(explained)[2] >= 1
    assert statistics(explained)[1] == statistics(explained)[2]  # no other document is looked at


def test_the_roster_is_small_and_read_without_sorting(full: Store, plan: Plan) -> None:
    calls: list[tuple[Callable[[], Any], str]] = [
        (full.roster.read, "find"),
        (full.roster.held, "find"),
        (lambda: full.roster.raise_term(1), "update"),
        (lambda: full.roster.assign({"w0": [], "w1": []}, 1), "update"),
        (lambda: beat(full, "w1", {}), "findAndModify"),
    ]
    for call, name in calls:
        for explained in plan(call, name):
            assert "SORT" not in stage_names(explained)
            assert statistics(explained)[1] <= 5, "never more than there are workers"


_READS = ("find", "aggregate", "count", "distinct")


@pytest.fixture(scope="module")
def crowd(server: EmbeddedServer, recorder: Recorder) -> Iterator[Store]:
    name = f"test_{ObjectId()}"
    store = recorded(server.uri.replace("/?", f"/{name}?"), recorder)
    store.prepare()
    fill(store)
    yield store
    store.client.drop_database(name)
    store.close()


def looked_up(
    store: Store, recorder: Recorder, *names: str, run: bool = True
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What was sent to the collections of jobs, each with how the server runs it. What is not run is only planned, and
    the server plans queries of one shape alike: one of each is enough."""
    jobs = (store.scheduled.collection.name, store.archived.collection.name)
    sent = [each for each in recorder.named(*names) if each[next(iter(each))] in jobs]
    assert sent
    if not run:
        sent = list({repr(shape(command)): command for command in sent}.values())
    return [(command, explained) for command in sent for explained in explain(store, command, run=run)]


def shape(value: Any) -> Any:
    """A command without the values that it looks for."""
    if isinstance(value, dict):
        told = {key: each if key in (*_READS, "hint", "key") else shape(each) for key, each in value.items()}
        return {key: each for key, each in told.items() if key not in ("lsid", "$clusterTime")}
    if isinstance(value, list):
        return sorted({repr(shape(each)) for each in value})
    return value if isinstance(value, bool | int | None) or str(value).startswith("$") else type(value)


@pytest.mark.parametrize(("number", "words"), list(enumerate(EACH_WORD)), ids=str)
def test_every_filter_is_answered_by_indexes(
    crowd: Store, recorder: Recorder, number: int, words: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given any filter, when it is listed over several pages and counted, then each query goes along an index."""
    if number % 2:  # also where windows are small
        monkeypatch.setattr("recruiter.store.search.search.WINDOW", 20)
        monkeypatch.setattr("recruiter.store.search.indexes.MOST_LANES", 2)
    filter = JobFilter(**words)
    with recorder.only_these():
        after = None
        for _ in range(3):
            page = crowd.search.jobs(filter, NOW, limit=11, after=after)
            after = page.next
            if after is None:
                break
        crowd.search.count(filter, NOW, 1_000)
        plans = looked_up(crowd, recorder, *_READS, run=False)

    for command, plan in plans:
        names = stage_names(plan)
        assert names & {"IXSCAN", "IDHACK", "DISTINCT_SCAN", "COUNT_SCAN"}, command
        assert not names & {"COLLSCAN", "SORT", "AND_HASH", "AND_SORTED"}, (names, command)


@pytest.mark.parametrize(
    "words", [{"group": "mail", "state": "failed"}, {"task": "send"}, {"error": "Refused"}], ids=str
)
def test_the_values_there_are_cost_a_seek_each(crowd: Store, recorder: Recorder, words: dict[str, Any]) -> None:
    """Given hundreds of jobs, when it is asked which lanes, groups, tasks or errors there are, then keys are jumped
    over."""
    with recorder.only_these():
        crowd.search.jobs(JobFilter(**words), NOW, limit=1_000)
        plans = looked_up(crowd, recorder, "aggregate", "distinct")

    for command, plan in plans:
        assert stage_names(plan) >= {"DISTINCT_SCAN"}, command
        assert statistics(plan)[0] <= 40


@pytest.mark.parametrize("words", [{}, {"state": "succeeded"}, {"group": "mail"}, {"owner": "ada"}], ids=str)
def test_a_page_reads_little_more_than_it_shows(crowd: Store, recorder: Recorder, words: dict[str, Any]) -> None:
    filter = JobFilter(**{"state": ["succeeded", "failed", "cancelled", "lost"], **words})
    after = crowd.search.ids(filter, NOW, limit=10).next
    with recorder.only_these():
        crowd.search.ids(filter, NOW, limit=5, after=after)
        plans = looked_up(crowd, recorder, "find")

    for command, plan in plans:
        keys, documents, _ = statistics(plan)
        assert documents <= 6, command
        assert keys <= 6 + 60, command  # one of each range that is merged


def test_acting_on_many_goes_by_id(crowd: Store, recorder: Recorder) -> None:
    waiting, ended = JobFilter(task="send", state="waiting"), JobFilter(task="send", state="failed")
    some = crowd.search.ids(waiting, NOW, limit=20).jobs
    old = crowd.search.ids(ended, NOW, limit=5).jobs

    with recorder.only_these():
        cancel_some(crowd, waiting, some, NOW, None, None)
        recover_some(crowd, ended, old, NOW, None)
        remove_some(crowd, ended, old, NOW)
        plans = looked_up(crowd, recorder, "find", "update", "delete")

    for command, plan in plans:
        assert not stage_names(plan) & {"COLLSCAN", "SORT"}, command
        assert statistics(plan)[1] <= 20
