"""What people type who come from the seeds: the error says what to type here."""

from __future__ import annotations

import pytest

from recruiter import Recruiter
from recruiter.errors import StoreUnreachable
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


@pytest.mark.parametrize(
    "address", ["localhost:1/?serverSelectionTimeoutMS=200", "mongodb://localhost:1/shop?serverSelectionTimeoutMS=200"]
)
def test_other_addresses_have_no_such_advice(address: str) -> None:
    code, said = here(address, "analytics")

    assert code == 4
    assert "database called" not in said
