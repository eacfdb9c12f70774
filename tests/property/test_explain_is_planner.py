"""Explain and the planner agree: explain says that nothing blocks a job exactly when the next round assigns it."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recruiter.domain.job import JobId
from recruiter.domain.planning.limits import Limit, Rate
from recruiter.domain.planning.needs import Needs
from recruiter.steps.assign import assign
from recruiter.store.database import Store
from recruiter.views.explain import explain
from recruiter.views.resources import resources
from tests.depth import examples
from tests.samples import a_job, insert, on_the_roster

_RESOURCES = st.sampled_from(["", "proc=1", "mem=1073741824,proc=2", "gpu=1,proc=4"])
_WORKERS = st.fixed_dictionaries(
    {
        "host": st.sampled_from(["h1", "h2"]),
        "groups": st.sampled_from([None, None, ["generic"], ["other"]]),
        "tasks": st.sampled_from([["add"], ["add", "sub"], ["sub"]]),
        "slots": st.integers(1, 3),
        "prefetch": st.sampled_from([0, 0, 1, 6]),
        "resources": _RESOURCES,
        "draining": st.sampled_from([False, False, True]),
    }
)
_JOBS = st.fixed_dictionaries(
    {
        "group": st.sampled_from(["generic", "other"]),
        "task": st.sampled_from(["add", "add", "sub"]),
        "needs": st.sampled_from(["", "", "proc=1", "proc=2", "gpu=1", "proc=9"]).map(Needs.parse),
        "limited_by": st.sampled_from([None, None, "customer:1"]),
        "worker_deaths": st.sampled_from([0, 0, 3]),
    }
)
_LIMITS = st.sampled_from(
    [
        Limit("task:add", 1),
        Limit("task:add", 3),
        Limit("group:generic", 0),
        Limit("key:customer", 1),
        Limit("resource:proc", 2),
        Limit("resource:gpu", 1, floating=True),
        Limit("task:sub", None, Rate(1, 60.0)),
    ]
)


def _insert(store: Store, facts: dict[str, Any]) -> JobId:
    now = store.clock.now()
    return insert(store, a_job(**facts, created_at=now, scheduled_at=now))[0]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    workers=st.lists(_WORKERS, max_size=4),
    held=st.lists(_JOBS, max_size=4),
    limits=st.lists(_LIMITS, max_size=3, unique_by=lambda limit: limit.subject),
    waiting=_JOBS,
)
def test_a_job_is_free_to_start_exactly_when_the_leader_assigns_it(
    store: Store, workers: list[Any], held: list[Any], limits: list[Limit], waiting: dict[str, Any]
) -> None:
    store.empty()
    lease = store.leases.acquire(store.leases.look(), "leader", {"host": "here", "pid": 1})
    assert lease is not None
    for number, facts in enumerate(workers):
        on_the_roster(store, f"w{number}", lease.term, **facts)
    for limit in limits:
        store.limits.set(limit, "ada", store.clock.now())
    for facts in held:
        _insert(store, facts)
        assign(store, lease.term, store.clock.now(), store.limits.read())
    store.scheduled.collection.delete_many({"_id": {"$nin": list(store.roster.held())}})
    id = _insert(store, waiting)

    told = explain(store, id, store.clock.now())
    assign(store, lease.term, store.clock.now(), store.limits.read())

    assert told.startswith("due, and nothing blocks it") is (id in store.roster.held()), told


def test_a_host_has_the_largest_amount_that_any_of_its_workers_reports(store: Store) -> None:
    """Given two workers on one host that declare different resources, then the report names what the planner counts
    with, whichever of them joined last."""
    for names in (("small", "large"), ("large", "small")):
        store.empty()
        for name in names:
            on_the_roster(store, name, host="h", resources="proc=2" if name == "small" else "proc=8")

        assert [(use.host, use.resource, use.limit) for use in resources(store)] == [("h", "proc", 8)]
