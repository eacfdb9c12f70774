"""`recruiter worker|group|limit …`: what a person sees, and what a script can rely on."""

from __future__ import annotations

import pytest

from recruiter.store.database import Store
from tests.cli_here import here
from tests.samples import a_job, insert


@pytest.mark.parametrize("listing", ["worker", "group", "limit", "scheduler", "job"])
def test_a_database_that_nobody_has_prepared(target: str, listing: str) -> None:
    code, said = here(target, listing, "list")

    assert code == 0
    assert said.count("\n") == 1


def test_a_database_that_an_older_version_has_prepared(target: str, store: Store) -> None:
    """Given one without the indexes of this version, then it is said how to make them."""
    insert(store, a_job())
    store.archived.collection.drop_indexes()
    store.scheduled.collection.drop_indexes()

    code, said = here(target, "job", "list")

    assert code == 4
    assert said.startswith("recruiter: an index that this version of Recruiter needs is missing")
    assert "recruiter prepare" in said
    assert here(target, "prepare")[0] == 0
    assert here(target, "job", "list")[0] == 0
