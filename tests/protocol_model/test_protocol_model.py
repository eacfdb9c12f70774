"""The model holds, and each of its rules is needed. `python -m tests.protocol_model` runs it over more seeds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol_model.trial import DESIGNS, _design, attempt

SEEDS = 100
MOST_SEEDS = 2000


@pytest.mark.parametrize("design", DESIGNS)
def test_a_design_holds(design: str) -> None:
    caught, _ = attempt((design, None, SEEDS))
    assert caught is None


@pytest.mark.parametrize(("design", "rule"), [(name, rule) for name in DESIGNS for rule in _design(name).RULES])
def test_a_mutant_is_caught(design: str, rule: Any) -> None:
    caught, _ = attempt((design, rule, MOST_SEEDS))
    assert caught is not None
