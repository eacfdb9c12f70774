"""Actions on many jobs: they go on beside the request that asked for them, and their progress can be watched.

A request waits for a moment, which is enough for most. Then it is answered with how far the action is and where to look
again (`Outcome.running`). When the console ends, it stops after the batch that is on its way and says so.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from recruiter.errors import JobNotFound, RecruiterError, TooManyViewers

MOST = 4
"""At once; each keeps MongoDB busy."""
KEPT = 100
"""Outcomes that can still be asked for."""
PATIENCE = 1.5
"""Seconds that a request waits for the end."""
_FAREWELL = 10.0

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    text: str
    undo: str | None = None
    """The verb that takes it back, on the same name."""
    link: str | None = None
    """The id of a job that was made."""
    running: str | None = None
    """It goes on; ask for its progress by this."""


@dataclass(slots=True, eq=False)
class _Bulk:
    told: Callable[[int], str]
    number: int = 0
    outcome: Outcome | None = None
    error: RecruiterError | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def outcome_so_far(self, id: str) -> Outcome:
        if self.error is not None:
            return Outcome(f"{self.told(self.number)} Then it stopped: {self.error}.")
        if self.outcome is not None:
            return self.outcome
        return Outcome(f"{self.told(self.number)} It goes on.", running=id)


class Bulks:
    """Those of one console."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._closed = False
        self._lock = threading.Lock()
        self._all: dict[str, _Bulk] = {}

    def run(self, act: Callable[[Progress], Outcome], told: Callable[[int], str]) -> Outcome:
        """Its outcome, or how far it is after a moment: `told` says it of a number. Raises what `act` raises meanwhile,
        and TooManyViewers when too many are on their way."""
        bulk, id = _Bulk(told), secrets.token_urlsafe(9)
        with self._lock:
            if sum(1 for each in self._all.values() if not each.over.is_set()) >= MOST:
                raise TooManyViewers(f"{MOST} actions on many jobs are running; wait until one of them has ended")
            while len(self._all) >= KEPT:
                oldest = next(key for key, each in self._all.items() if each.over.is_set())
                del self._all[oldest]
            self._all[id] = bulk
        threading.Thread(target=self._run, args=(bulk, act), name="recruiter web action", daemon=True).start()
        if bulk.over.wait(self._patience) and bulk.error is not None:
            raise bulk.error
        return bulk.outcome_so_far(id)

    def look(self, id: str) -> Outcome:
        """How far it is, or what came of it. Raises JobNotFound."""
        bulk = self._all.get(id)
        if bulk is None:
            raise JobNotFound("this action is no longer known here; the page Problems lists past actions")
        return bulk.outcome_so_far(id)

    def close(self) -> None:
        """Stops what is on its way, after the batch that is being written."""
        self._closed = True
        for bulk in list(self._all.values()):
            bulk.over.wait(_FAREWELL)

    def _run(self, bulk: _Bulk, act: Callable[[Progress], Outcome]) -> None:
        def progress(number: int) -> None:
            bulk.number = number
            if self._closed:
                raise RecruiterError("the console was stopped; do it again for the rest")

        try:
            bulk.outcome = replace(act(progress), running=None)
        except RecruiterError as error:
            bulk.error = error
        except Exception as error:
            bulk.error = RecruiterError(f"a bug in Recruiter: {type(error).__name__}: {error}")
        finally:
            bulk.over.set()
