"""What people type who come from elsewhere: each slip is answered with what to type here."""

from __future__ import annotations

import pytest

from recruiter import Recruiter
from recruiter.errors import StoreUnreachable
from tests.cli_here import here


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("start:recruiter --target 127.0.0.1:27017", "recruiter start recruiter"),
        (
            "start:recruiter --target 127.0.0.1:27017 --bootstrap src/recruiter-bootstrap.php",
            "recruiter start recruiter",
        ),
        ("help start:recruiter", "recruiter start recruiter --help"),
        ("start:worker --target 127.0.0.1:27017 --bootstrap worker-bootstrap.php", "recruiter start worker"),
        ("start:worker --work-on='double-optin-email' --target 127.0.0.1:27017", "recruiter start worker"),
        ("help start:worker", "recruiter start worker --help"),
        ("start:cleaner --target 127.0.0.1:27017", "recruiter start cleaner"),
        ("help start:cleaner", "recruiter start cleaner --help"),
        ("scheduler:remove --target 127.0.0.1:27017", "recruiter scheduler remove"),
        ("job:recover --scheduleAt 2019-12-01T22:18:00Z 5d27436e2bacd566a67e85e4", "recruiter job recover"),
        ("bko:analytics --target mongodb://localhost:27017/recruiter --group html", "recruiter analytics"),
        ("help", "recruiter --help"),
    ],
)
def test_a_command_of_the_php_console_is_answered_with_the_command_to_type(typed: str, answer: str) -> None:
    code, said = here("127.0.0.1:1", *typed.split())

    assert (code, said) == (2, f"recruiter: the command is `{answer}`\n")
    assert here("127.0.0.1:1", *answer.split()[1:], *([] if answer.endswith("--help") else ["--help"]))[0] == 0


def test_an_option_of_the_php_console_is_answered_with_the_option_to_type() -> None:
    _, said = here("127.0.0.1:1", "job", "recover", "--scheduleAt", "2019-12-01T22:18:00Z", "5d27436e2bacd566a67e85e4")

    assert "Did you mean --schedule-at?" in said


def test_other_words_with_a_colon_are_unknown_commands() -> None:
    code, said = here("127.0.0.1:1", "cache:clear")

    assert code == 2
    assert 'Unknown command "cache:clear"' in said


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
