"""What a child runs, as its supervisor sees it."""

from __future__ import annotations

import multiprocessing

import pytest

from recruiter.processes.ledger import CELLS, Ledger


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(multiprocessing.get_context("forkserver"))


def test_one_that_waits_can_be_taken_back_and_is_not_started_then(ledger: Ledger) -> None:
    ledger.open(7)

    assert ledger.withdraw([7]) == [7]
    assert not ledger.claim(7)
    assert not ledger.claimed(7)


def test_one_that_was_started_cannot(ledger: Ledger) -> None:
    ledger.open(7)

    assert ledger.claim(7)
    assert ledger.withdraw([7]) == []
    assert not ledger.claim(7)
    assert (ledger.claimed(7), ledger.running(7)) == (True, True)


def test_one_that_has_ended_does_not_run_but_is_still_to_blame(ledger: Ledger) -> None:
    """Given an answer that is on its way, or lost with its process, then the next one may run already."""
    for number in (7, 8):
        ledger.open(number)
        ledger.claim(number)
        if number == 7:
            ledger.end(7)

    assert [ledger.running(number) for number in (7, 8)] == [False, True]
    assert [ledger.claimed(number) for number in (7, 8)] == [True, True]
    assert ledger.withdraw([7, 8]) == []


def test_a_number_is_not_taken_for_another_that_uses_its_cell(ledger: Ledger) -> None:
    ledger.open(7)
    ledger.claim(7)
    ledger.end(7)
    ledger.open(7 + CELLS)

    assert not ledger.claim(7)
    assert not ledger.claimed(7)
    assert ledger.claim(7 + CELLS)
