"""What people type who come from the seeds: the error says what to type here."""

from __future__ import annotations

import pytest

from recruiter import Recruiter
from recruiter.errors import InvalidJob, StoreUnreachable
from tests.cli_here import here


def test_the_name_of_a_database_is_taken_for_a_host_and_the_error_says_so() -> None:
    """`JobManager('databaseName')` in the seed."""
    with (
        Recruiter("mongoJobManagerDb", server_timeout=1) as recruiter,
        pytest.raises(
            StoreUnreachable, match=r"database called 'mongoJobManagerDb': 127\.0\.0\.1:27017/mongoJobManagerDb"
        ),
    ):
        recruiter.jobs.count()


@pytest.mark.parametrize("address", ["localhost:1", "127.0.0.1:1", "localhost:1/shop", "mongodb://localhost:1/shop"])
def test_other_addresses_have_no_such_advice(address: str) -> None:
    code, said = here(address, "analytics")

    assert code == 4
    assert "database called" not in said


@pytest.mark.parametrize("word", ["cancel", "recover", "find"])
def test_several_ids_are_refused_with_the_call_that_takes_them(recruiter: Recruiter, word: str) -> None:
    @recruiter.task
    def wait() -> None: ...

    ids = [wait.job().schedule_in("1 day").enqueue().id for _ in range(2)]

    with pytest.raises(InvalidJob, match=r"for several jobs: recruiter.jobs.cancel\(ids="):
        getattr(recruiter, word)(ids)
    assert recruiter.jobs.cancel(ids=ids) == 2
