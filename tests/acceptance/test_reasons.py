"""Lists and the live screen say why jobs wait, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from recruiter import Recruiter
from recruiter.store.database import Store
from tests.cli_here import here
from tests.samples import a_job, insert, on_the_roster


@pytest.fixture
def recruiter(target: str, store: Store) -> Iterator[Recruiter]:
    """A leader, a worker that knows `send`, and a job in each kind of trouble."""
    with Recruiter(target) as recruiter:
        now = recruiter.clock.now()
        when = {"created_at": now, "scheduled_at": now}
        lease = {"_id": "leader", "term": 1, "holder": "h", "beats": 1, "host": "h", "pid": 1, "renewed_at": now}
        store.leases.collection.insert_one(lease)
        on_the_roster(store, "w1", tasks=["send"], seen_at=now, joined_at=now)
        insert(store, a_job("fine", task="send", **when))
        insert(store, a_job("paused", task="send", group="mail", **when))
        insert(store, a_job("unknown", task="encode", **when))
        later = {"created_at": now, "scheduled_at": now + timedelta(hours=1)}
        insert(store, a_job("later", task="encode", **later))
        failure = {"class": "ValueError", "message": "no good", "started_at": now, "ended_at": now, "worker": "w1"}
        changes = {"$set": {"last_execution": failure, "attempts": 1}}
        store.scheduled.collection.update_one({"_id": "later"}, changes)
        recruiter.controls.pause_group("mail", by="ada", reason="holidays")
        yield recruiter


def test_the_live_screen_says_it_where_there_is_room(recruiter: Recruiter, target: str) -> None:

    said = here(target, "top", "--once", COLUMNS="180")[1]

    assert "group mail is paused" in said
    assert "no worker knows the task 'encode'" in said
    assert "waits because" not in here(target, "top", "--once", COLUMNS="80")[1]


@pytest.mark.parametrize("by", ["group", "task", "owner", "tag", "time"])
def test_analytics_breaks_no_word_at_80_columns(recruiter: Recruiter, store: Store, target: str, by: str) -> None:
    insert(store, a_job(task="send", group="a_group_with_a_long_name"))

    narrow, wide = (here(target, "analytics", "--by", by, COLUMNS=width)[1] for width in ("80", "400"))

    assert max(map(len, narrow.splitlines())) <= 80
    words = {word for word in narrow.split() if "…" not in word}
    assert {word for word in words - {*wide.split()} if word.isalpha()} == set()
