"""How many examples the random tests try: a part of them in `make test`, all of them in `make proof`."""

from __future__ import annotations

import os

DEPTH = float(os.environ.get("RECRUITER_TEST_DEPTH", "0.3"))


def examples(most: int) -> int:
    return max(1, int(most * DEPTH))
