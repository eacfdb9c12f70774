"""What becomes of a job that is made while there is one of the same key."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from recruiter.domain.uniqueness import Existing, KnownJob, Make, UniqueKind, Uniqueness, decide

T0 = datetime(2030, 1, 1, tzinfo=UTC)
WAITS = KnownJob("first", T0, T0, exists=True, begun_at=None)
RUNS = replace(WAITS, begun_at=T0)
GONE = replace(RUNS, exists=False)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("kind", "known", "decision"),
    [
        (UniqueKind.ENDED, None, Make()),
        (UniqueKind.ENDED, WAITS, Existing("first")),
        (UniqueKind.ENDED, RUNS, Existing("first")),
        (UniqueKind.ENDED, GONE, Make()),
        (UniqueKind.STARTED, None, Make()),
        (UniqueKind.STARTED, WAITS, Existing("first")),
        (UniqueKind.STARTED, RUNS, Make()),
        (UniqueKind.STARTED, GONE, Make()),
    ],
)
def test_unique_by_its_state(kind: UniqueKind, known: KnownJob | None, decision: Any) -> None:
    assert decide(Uniqueness(kind), known, after(5)) == decision


@pytest.mark.parametrize("known", [WAITS, RUNS, GONE])
def test_unique_for_a_time_whatever_became_of_it(known: KnownJob) -> None:
    wanted = Uniqueness.until("10s")

    assert decide(wanted, known, after(9.9)) == Existing("first")
    assert decide(wanted, known, after(10)) == Make()
