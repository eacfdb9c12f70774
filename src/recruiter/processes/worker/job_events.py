"""The events that a worker emits about its jobs, made from the answers of its children."""

from __future__ import annotations

from typing import Any

from recruiter.clock import Clock
from recruiter.domain.state import Why
from recruiter.events import Events
from recruiter.processes.child.pipe import ListenerErrorLog
from recruiter.processes.worker.held_jobs import HeldJob
from recruiter.store import outcomes
from recruiter.store.codec import Document, decode
from recruiter.store.outcomes import Rescheduled, Settled

Facts = dict[str, Any]
"""Which job an event is about."""

_NOT_DONE = b"\x08done\x00\x00"
"""`done: false` in BSON: enough to suspect a failure without decoding every success."""
_NOTES = b"\x04notes\x00"
"""An array of that name: something went wrong beside the job."""


class JobEvents:
    def __init__(self, events: Events, clock: Clock, tell_all: bool) -> None:
        self._events = events
        self._clock = clock
        self._tell_all = tell_all
        self._listener_errors = ListenerErrorLog()

    def ended(self, job: HeldJob, outcome: outcomes.Outcome | None, worker: str) -> None:
        """What became of a job. Successes are only looked into when somebody wants to hear of each."""
        if isinstance(outcome, Settled):
            outcome = outcome.document
        if isinstance(outcome, Rescheduled):
            self._put_off(job.facts(worker), outcome)
        elif isinstance(outcome, bytes) and (self._tell_all or _NOT_DONE in outcome or _NOTES in outcome):
            self._archived(job.facts(worker), decode(outcome))

    def listener_failed(self, listener_errors: list[bytes]) -> None:
        """Of listeners that failed in a child."""
        for payload in listener_errors:
            told = self._listener_errors.due(payload, self._clock.monotonic())
            if told is not None:
                error = told.error if told.times == 1 else f"{told.error} ({told.times} times)"
                self._events.emit("listener.failed", listener=told.listener, event=told.event, error=error)

    def _put_off(self, about: Facts, outcome: Rescheduled) -> None:
        failure = outcome.fields.get("last_execution")
        if outcome.snoozes is not None:
            next_at, reason = outcome.fields["scheduled_at"], outcome.fields["snoozed"]
            self._events.emit("job.snoozed", **about, next=next_at, reason=reason)
        elif "unopened" in outcome.fields:
            self._events.emit("job.unopened", **about, error=outcome.fields["unopened"])
        elif failure is None:
            self._events.emit("job.misplaced", **about)
        else:
            self._events.emit("job.failed", **about, error=_error(failure), next=outcome.fields["scheduled_at"])
            self._noted(about, failure)

    def _archived(self, about: Facts, ended: Document) -> None:
        last = ended.get("last_execution") or {"message": ended.get("reason")}
        self._noted(about, last)
        if ended["done"]:
            seconds = (last["ended_at"] - last["started_at"]).total_seconds()
            self._events.emit("job.ended", **about, seconds=seconds)
        elif ended["why"] == Why.CANCELLED:
            self._events.emit("job.cancelled", **about, **outcomes.cancelled_by(ended))
        elif ended["why"] == Why.EXPIRED:
            self._events.emit("job.expired", **about)
        else:
            error, trace = _error(last), last.get("trace")
            self._events.emit("job.failure.last", **about, why=ended["why"], error=error, trace=trace)

    def _noted(self, about: Facts, execution: Document) -> None:
        for note in execution.get("notes", ()):
            self._events.emit("job.noted", **about, note=note)


def _error(execution: Document) -> str:
    return f"{execution['class']}: {execution['message']}" if "class" in execution else str(execution.get("message"))
