"""Control flow: a flow is paused, resumed, cancelled or retried as a whole.

What is wanted is written on the flow's document, together with a marker, in one transaction; the leader's release
writes that document too, so one of the two waits for the other. Then the steps are moved, as many as there are. If this
process dies in between, the leader does it when it comes to the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from bson import ObjectId

from recruiter.errors import FlowNotFound, InvalidFlow
from recruiter.store.codec import Document, anew, encode_job
from recruiter.store.collections.flows import Flow, Marker
from recruiter.store.database import Store
from recruiter.store.transactions import InTransaction

_AT_ONCE = 500


def pause_flow(store: Store, flow: ObjectId, now: datetime, by: str | None, reason: str | None) -> None:
    """No step of it starts from now on; those that run go on. Workers hand back those that they hold and have not
    started, with their next heartbeat. Raises FlowNotFound."""

    def write(session: InTransaction) -> int | None:
        holds = store.flows.pause(flow, {"at": now, "by": by, "reason": reason}, session)
        if holds is not None:
            store.flows.leave([Marker(flow, all=True)], session)
        return holds

    holds = store.transactions.by_hand(write)
    if holds is None:
        raise _not_found(flow)
    store.flow_steps.hold(flow, holds)
    store.flows.look_again_unless(flow, holds)
    store.roster.tell_of_pauses()


def resume_flow(store: Store, flow: ObjectId) -> None:
    """Raises FlowNotFound."""
    _ask(store, flow, {}, ("paused",))
    store.roster.tell_of_pauses()


def cancel_flow(store: Store, flow: ObjectId, now: datetime, by: str | None, reason: str | None) -> int:
    """Cancels every step that has not ended; returns how many. Raises FlowNotFound, and InvalidFlow when all have."""
    flag = {"at": now, "by": by, "reason": reason}

    def check(found: Flow, goes_on: bool) -> None:
        if not goes_on:
            state = "" if found.outcome is None else f" ({found.outcome.value})"
            raise InvalidFlow(f"flow {found.name!r} ({flow}) has ended already{state}; nothing to cancel")

    _ask(store, flow, {"cancel": flag}, ("ended",), check)  # a former end: it goes on, and ends anew
    return store.flow_steps.flag(flow, flag)


def retry_flow(store: Store, flow: ObjectId, now: datetime, *, lost: bool) -> int:
    """Recovers every step that has failed or was cancelled, with `lost` also those that were lost; what never ran
    because of it comes back by itself. Returns how many were recovered. Raises FlowNotFound, and InvalidFlow while the
    flow is being cancelled."""

    def check(found: Flow, goes_on: bool) -> None:
        if found.cancel is not None and goes_on:
            raise InvalidFlow(
                f"flow {found.name!r} ({flow}) is being cancelled, and some of its steps have not ended yet; "
                "retry it when it has ended (wait)"
            )

    _ask(store, flow, {}, ("paused",), check, go_on=True)
    store.roster.tell_of_pauses()
    recovered = 0
    while failed := store.flow_steps.failed(flow, _AT_ONCE, lost=lost):
        ended = store.archived.get_many(failed).values()
        jobs = {job.id: encode_job(anew(job, now, now)) for job in ended if job.task}
        some = store.transactions.recover(jobs, again=False) if jobs else 0
        recovered += some
        if not some:
            break
    return recovered


Check = Callable[[Flow, bool], None]
"""Called with the flow, and whether one of its steps waits or runs. Raises what speaks against it."""


def _ask(
    store: Store,
    flow: ObjectId,
    fields: Document,
    unset: Sequence[str] = (),
    check: Check | None = None,
    *,
    go_on: bool = False,
) -> None:
    def write(session: InTransaction) -> bool:
        if check is not None and (found := store.flows.get_many([flow], session).get(flow)) is not None:
            check(found, store.flow_steps.goes_on(flow, session))
        if go_on:
            store.flows.go_on_after_cancel([flow], session)
        there = store.flows.set_flag(flow, fields, unset, session)
        if there:
            store.flows.leave([Marker(flow, all=True)], session)
        return there

    if not store.transactions.by_hand(write):
        raise _not_found(flow)


def _not_found(flow: ObjectId) -> FlowNotFound:
    return FlowNotFound(f"there is no flow {flow}: it was removed with its jobs, or never existed")
