"""Freed steps: steps of flows that may start, and that the leader gives to workers without writing that they may.

To release a step is to write its lane. If one step frees ten thousand, that takes MongoDB half as long as all the rest
that is done for ten thousand quick jobs. So where a look at a flow (steps/release.py) frees many that are alike, the
leader remembers them, and its rounds give them to workers when there is nothing else to give. Such a step runs and ends
while its document is in the lane of blocked steps: who holds a job is written on the roster, and what ends it deletes
it wherever it is. If it takes results of other steps, its worker fetches them.

What makes this safe:

- The markers that have led to it stay, so nothing is lost with the memory of a leader. They are kept until the *last
  look*: it gives their lanes to all that are still there, whether they run, or came back from a worker that has died,
  or failed and will be tried again.
- Nobody holds a step that is freed: the roster is read before its document, and after that only this leader assigns.
  It leaves the list when it is given, and is known until the last look: no other look frees it a second time.
- All of it is forgotten when the term ends. After a write of unknown outcome that is so.
- A worker does not start a step whose flow has been paused since: pausing writes that on each of them.

Steps may only be given like this while nothing else waits: what is written has its place among other jobs by priority
and age, and what is remembered has not. So the list is given up, and its steps are released like others, when other
jobs fill the room there is, when a group is paused or a limit is set, and when it would last for too long.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bson import ObjectId

from recruiter.domain.job import JobId

MANY = 100
"""So many that are alike are worth it."""
_LONGEST = timedelta(seconds=10)
"""So long they may look as if they were blocked, near enough."""
_TRIED_FOR = timedelta(seconds=1)
"""After this it is known how fast they are given; and those that were given last have had time to end."""
_FEW = 100
"""When workers hold no more jobs than this, it takes little to look at all that are left."""


@dataclass
class _Batch:
    """Steps that are alike, in their order."""

    flow: ObjectId
    lane: str
    priority: float
    steps: deque[JobId]


@dataclass
class _OfFlow:
    since: datetime
    given_at: datetime
    known: set[JobId] = field(default_factory=set)
    markers: set[ObjectId] = field(default_factory=set)
    given: int = 0
    is_over: bool = False
    """Its last look is due."""

    def gave(self, count: int, now: datetime) -> None:
        if count:
            self.given += count
            self.given_at = now


class FreedSteps:
    """The thread of the leader owns it."""

    def __init__(self, many: float = MANY) -> None:
        self._many = many
        self._term = -1
        self._batches: list[_Batch] = []
        self._flows: dict[ObjectId, _OfFlow] = {}
        self._holds = 0

    def __len__(self) -> int:
        """How many can be given."""
        return sum(len(batch.steps) for batch in self._batches)

    @property
    def all_given(self) -> bool:
        """Whether there were some, and workers have the last of them."""
        return bool(self._flows) and not self._batches

    def can_take(self, count: int) -> bool:
        """Whether so many that are alike are worth it."""
        return count >= self._many

    def in_term(self, term: int) -> None:
        """To be called first, by whoever uses it."""
        if term != self._term:
            self._term, self._batches, self._flows = term, [], {}

    # -- rounds ------------------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> set[str]:
        """Where those belong that can be given."""
        return {batch.lane for batch in self._batches}

    def take(self, count: int, serves: Callable[[str], bool], now: datetime) -> list[JobId]:
        """The next ones for a worker that serves these lanes, which holds them from now on."""
        taken: list[JobId] = []
        for batch in self._batches:
            if serves(batch.lane):
                some = [batch.steps.popleft() for _ in range(min(count - len(taken), len(batch.steps)))]
                self._flows[batch.flow].gave(len(some), now)
                taken += some
        self._batches = [batch for batch in self._batches if batch.steps]
        return taken

    def give_up(self) -> None:
        """They are to be released like others."""
        self._batches = []
        for of_flow in self._flows.values():
            of_flow.is_over = True

    def saw(self, holds: int) -> None:
        """So many jobs are held, by all workers."""
        self._holds = holds

    # -- looks -------------------------------------------------------------------------------------------------------

    @property
    def kept(self) -> set[ObjectId]:
        """The markers that are not to be looked at now."""
        return {id for of_flow in self._flows.values() for id in of_flow.markers}

    def known(self, flow: ObjectId) -> Set[JobId]:
        """The steps of this flow that have been freed, given or not."""
        return self._flows[flow].known if flow in self._flows else frozenset()

    def add(
        self, flow: ObjectId, lane: str, priority: float, steps: Iterable[JobId], held: Set[JobId], now: datetime
    ) -> int:
        """These may start, and those of them that nobody holds can be given; returns how many."""
        known = list(steps)
        free = deque(step for step in known if step not in held)
        self._flows.setdefault(flow, _OfFlow(now, now)).known.update(known)
        if free:
            self._batches.append(_Batch(flow, lane, priority, free))
            self._batches.sort(key=lambda batch: -batch.priority)
        return len(free)

    def keep(self, flow: ObjectId, markers: Iterable[ObjectId]) -> bool:
        """Whether these must stay, because steps of this flow have been freed."""
        if flow not in self._flows:
            return False
        self._flows[flow].markers.update(markers)
        return True

    def last_looks(self, now: datetime) -> set[ObjectId]:
        """The flows that must be looked at for the last time now."""
        waiting = Counter[ObjectId]()
        for batch in self._batches:
            waiting[batch.flow] += len(batch.steps)
        return {id for id, of_flow in self._flows.items() if self._is_over(of_flow, waiting[id], now)}

    def _is_over(self, of_flow: _OfFlow, waiting: int, now: datetime) -> bool:
        if of_flow.is_over:
            return True
        if not waiting:
            return self._holds <= _FEW or now - of_flow.given_at >= _TRIED_FOR
        so_far = now - of_flow.since
        return so_far >= _TRIED_FOR and so_far + so_far * waiting / max(1, of_flow.given) > _LONGEST

    def forget(self, flow: ObjectId) -> set[ObjectId]:
        """They are freed no more; returns the markers that were kept."""
        self._batches = [batch for batch in self._batches if batch.flow != flow]
        return self._flows.pop(flow).markers if flow in self._flows else set()
