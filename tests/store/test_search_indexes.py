"""No search reads a collection from end to end or sorts in memory, whatever the filter.

The commands are the ones a search really sends, and the plans are the server's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import ObjectId

from recruiter.domain.search.filter import JobFilter
from recruiter.embedded import EmbeddedServer
from recruiter.steps.cancel import cancel_some
from recruiter.steps.clean import remove_some
from recruiter.steps.recover import recover_some
from recruiter.store.database import Store
from tests.commands import Recorder, explain, recorded, stage_names, statistics
from tests.crowd import EACH_WORD, fill
from tests.samples import NOW

_READS = ("find", "aggregate", "count", "distinct")


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


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
