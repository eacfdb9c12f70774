"""Control flow: a flow is paused, resumed, cancelled or recovered as a whole.

The request is written on the flow's document, together with a marker, in one transaction. The leader's release writes
that document too, so the later transaction sees the earlier one. Then the steps are moved, as many as there
are. If this process dies in between, the leader does it when it comes to the marker.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from recruiter.domain.flow import FlowState
from recruiter.domain.job import Cancellation, JobId
from recruiter.errors import FlowNotFound, InvalidFlow
from recruiter.store.batches import ids_in_batches
from recruiter.store.codec import anew, encode_job
from recruiter.store.collections.flows import Marker, StoredFlow
from recruiter.store.database import Store
from recruiter.store.in_session import InSession
from recruiter.store.transactions import InTransaction

_MAX_STEPS_PER_TRANSACTION = 500


def pause_flow(store: Store, flow: ObjectId, now: datetime, by: str | None, reason: str | None) -> None:
    """No step of it starts from now on; running steps continue. Workers hand back steps that they hold and have not
    started, with their next heartbeat. Raises FlowNotFound, and InvalidFlow when all its steps have succeeded."""

    def write(session: InTransaction) -> int:
        found = _found(store, flow, session)
        if found.outcome is FlowState.SUCCEEDED:  # one that failed may be paused before it is recovered
            _check_goes_on(store, found, "pause", session)
        store.flows.leave([Marker(flow, all=True)], session)
        return store.flows.pause(flow, {"at": now, "by": by, "reason": reason}, session)

    holds = store.transactions.by_hand(write)
    store.flow_steps.hold(flow, holds, Cancellation(now, by, reason))
    store.flows.look_again_unless(flow, holds)
    store.roster.tell_of_pauses()


def resume_flow(store: Store, flow: ObjectId) -> None:
    """Raises FlowNotFound."""

    def write(session: InTransaction) -> None:
        _found(store, flow, session)
        store.flows.resume(flow, session)
        store.flows.leave([Marker(flow, all=True)], session)

    store.transactions.by_hand(write)
    store.roster.tell_of_pauses()


def cancel_flow(store: Store, flow: ObjectId, now: datetime, by: str | None, reason: str | None) -> int:
    """Cancels every step that has not ended; returns how many. Raises FlowNotFound, and InvalidFlow when all have. The
    first person who cancels the flow is remembered."""
    flag = {"at": now, "by": by, "reason": reason}

    def write(session: InTransaction) -> tuple[int, int]:
        found = _found(store, flow, session)
        _check_goes_on(store, found, "cancel", session)
        count = store.flow_steps.count_to_cancel(flow, session)
        if found.cancel is not None and not count:
            return 0, found.cancels
        store.flows.leave([Marker(flow, all=True)], session)
        return count, store.flows.cancel(flow, flag, session)

    count, cancels = store.transactions.by_hand(write)
    if count:
        store.flow_steps.flag(flow, flag, cancels)
    return count


def retry_flow(store: Store, flow: ObjectId, now: datetime, *, lost: bool) -> int:
    """Recovers every step that has failed or was cancelled, with `lost` including lost steps. The steps that never ran
    because of them come back by themselves. Returns how many were recovered. Raises FlowNotFound, and InvalidFlow while
    the flow is being cancelled.

    The first batch of steps lets a cancelled flow continue. If the flow is cancelled again after it, the other
    steps are left."""
    recovered = 0
    while (failed := store.flow_steps.failed(flow, _MAX_STEPS_PER_TRANSACTION, lost=lost)) or not recovered:
        some = 0
        for batch in ids_in_batches(store.archived.collection, failed, _MAX_STEPS_PER_TRANSACTION) or [[]]:
            ended = store.archived.get_some(batch, [])
            jobs = {job.id: encode_job(anew(job, now, now)) for job in ended if job.task}
            is_first = not recovered + some
            some += store.transactions.by_hand(partial(_retry_some, store, flow, jobs, is_first=is_first))
        recovered += some
        if not some:
            break
    return recovered


def _retry_some(
    store: Store, flow: ObjectId, jobs: Mapping[JobId, RawBSONDocument], session: InTransaction, *, is_first: bool
) -> int:
    if is_first:
        found = _found(store, flow, session)
        if found.cancel is not None and store.flow_steps.goes_on(flow, session):
            raise InvalidFlow(
                f"flow {found.name!r} ({flow}) is being cancelled, and some of its steps have not ended yet; "
                "recover it when it has ended (wait)"
            )
        if found.cancel is None and not jobs:
            return 0
        if found.cancel is not None:
            store.flows.lift_cancel(flow, session)
        store.flows.leave([Marker(flow, all=True)], session)
    return InSession(store, session, own=True).recover(jobs)


def _found(store: Store, flow: ObjectId, session: InTransaction) -> StoredFlow:
    found = store.flows.get_many([flow], session).get(flow)
    if found is None:
        raise FlowNotFound(f"there is no flow {flow}: it was removed with its jobs, or never existed")
    return found


def _check_goes_on(store: Store, flow: StoredFlow, verb: str, session: InTransaction) -> None:
    if not store.flow_steps.goes_on(flow.id, session):
        state = "" if flow.outcome is None else f" ({flow.outcome.value})"
        raise InvalidFlow(f"flow {flow.name!r} ({flow.id}) has ended already{state}; nothing to {verb}")
