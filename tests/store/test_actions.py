"""Who did what by hand is written down before it is done, and what came of it afterwards."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from recruiter.store.collections.actions import ActionEntry
from recruiter.store.database import Store

NOW = datetime(2026, 11, 17, 3, 0, tzinfo=UTC)


def test_an_action_is_there_before_it_is_done_and_has_its_outcome_afterwards(store: Store) -> None:
    entry = ActionEntry(NOW, "ada", "cancel", "job 42", "the mail server is down")

    id = store.actions.begin(entry, "10.0.0.7")
    assert store.actions.latest(5) == [entry], "one without an outcome was interrupted"

    store.actions.conclude(id, "is being cancelled")
    assert store.actions.latest(5) == [replace(entry, outcome="is being cancelled")]


def test_the_newest_come_first_and_no_more_than_are_asked_for(store: Store) -> None:
    for minutes in range(4):
        store.actions.begin(ActionEntry(NOW + timedelta(minutes=minutes), "ada", "cancel", f"job {minutes}"))

    assert [entry.subject for entry in store.actions.latest(2)] == ["job 3", "job 2"]
