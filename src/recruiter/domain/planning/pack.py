"""The leader's plan when jobs need resources and limits apply, as one pure function.

`pack` takes the waiting jobs in order (priority, then time), and gives each to a worker that serves it, has a free
slot, and whose host has enough free resources, as long as every limit allows it. Everything is counted from scratch in
every round: the use of held jobs, the jobs of this plan, and the amounts that are kept for waiting jobs.

## The choice of a worker

Jobs without needs go to the worker with the largest share of its slots free, so that load is spread. Jobs with needs go
to the fullest host that has room (best fit), so that large gaps stay large; a host with a resource that the job does
not need, such as a GPU, counts as emptier and is taken last. Within the host the largest share of free slots decides.

## Reservation

Small jobs would starve a large job: whenever a job ends, there is room for another small one, and never enough for the
large one. So the first job in order that finds no room *reserves*:

    host of 8 processors                        order: BIG needs 8, then s1, s2 ... need 1

    without   |AABBCCDD|  A ends  |s1 BBCCDD|  B ends  |s1 s2 CCDD|  ...      BIG never starts
    with      |AABBCCDD|  A ends  |.. BBCCDD|  B ends  |.... CCDD|  ...  |BIG.....|

- It reserves one host: of the hosts that could take it if they were empty, the host where least has to be freed, and
  then the same host round after round (`reserved` of the last plan is a hint; without it the job chooses again). And on
  that host it reserves one slot, of a worker that serves it.
- Jobs later in order may use that host only if there would still be room for the reserving job too: for every resource
  it takes, `used + its own + reserved <= capacity`. So a job of one processor may run next to a reservation of memory,
  and small jobs fill the rest: other resources, other hosts.
- Limits are kept for it as well, including the resources of the fleet: if its task may run once more, a later job of
  that task does not take that place. Each limit keeps an amount for one job at a time, the first.
- Each host is reserved for one job, and each job reserves one host; so the first few large jobs wait side by side.
- A job that is held back only by a limit of its task, group, key or rate reserves nothing and delays no other job: its
  limit, not the room, decides when it starts.
- If it fits on another host in the meantime, it goes there and gives up its reservation.

*The bound.* Suppose a job reserves a host. From then on no job behind it in order is given anything there that it
needs: not a resource it lacks (then `used + reserved > capacity` already), nor a resource it has (the sum above), nor
its slot. So it waits only for the jobs that the host held when it reserved (or, if it lacks a resource limited for the
fleet, that the fleet held): at most as many as there are slots, and it starts when they have ended, if not before. If a
worker prefetches, one buffer comes on top (see below). Jobs before it in order may still take its place: that is the
meaning of order. And if a job does not reserve, each host that could take it is reserved for an earlier job; so each
gets its turn.

There is *no* promise for a job under two limits, each of which is free only while the other one is full. To keep one
limit for it while it waits for the other would let a full task delay its whole group.

## Isolated jobs

A job whose workers died repeatedly may be the cause. It runs together with ordinary jobs, but never on a worker that
holds another isolated job: so after the next death no other isolated job is blamed.

## Buffers

A job that finds no free slot may wait in the buffer of a worker if it needs no resources and no rate limits it. It
counts against its limits from then on. So jobs with a limit flow like any others as long as the limit has room, and in
their order: not before an earlier job that can be prefetched.

The other jobs take free slots only, and a buffer that is always full would never leave them one. So a plan names the
workers that receive nothing beyond it (`drained`): workers where a job lacks only a slot. There the buffer empties
quickly, and then the slot is free. A worker is not drained

- for a job that comes after a job that can be prefetched: the earlier job goes first, through the buffer. Otherwise one
  job with a rate behind thousands of ordinary jobs would take the buffer from all of them;
- for a job that lacks more than its slot: the rest may take an hour. Until then its slot is kept (`kept`) from every
  job that is not in a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.planning.hosts import (
    Amounts,
    Host,
    Reservation,
    WorkerRoom,
    hosts_of,
    largest_of,
    within,
)
from recruiter.domain.planning.limits import KeptFor, Limit, Meter, Reason, Start
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.reasons import HostsBusy, IsolatedBusy, NeverFits, NoWorker, SlotsBusy
from recruiter.domain.planning.workers import RosterWorker


@dataclass(frozen=True, slots=True)
class Candidate:
    """A due job that no worker holds."""

    id: JobId
    lane: Lane
    priority: float
    scheduled_at: datetime

    @property
    def rank(self) -> tuple[float, datetime]:
        """Sorted by this, candidates are in the order in which they get their turn."""
        return -self.priority, self.scheduled_at


@dataclass(frozen=True, slots=True)
class AssignedJob:
    """A job that a worker holds and that counts: it has needs, is isolated, or is under a limit."""

    id: JobId
    worker: str
    host: str
    lane: Lane


@dataclass(frozen=True, slots=True)
class Packing:
    """A plan: the jobs of each worker, and the reasons of the waiting jobs."""

    assignments: dict[str, list[JobId]]
    """Jobs by worker, in order."""
    waiting: Mapping[Lane, Reason]
    """By lane, why its first waiting job was not given to a worker. Computed when it is read."""
    reserved: dict[JobId, Reservation]
    """A hint for the next plan: the places where jobs wait for room."""
    kept: dict[str, int]
    """The number of reserved slots by worker."""
    drained: frozenset[str]
    """Workers that must be given nothing beyond this plan."""
    starts: dict[str, list[Start]]
    """The new log of every bucket with a rate of which jobs are given: to be written before they are given."""


EMPTY_PLAN = Packing({}, {}, {}, {}, frozenset(), {})


def pack(
    candidates: Iterable[Candidate],
    workers: Sequence[RosterWorker],
    capacities: Mapping[str, Needs],
    held: Sequence[AssignedJob] = (),
    limits: Sequence[Limit] = (),
    *,
    now: datetime,
    starts: Mapping[str, Sequence[Start]] = MappingProxyType({}),
    reserved: Mapping[JobId, Reservation] = MappingProxyType({}),
) -> Packing:
    """The plan for these candidates, which must be in order (see `Candidate.rank`).

    `capacities` are the resources by host; a host has none that are not named. `starts` are the logs by bucket of
    limits with a rate. `reserved` are the reservations of the last plan, if they are known.
    """
    plan = _Plan(workers, capacities, held, Meter(limits, starts, now), _floating(limits), reserved)
    for candidate in candidates:
        plan.consider(candidate)
    return plan.result()


def never_fit(
    lanes: Iterable[Lane], workers: Sequence[RosterWorker], capacities: Mapping[str, Needs], limits: Sequence[Limit]
) -> dict[Lane, NeverFits]:
    """The served lanes among these that need more than any host has, or than the fleet may use."""
    plan = _Plan(workers, capacities, (), Meter(limits, {}, _WHENEVER), _floating(limits), {})
    reasons = {lane: plan.hopeless(lane) for lane in lanes}
    return {lane: reason for lane, reason in reasons.items() if isinstance(reason, NeverFits)}


def _floating(limits: Iterable[Limit]) -> frozenset[str]:
    return frozenset(limit.name for limit in limits if limit.floating)


_Why = Callable[[Lane, Collection[JobId]], Reason | None]
"""Finds out why a job of a lane waits, given the jobs that came first and reserved."""


@dataclass(slots=True, eq=False)
class _Kind:
    """Lanes that differ only in their keys: if a job of one finds no room, the others do not either."""

    lane: Lane
    needed: Amounts
    """The resources that such a job takes on its host."""
    rooms: list[WorkerRoom]
    """The workers that serve it."""
    never: Reason | None
    """Why it could not start if everything were free."""
    crowded: bool = False
    """A job of this kind has found no room. Everything in a plan only ever gets less, so neither will the next."""

    @property
    def open_rooms(self) -> list[WorkerRoom]:
        """The workers that serve it and may take it: two isolated jobs never share a worker."""
        return [room for room in self.rooms if not room.isolated] if self.lane.isolated else self.rooms

    @property
    def hosts(self) -> list[Host]:
        return list({room.host.name: room.host for room in self.rooms}.values())


class _Plan:
    """The state of one plan. Room only ever gets less: a lane or a kind of job that did not fit is not tried again."""

    def __init__(
        self,
        workers: Sequence[RosterWorker],
        capacities: Mapping[str, Needs],
        held: Sequence[AssignedJob],
        meter: Meter,
        floating: frozenset[str],
        reserved: Mapping[JobId, Reservation],
    ) -> None:
        self._meter = meter
        self._floating = floating
        self._remembered = reserved
        self._hosts = hosts_of({worker.host for worker in workers}, capacities)
        self._rooms = [
            WorkerRoom(worker, self._hosts[worker.host], number, worker.free_slots, worker.holds, spare=worker.spare)
            for number, worker in enumerate(workers)
        ]
        self._count_held(held)
        self._kinds: dict[Lane, _Kind] = {}
        self._seen: set[JobId] = {job.id for job in held}
        self._shut: set[Lane] = set()
        self._assignments: dict[str, list[JobId]] = {}
        self._waiting: dict[Lane, tuple[_Why, int]] = {}
        self._reserved: dict[JobId, Reservation] = {}

    def _count_held(self, held: Sequence[AssignedJob]) -> None:
        """Counts what held jobs use: places under limits, resources of hosts, workers for isolated jobs."""
        rooms = {room.worker.id: room for room in self._rooms}
        for job in held:
            self._meter.take(job.lane, job.id)
            host, room = self._hosts.get(job.host), rooms.get(job.worker)
            if host is not None:
                host.spend(self._needed(job.lane))
            if room is not None and job.lane.isolated:
                room.isolated = True

    # -- one candidate -------------------------------------------------------------------------------------------

    def consider(self, candidate: Candidate) -> None:
        """Gives a job to a free slot, else to a buffer. Otherwise it notes why the job waits: it can never fit, a limit
        is reached, or no worker has room. In the last case room may be kept for it.

        The reason of one job holds for all jobs of its lane, so the lane is shut. Only after a reservation the next job
        is considered, because it may reserve room too.
        """
        lane = candidate.lane
        if lane in self._shut or candidate.id in self._seen:
            return
        self._seen.add(candidate.id)
        kind = self._kind(lane)
        if kind.never is not None:
            self._shut_lane(lane, self.hopeless)
        elif not self._meter.allows(lane):
            self._shut_lane(lane, self._meter.refusal)
        elif not kind.crowded and (room := self._find_slot(kind)) is not None:
            self._give(candidate, room)
            room.free -= 1
            room.host.spend(kind.needed)
        elif not kind.crowded and (room := self._find_buffer(lane, kind)) is not None:
            self._give(candidate, room)
            room.spare -= 1  # a job in a buffer uses no resources yet
        else:
            kind.crowded = True  # no other job of this kind needs to be tried
            if self._reserve(candidate, kind):
                self._note(lane, self._shortage, len(self._reserved) - 1)  # the reservations before its own
            else:
                self._shut_lane(lane, self._shortage)

    def _give(self, candidate: Candidate, room: WorkerRoom) -> None:
        self._assignments.setdefault(room.worker.id, []).append(candidate.id)
        self._meter.start(candidate.lane, candidate.id)
        room.holds += 1
        room.isolated |= candidate.lane.isolated

    def _shut_lane(self, lane: Lane, why: _Why) -> None:
        """Nothing more of this lane in this plan."""
        self._note(lane, why, len(self._reserved))
        self._shut.add(lane)

    def _note(self, lane: Lane, why: _Why, reserved: int) -> None:
        """How to find out why the first of this lane waits, which comes after so many that reserved."""
        self._waiting.setdefault(lane, (why, reserved))

    def hopeless(self, lane: Lane, _: Collection[JobId] = ()) -> Reason | None:
        """Why a job of this lane could not start if everything were free."""
        return self._kind(lane).never

    def result(self) -> Packing:
        waiting = _WaitingReasons(self._waiting, list(self._reserved))
        kept = {room.worker.id: room.kept for room in self._rooms if room.kept}
        drained = frozenset(room.worker.id for room in self._rooms if room.drained)
        return Packing(self._assignments, waiting, self._reserved, kept, drained, self._meter.logs())

    def _find_slot(self, kind: _Kind) -> WorkerRoom | None:
        """A worker with a free slot, on a host that has enough: the fullest such host, and there the worker with the
        largest share of free slots."""
        if not self._meter.suffices(kind.lane):
            return None
        fitting = [room for room in kind.open_rooms if room.share > 0 and within(kind.needed, room.host.usable)]
        if not kind.needed:
            return max(fitting, key=lambda room: room.share, default=None)
        return min(fitting, key=lambda room: (room.host.usable_share, room.host.name, -room.share), default=None)

    def _find_buffer(self, lane: Lane, kind: _Kind) -> WorkerRoom | None:
        """The worker with the most room in its buffer. A worker is left out if another job comes first there: a job
        that can be prefetched, or a job for which a slot is kept. None for jobs that nothing limits: these are
        distributed after the plan."""
        if not self._meter.can_prefetch(lane):
            return None
        if lane.key is None and not lane.isolated and not self._meter.is_limited(lane):
            return None
        return max((room for room in kind.open_rooms if room.open), key=lambda room: room.spare, default=None)

    # -- reservation ---------------------------------------------------------------------------------------------

    def _reserve(self, candidate: Candidate, kind: _Kind) -> bool:
        """Keeps room for a job that found none. False if that would help no job: see above."""
        lane = candidate.lane
        if not lane.needs and not self._meter.is_limited(lane):
            for serving in kind.open_rooms:
                serving.queued = True
            return False  # it can be prefetched
        room = self._reservable_worker(candidate, kind) if self._meter.can_keep(lane) else None
        if room is None:
            return False
        if not room.queued and room.host.lacks(kind.needed) == 0 and self._meter.suffices(lane):
            room.drained = True  # nothing is lacking but the slot
        if lane.needs:  # a job that waits only for a slot keeps nothing else
            self._meter.keep(lane, candidate.id)
        if kind.needed:
            room.host.keeper = candidate.id
            room.host.keep(kind.needed)
        room.kept += 1
        room.keeper = candidate.id if room.keeper is None else room.keeper
        self._reserved[candidate.id] = Reservation(room.worker.id, room.host.name)
        return True

    def _reservable_worker(self, candidate: Candidate, kind: _Kind) -> WorkerRoom | None:
        """The worker for which it waits: the same as before, or else the one with the shortest wait."""
        before = self._remembered.get(candidate.id, _NOWHERE)
        if kind.needed:
            rooms = [room for room in kind.open_rooms if room.host.keeper is None and room.host.holds(kind.needed)]
            return min(rooms, key=lambda room: room.wait_for_room(kind.needed, before), default=None)
        rooms = [room for room in kind.open_rooms if room.kept < room.worker.slots]
        return min(rooms, key=lambda room: room.wait_for_slot(before), default=None)

    # -- why it waits, asked when the plan is made ---------------------------------------------------------------

    def _shortage(self, lane: Lane, first: Collection[JobId]) -> Reason:
        """Why no worker had room for a job of this lane: it was the fleet, the hosts, another isolated job, the slots,
        or a reservation of a job that came `first`."""
        kind = self._kind(lane)
        reason = self._meter.shortage(lane, first)
        if reason is not None:
            return reason
        if not any(room.host.lacks(kind.needed) == 0 for room in kind.rooms):
            return _lacking(kind)
        fitting = [room for room in kind.open_rooms if room.host.lacks(kind.needed) == 0]
        if not fitting:
            return IsolatedBusy(len(kind.rooms))
        room = next((room for room in fitting if room.free > 0), None)
        if room is None:
            return SlotsBusy(len(kind.rooms))
        if room.host.keeper is not None and room.host.keeper in first and not within(kind.needed, room.host.usable):
            return KeptFor(f"room on host {room.host.name}", room.host.keeper)
        assert room.keeper is not None, (lane, room)
        return KeptFor(f"a slot of worker {room.worker.id}", room.keeper)

    # -- kinds, hosts and workers --------------------------------------------------------------------------------

    def _kind(self, lane: Lane) -> _Kind:
        kind = self._kinds.get(lane)
        if kind is None:
            kind = self._kinds[lane] = self._make(lane) if lane.key is None else self._kind(lane._replace(key=None))
        return kind

    def _make(self, lane: Lane) -> _Kind:
        rooms = [room for room in self._rooms if room.worker.serves(lane)]
        kind = _Kind(lane, self._needed(lane), rooms, None)
        kind.never = self._hopeless(kind)
        return kind

    def _hopeless(self, kind: _Kind) -> Reason | None:
        """Why it could not start if everything were free."""
        lane, needed = kind.lane, kind.needed
        if not kind.rooms:
            return NoWorker(lane.group, lane.task)
        over = self._meter.never(lane)
        if over is not None:
            return NeverFits(lane.needs, over[0], dict(lane.needs.thousandths)[over[0]], over[1], fleet=True)
        if any(host.holds(needed) for host in kind.hosts):
            return None
        largest = largest_of(host.capacity for host in kind.hosts)
        name, amount = max(needed, key=lambda each: each[1] / (largest.get(each[0], 0) or 0.5))
        return NeverFits(lane.needs, name, amount, largest.get(name, 0))

    def _needed(self, lane: Lane) -> Amounts:
        amounts = lane.needs.thousandths
        return tuple(each for each in amounts if each[0] not in self._floating) if self._floating else amounts


class _WaitingReasons(Mapping[Lane, Reason]):
    """Reasons that are computed when they are read: they rarely are, and plans are made many times a second."""

    def __init__(self, whys: Mapping[Lane, tuple[_Why, int]], reserved: Sequence[JobId]) -> None:
        self._whys = whys
        self._reserved = reserved

    def __getitem__(self, lane: Lane) -> Reason:
        why, reserved_before = self._whys[lane]
        reason = why(lane, self._reserved[:reserved_before])
        assert reason is not None, lane
        return reason

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._whys)

    def __len__(self) -> int:
        return len(self._whys)


_NOWHERE = Reservation("", "")
_WHENEVER = datetime.min.replace(tzinfo=UTC)


def _lacking(kind: _Kind) -> HostsBusy:
    hosts = (host for host in kind.hosts if host.holds(kind.needed))
    host = min(hosts, key=lambda host: (host.lacks(kind.needed), host.name))
    name, amount = max(kind.needed, key=lambda each: host.lacks((each,)))
    return HostsBusy(name, amount, max(0, host.free.get(name, 0)), host.name)
