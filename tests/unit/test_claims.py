"""What a child runs, as its supervisor sees it."""

from __future__ import annotations

import multiprocessing

import pytest

from recruiter.processes.child.claims import CELLS, Claims


@pytest.fixture
def claims() -> Claims:
    return Claims(multiprocessing.get_context("forkserver"))


def test_one_that_waits_can_be_taken_back_and_is_not_started_then(claims: Claims) -> None:
    claims.open(7)

    assert claims.withdraw([7]) == [7]
    assert not claims.claim(7)
    assert not claims.claimed(7)


def test_one_that_has_ended_does_not_run_but_is_still_to_blame(claims: Claims) -> None:
    """Given an answer that is on its way, or lost with its process, then the next one may run already."""
    for number in (7, 8):
        claims.open(number)
        claims.claim(number)
        if number == 7:
            claims.end(7)

    assert [claims.running(number) for number in (7, 8)] == [False, True]
    assert [claims.claimed(number) for number in (7, 8)] == [True, True]
    assert claims.withdraw([7, 8]) == []


def test_a_number_is_not_taken_for_another_that_uses_its_cell(claims: Claims) -> None:
    claims.open(7)
    claims.claim(7)
    claims.end(7)
    claims.open(7 + CELLS)

    assert not claims.claim(7)
    assert not claims.claimed(7)
    assert claims.claim(7 + CELLS)
