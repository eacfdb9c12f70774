"""Random flows that users change while they run, and the rules for how such a flow ends.

`make chaos` and `benchmarks/random_flows.py` use both.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from recruiter import FlowHandle, FlowState, JobNotFound, Recruiter, Step
from recruiter.errors import InvalidFlow, JobRecovered
from recruiter.store.codec import flow_of

Document = Mapping[str, Any]
WIDE = range(20, 60)
"""The number of steps side by side in a wide flow."""


class MakeStep(Protocol):
    """The job of a step that fails so often, by chance, and takes so long."""

    def __call__(self, name: str, fails: float, wait: float, results: list[Any]) -> Any: ...


class ChangedFlow:
    """A random flow of up to twelve steps that fail by chance, some with a fan-out and fan-in, or a flow inside it."""

    def __init__(
        self, recruiter: Recruiter, name: str, chance: random.Random, make: MakeStep, sleep: Callable[[float], object]
    ) -> None:
        self._recruiter, self._chance, self._make, self._sleep = recruiter, chance, make, sleep
        self.name = name
        self.steps: list[Step[Any]] = []
        flow = recruiter.flow(name)
        for _ in range(chance.randint(1, 12)):
            self.steps.append(flow.add(self._step(), **self._dependencies()))
        if chance.random() < 0.1:
            parts = [
                flow.add(self._quick(f"part {number}"), after=self.steps[0]) for number in range(chance.choice(WIDE))
            ]
            total = make(f"{name} total", 0.0, 0.0, [part.result for part in parts])
            self.steps += [*parts, flow.add(total)]
        if chance.random() < 0.15:
            inner = recruiter.flow("inner")
            first = inner.add(self._quick("inner first"))
            inner.add(self._quick("inner last"), after=first)
            self.steps += flow.add(inner, after=self.steps[-1]).steps
        for end in ("on_success", "on_failure", "on_end"):
            getattr(flow, end)(self._quick(end))
        self.handle: FlowHandle = flow.start()

    def _quick(self, name: str) -> Any:
        return self._make(f"{self.name} {name}", 0.0, 0.0, [])

    def _step(self) -> Any:
        taken = self._chance.sample(self.steps[-3:], min(len(self.steps), self._chance.choice((0, 0, 1, 2))))
        fails, wait = self._chance.choice((0.0, 0.0, 0.2, 0.6)), self._chance.choice((0.0, 0.01, 0.3))
        return self._make(f"{self.name} step {len(self.steps)}", fails, wait, [step.result for step in taken])

    def _dependencies(self) -> dict[str, Any]:
        chosen = self._chance.sample(self.steps, min(len(self.steps), self._chance.choice((0, 1, 1, 2, 12))))
        anyhow = [step for step in chosen if self._chance.random() < 0.25]
        return {"after": [step for step in chosen if step not in anyhow], "after_any": anyhow}

    # -- what users do -------------------------------------------------------------------------------------------------

    def change(self, *, ended: bool = False) -> str:
        """One change at random; returns its name. `ended`: one of those that are possible after the end."""
        acts: list[Callable[[], None]] = [self.retry, self.recover, self.add]
        acts += [] if ended else [self.pause, self.cancel]
        act = self._chance.choice(acts)
        try:
            act()
        except (InvalidFlow, JobNotFound, JobRecovered):  # it has ended, is cancelled, or was recovered before
            return "refused"
        return str(act.__name__)

    def pause(self) -> None:
        self.handle.pause()
        self._sleep(self._chance.random())
        self.handle.resume()

    def cancel(self) -> None:
        self.handle.cancel()

    def retry(self) -> None:
        self.handle.retry()

    def recover(self) -> None:
        query = {"flow.id": self.handle.id, "done": False, "recovered_as": None, "flow.on": None}
        failed = [job["_id"] for job in self._recruiter.store.archived.collection.find(query, {"_id": 1})]
        if failed:
            self._recruiter.recover(self._chance.choice(failed))

    def add(self) -> None:
        self.steps.append(self.handle.add(self._step(), **self._dependencies()))


# -- how it has ended --------------------------------------------------------------------------------------------------


def wrong_ends(
    ended: Sequence[Document], state: FlowState, *, cancelled: bool, added: Collection[Any]
) -> Iterator[str]:
    """Every way in which these jobs, all jobs of an ended flow, are not the outcome of its steps. `added` are the ids
    of the steps that were acknowledged; there may be others."""
    places = [(job, place) for job in ended if (place := flow_of(job)) is not None and place.on is None]
    known = {place.step for _, place in places}
    succeeded = Counter(place.step for job, place in places if job["done"])
    last = Counter(place.step for job, place in places if not job["done"] and job.get("recovered_as") is None)
    if lost := set(added) - known:
        yield f"steps are lost: {lost}"
    if succeeded and max(succeeded.values()) > 1:
        yield "a step succeeded twice"
    if last and max(last.values()) > 1:
        yield "a step has two last jobs"
    if known != set(succeeded) | set(last):
        yield "a step neither succeeded nor failed"
    names = Counter(name for name, _ in {(place.name, place.step) for _, place in places} if name is not None)
    if names and max(names.values()) > 1:
        yield f"two steps have one name: {names.most_common(1)}"
    for job, place in places:
        missing = [step for step in place.after if step not in place.any and step not in succeeded]
        if job["done"] and missing:
            yield "a step succeeded before the steps that it waits for"
        if job["why"] == "dependency-failed" and job.get("recovered_as") is None and not missing:
            yield "a step failed for dependencies that have succeeded"
    yield from _wrong_outcome(ended, state, set(succeeded) == known, cancelled=cancelled)


def _wrong_outcome(ended: Sequence[Document], state: FlowState, is_success: bool, *, cancelled: bool) -> Iterator[str]:
    otherwise = FlowState.CANCELLED if cancelled else FlowState.FAILED
    wanted = FlowState.SUCCEEDED if is_success else otherwise
    if state is not wanted:
        yield f"it is {state.value}, and its steps say {wanted.value}"
    at_end = [job for job in ended if job["flow"].get("on")]
    ends = Counter(job["flow"]["on"] for job in at_end if not job.get("recovered_from"))
    if not ends["end"] == ends["success" if is_success else "failure"] == max(ends.values(), default=0) == 1:
        yield f"the jobs at its end were made {dict(ends)} times"
    if failed := [job["why"] for job in at_end if not job["done"] and job["why"] not in _DEATHS]:
        yield f"a job at its end failed: {failed}"


_DEATHS = ("crashed-too-many-times", "worker-died-too-many-times")
"""Reasons that a fault may have."""
