"""What a fleet exits with, from what its members did."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM

import pytest

from recruiter.processes.fleet import exit_code, how_it_ended


@pytest.mark.parametrize(
    ("of_members", "code"),
    [
        ([0, 0, 0], 0),
        ([0, 4, 0], 4),
        ([-SIGTERM, 4, 0], 4),  # told to stop while it was still importing: the one that failed says why
        ([-SIGTERM, 0, 0], 0),
        ([0, -SIGKILL, 0], 1),  # 137 would say that this process was killed
    ],
)
def test_the_first_that_failed_by_itself_is_told(of_members: list[int], code: int) -> None:
    assert exit_code(of_members) == code


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (0, "ended by itself with exit code 0"),
        (4, "ended by itself with exit code 4"),
        (-SIGKILL, "was killed from outside by SIGKILL (out of memory?)"),
        (-40, "was killed from outside by signal 40"),
    ],
)
def test_how_a_member_ended_in_words(code: int, how: str) -> None:
    assert how_it_ended(code) == how
