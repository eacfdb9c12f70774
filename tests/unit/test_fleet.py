"""What a fleet exits with, from what its members did."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM

import pytest

from recruiter.processes.fleet import exit_code


@pytest.mark.parametrize(
    ("of_members", "code"),
    [
        ([0, 0, 0], 0),
        ([0, 4, 0], 4),
        ([-SIGTERM, 4, 0], 4),  # told to stop while it was still importing: the one that failed says why
        ([-SIGTERM, 0, 0], 0),
        ([0, -SIGKILL, 0], 137),
    ],
)
def test_the_first_that_failed_by_itself_is_told(of_members: list[int], code: int) -> None:
    assert exit_code(of_members) == code
