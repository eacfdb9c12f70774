"""Which worker gets which job when jobs need resources and limits apply: the leader's plan, as one pure function.

`pack` takes the jobs that wait, in order (priority, then time), and gives each to a worker that serves it, has a free
slot, and whose host has free what the job needs, as long as every limit allows it. Everything is counted from scratch
in every round: what held jobs take, what this plan gives, and what is kept for those that must wait.

## Which worker

Jobs that need nothing go to the worker with the largest share of its slots free, so that load is spread. Jobs with
needs go to the fullest host that has room (best fit), so that large holes stay large; a host with something that the
job does not need, a GPU say, counts as emptier and is taken last. Within the host the largest share of free slots
decides.

## Reservation

Small jobs would starve a large one: whenever something ends, there is room for another small one, and never enough for
the large one. So the first job in order that finds no room *reserves*:

    host of 8 processors                        order: BIG needs 8, then s1, s2 ... need 1

    without   |AABBCCDD|  A ends  |s1 BBCCDD|  B ends  |s1 s2 CCDD|  ...      BIG never starts
    with      |AABBCCDD|  A ends  |.. BBCCDD|  B ends  |.... CCDD|  ...  |BIG.....|

- It reserves one host: of those that could take it if they were empty the one where least has to be freed, and then
  the same one round after round (`reserved` of the last plan; if that is forgotten, nothing worse happens than that
  it chooses again). And on that host one slot, of a worker that serves it.
- Jobs later in order may use that host only if there would still be room for the reserving job too: of every
  resource it takes, `used + its own + reserved <= capacity`. So a job of one processor may run beside a reservation of
  memory, and small jobs fill what a reservation leaves over: other resources, other hosts.
- Limits are kept for it as well, the fleet's resources among them: if its task may run once more, a later job of that
  task does not take that place. Of each limit so much is kept for one job at a time, the first.
- Each host is reserved for one job, and each job reserves one host; so the first few large jobs wait side by side.
- A job that is held back only by a limit of its task, group, key or rate reserves nothing and holds up no other job:
  its limit, not the room, decides when it starts.
- If it fits anywhere else in the meantime, it goes there, and its reservation is gone.

*The bound.* Let a job reserve a host at some moment. From then on no job behind it in order is given anything there
that it needs: not a resource it lacks (then `used + reserved > capacity` already), nor one it has (the sum above), nor
its slot. So all it waits for are the jobs that the host held at that moment (or, if it lacks a resource limited for
the fleet, that the fleet held): at most as many as there are slots, and it starts when they have ended, if not before;
where a worker prefetches, one buffer comes on top (see below). Jobs before it in order may still take its place: that
is what order means. And a job that does not reserve has, for each host that could take it, one before it in order that
does; so each gets its turn.

What is *not* promised: a job under two limits, each of which is free only while the other one is full, has no turn that
it could be sure of. To keep one limit for it while it waits for another would let a full task hold up its whole group.

## Isolated

A job whose workers died repeatedly may be the cause. It runs beside ordinary jobs, but never on a worker that holds
another such job: so after the next death it is the only one that is counted further.

## Buffers

A job that finds no free slot may wait in the buffer of a worker, where it has its turn in a moment, if it needs nothing
and no rate is to be kept: it counts against its limits from then on. So jobs with a limit flow like any others as long
as the limit has room, and in their order: not before one that can be prefetched and comes first.

The others take free slots only, and a buffer that is always full would never leave one to them. So a plan names the
workers that are to be given nothing beyond it (`drained`): those where a job waits for nothing but a slot. There the
buffer empties, which takes a moment, and then the slot is free. It is not done

- for a job that comes after one that can be prefetched: that one goes first, by way of the buffer. Else one job with a
  rate behind thousands of ordinary ones would take the buffer from all of them;
- for a job that lacks more than its slot: what it lacks may take an hour. Until then its slot is kept (`kept`) from
  whatever is not in a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from types import MappingProxyType

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.planning.hosts import (
    Amounts,
    Host,
    Place,
    Serving,
    Spot,
    WorkerRoom,
    freest,
    hosts_of,
    largest_of,
    roomiest,
    within,
)
from recruiter.domain.planning.limits import KeptFor, Limit, Meter, Reason, Start
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.reasons import HostsBusy, IsolatedBusy, NeverFits, NoWorker, SlotsBusy


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
    """A plan: which worker gets which jobs, and why the others wait."""

    hands: dict[str, list[JobId]]
    """Jobs by worker, in order."""
    waiting: Mapping[Lane, Reason]
    """By lane, why its first waiting job was not given to a worker. Computed when it is read."""
    reserved: dict[JobId, Spot]
    """For the next plan: which job waits for room where."""
    kept: dict[str, int]
    """How many slots of a worker are reserved."""
    drained: frozenset[str]
    """Workers that must be given nothing beyond this plan."""
    starts: dict[str, list[Start]]
    """The new log of every bucket with a rate of which jobs are given: to be written before they are given."""


def pack(
    candidates: Iterable[Candidate],
    places: Sequence[Place],
    capacities: Mapping[str, Needs],
    held: Sequence[AssignedJob] = (),
    limits: Sequence[Limit] = (),
    *,
    now: datetime,
    starts: Mapping[str, Sequence[Start]] = MappingProxyType({}),
    reserved: Mapping[JobId, Spot] = MappingProxyType({}),
) -> Packing:
    """The plan for these candidates, which must be in order (see `Candidate.rank`).

    `capacities` says by host what it has; what it does not name it has not. `starts` are the logs by bucket of limits
    with a rate. `reserved` is what the last plan reserved, if it is known.
    """
    plan = _Plan(places, capacities, held, Meter(limits, starts, now), _floating(limits), reserved)
    for candidate in candidates:
        plan.consider(candidate)
    return plan.result()


def never_fit(
    lanes: Iterable[Lane], places: Sequence[Place], capacities: Mapping[str, Needs], limits: Sequence[Limit]
) -> dict[Lane, NeverFits]:
    """Which of these lanes need more than any host has, or the fleet may use, of those that a worker serves."""
    plan = _Plan(places, capacities, (), Meter(limits, {}, _WHENEVER), _floating(limits), {})
    reasons = {lane: plan.hopeless(lane) for lane in lanes}
    return {lane: reason for lane, reason in reasons.items() if isinstance(reason, NeverFits)}


def _floating(limits: Iterable[Limit]) -> frozenset[str]:
    return frozenset(limit.name for limit in limits if limit.floating)


_Why = Callable[[Lane, Collection[JobId]], Reason]
"""Finds out why a job of a lane waits, given the jobs that came first and reserved."""


@dataclass(slots=True, eq=False)
class _Kind:
    """Lanes that differ in their keys only: where one finds no room, nor do the others."""

    lane: Lane
    needed: Amounts
    """What such a job takes on its host."""
    serving: Serving
    never: Reason | None
    size: float
    """By how much it makes a hole smaller."""
    crowded: bool = False
    """One has found no room."""

    @property
    def rooms(self) -> list[WorkerRoom]:
        """The workers that serve it and may take it."""
        return self.open_to(self.serving.rooms)

    def open_to(self, rooms: list[WorkerRoom]) -> list[WorkerRoom]:
        """Those of these workers that may take it: two isolated jobs never share a worker."""
        return [room for room in rooms if not room.isolated] if self.lane.isolated else rooms


class _Plan:
    """The state of one plan. All that is in it only ever gets less: what did not fit once does not fit later. So a
    lane, a host or a kind of job that was tried in vain is not tried again, and that is what makes it quick."""

    def __init__(
        self,
        places: Sequence[Place],
        capacities: Mapping[str, Needs],
        held: Sequence[AssignedJob],
        meter: Meter,
        floating: frozenset[str],
        reserved: Mapping[JobId, Spot],
    ) -> None:
        self._meter = meter
        self._floating = floating
        self._remembered = reserved
        self._hosts = hosts_of({place.host for place in places}, capacities)
        self._rooms = [
            WorkerRoom(place, self._hosts[place.host], number, place.free_slots, place.holds, spare=place.spare)
            for number, place in enumerate(places)
        ]
        self._largest = largest_of(host.capacity for host in self._hosts.values())
        self._count(held)
        for host in self._hosts.values():
            host.hole = self._size((name, host.usable[name]) for name in host.capacity)
        self._by_hole = sorted(self._hosts.values(), key=lambda host: (host.hole, host.name))
        self._most = dict(self._largest)
        self._serving: dict[tuple[int, ...], Serving] = {}
        self._serving_task: dict[tuple[str, str], Serving] = {}
        self._kinds: dict[Lane, _Kind] = {}
        self._seen: set[JobId] = {job.id for job in held}
        self._shut: set[Lane] = set()
        self._hands: dict[str, list[JobId]] = {}
        self._waiting: dict[Lane, tuple[_Why, int]] = {}
        self._reserved: dict[JobId, Spot] = {}

    def _count(self, held: Sequence[AssignedJob]) -> None:
        rooms = {room.place.worker: room for room in self._rooms}
        for job in held:
            self._meter.take(job.lane, job.id)
            host, room = self._hosts.get(job.host), rooms.get(job.worker)
            if host is not None:
                host.spend(self._needed(job.lane))
            if room is not None and job.lane.isolated:
                room.isolated = True
        for room in self._rooms:
            room.measure()

    # -- one candidate -------------------------------------------------------------------------------------------

    def consider(self, candidate: Candidate) -> None:
        lane = candidate.lane
        if lane in self._shut or candidate.id in self._seen:
            return
        self._seen.add(candidate.id)
        kind = self._kind(lane)
        if kind.never is not None:
            self._leave(lane, self._never)
        elif not self._meter.allows(lane):
            self._leave(lane, self._refusal)
        else:
            room = None if kind.crowded else self._find(kind)
            if room is not None:
                self._give(candidate, kind, room)
                return
            room = None if kind.crowded else self._find_buffer(lane, kind)
            if room is not None:
                self._buffer(candidate, room)
                return
            kind.crowded = True
            if self._reserve(candidate, kind):
                self._note(lane, self._shortage, len(self._reserved) - 1)  # the next one may reserve too
            else:
                self._leave(lane, self._shortage)

    def _leave(self, lane: Lane, why: _Why) -> None:
        """Nothing more of this lane in this plan."""
        self._note(lane, why, len(self._reserved))
        self._shut.add(lane)

    def _note(self, lane: Lane, why: _Why, reserved: int) -> None:
        """How to find out why the first of this lane waits, which comes after so many that reserved."""
        self._waiting.setdefault(lane, (why, reserved))

    def hopeless(self, lane: Lane) -> Reason | None:
        """Why a job of this lane could not start if everything were free."""
        return self._kind(lane).never

    def result(self) -> Packing:
        waiting = _Waiting(self._waiting, list(self._reserved))
        kept = {room.place.worker: room.kept for room in self._rooms if room.kept}
        drained = frozenset(room.place.worker for room in self._rooms if room.drained)
        return Packing(self._hands, waiting, self._reserved, kept, drained, self._meter.logs())

    def _find(self, kind: _Kind) -> WorkerRoom | None:
        """The room to give it, if there is one."""
        serving, needed = kind.serving, kind.needed
        if not serving.open or not within(needed, self._most) or not self._meter.suffices(kind.lane):
            return None
        if not needed:
            return freest(kind.rooms)
        for host in self._by_hole:
            rooms = serving.open.get(host.name)
            if rooms is not None and within(needed, host.usable):
                room = freest(kind.open_to(rooms))
                if room is not None:
                    return room
                if freest(rooms) is None:
                    del serving.open[host.name]
        self._most = largest_of(host.usable for host in self._by_hole)
        return None

    def _find_buffer(self, lane: Lane, kind: _Kind) -> WorkerRoom | None:
        """The room to give it where it waits for its turn. What nothing limits is dealt when the plan is made."""
        if lane.key is None and not lane.isolated and not self._meter.meters(lane):
            return None
        return roomiest(kind.rooms) if self._meter.prefetchable(lane) else None

    def _buffer(self, candidate: Candidate, room: WorkerRoom) -> None:
        self._hands.setdefault(room.place.worker, []).append(candidate.id)
        self._meter.start(candidate.lane, candidate.id)
        room.spare -= 1
        room.holds += 1
        room.isolated |= candidate.lane.isolated

    def _give(self, candidate: Candidate, kind: _Kind, room: WorkerRoom) -> None:
        self._hands.setdefault(room.place.worker, []).append(candidate.id)
        self._meter.start(candidate.lane, candidate.id)
        room.free -= 1
        room.holds += 1
        room.isolated |= kind.lane.isolated
        room.measure()
        if kind.needed:
            room.host.spend(kind.needed)
            self._shrink(room.host, kind)

    # -- reservation ---------------------------------------------------------------------------------------------

    def _reserve(self, candidate: Candidate, kind: _Kind) -> bool:
        """Keeps room for a job that found none. False if that would help no job: see above."""
        lane = candidate.lane
        if not lane.needs and not self._meter.meters(lane):
            for each in kind.rooms:
                each.queued = True
            return False  # it can be prefetched
        room = self._spot(candidate, kind) if self._meter.keepable(lane) else None
        if room is None:
            return False
        if not room.queued and room.host.lacks(kind.needed) == 0 and self._meter.suffices(lane):
            room.drained = True  # nothing is lacking but the slot
        if lane.needs:  # a job that waits only for a slot keeps nothing else
            self._meter.keep(lane, candidate.id)
        if kind.needed:
            room.host.keeper = candidate.id
            room.host.keep(kind.needed)
            self._shrink(room.host, kind)
        room.kept += 1
        room.keeper = candidate.id if room.keeper is None else room.keeper
        room.measure()
        self._reserved[candidate.id] = Spot(room.place.worker, room.host.name)
        return True

    def _spot(self, candidate: Candidate, kind: _Kind) -> WorkerRoom | None:
        """Where it should wait: where it waited before, or else where it will have to wait least."""
        needed, rooms = kind.needed, kind.rooms
        if needed:
            hosts = kind.serving.reservable = [host for host in kind.serving.reservable if host.keeper is None]
            fitting = {host.name for host in hosts if host.holds(needed)}
            rooms = [room for room in rooms if room.host.name in fitting] if fitting else []
        before = self._remembered.get(candidate.id, _NOWHERE)
        if needed:
            return min(rooms, key=lambda room: room.wait_for_room(needed, before), default=None)
        rooms = [room for room in rooms if room.kept < room.place.slots]
        return min(rooms, key=lambda room: room.wait_for_slot(before), default=None)

    # -- why it waits, asked when the plan is made ---------------------------------------------------------------

    def _never(self, lane: Lane, _: Collection[JobId]) -> Reason:
        reason = self._kind(lane).never
        assert reason is not None, lane
        return reason

    def _refusal(self, lane: Lane, first: Collection[JobId]) -> Reason:
        reason = self._meter.refusal(lane, first)
        assert reason is not None, lane
        return reason

    def _shortage(self, lane: Lane, first: Collection[JobId]) -> Reason:
        kind = self._kind(lane)
        reason = self._meter.shortage(lane, first)
        if reason is not None:
            return reason
        roomy = [room for room in kind.serving.rooms if room.host.lacks(kind.needed) == 0]
        if not roomy:
            return _lacking(kind)
        roomy = kind.open_to(roomy)
        if not roomy:
            return IsolatedBusy(len(kind.serving.rooms))
        room = next((room for room in roomy if room.free > 0), None)
        if room is None:
            return SlotsBusy(len(kind.serving.rooms))
        if room.host.keeper is not None and room.host.keeper in first and not within(kind.needed, room.host.usable):
            return KeptFor(f"room on host {room.host.name}", room.host.keeper)
        assert room.keeper is not None, (lane, room)
        return KeptFor(f"a slot of worker {room.place.worker}", room.keeper)

    # -- kinds, hosts and workers --------------------------------------------------------------------------------

    def _kind(self, lane: Lane) -> _Kind:
        kind = self._kinds.get(lane)
        if kind is None:
            kind = self._kinds[lane] = self._make(lane) if lane.key is None else self._kind(lane._replace(key=None))
        return kind

    def _make(self, lane: Lane) -> _Kind:
        serving, needed = self._serving_of(lane), self._needed(lane)
        never = self._hopeless(lane, serving, needed)
        return _Kind(lane, needed, serving, never, 0.0 if never else self._size(needed))

    def _hopeless(self, lane: Lane, serving: Serving, needed: Amounts) -> Reason | None:
        """Why it could not start if everything were free."""
        if not serving.rooms:
            return NoWorker(lane.group, lane.task)
        over = self._meter.never(lane)
        if over is not None:
            return NeverFits(lane.needs, over[0], dict(lane.needs.thousandths)[over[0]], over[1], fleet=True)
        if any(host.holds(needed) for host in serving.hosts):
            return None
        largest = largest_of(host.capacity for host in serving.hosts)
        name, amount = max(needed, key=lambda each: each[1] / (largest.get(each[0], 0) or 0.5))
        return NeverFits(lane.needs, name, amount, largest.get(name, 0))

    def _needed(self, lane: Lane) -> Amounts:
        amounts = lane.needs.thousandths
        return tuple(each for each in amounts if each[0] not in self._floating) if self._floating else amounts

    def _serving_of(self, lane: Lane) -> Serving:
        serving = self._serving_task.get((lane.group, lane.task))
        if serving is None:
            numbers = tuple(room.number for room in self._rooms if room.place.serves(lane))
            serving = self._serving.get(numbers)  # many tasks are served by the same workers
            if serving is None:
                serving = self._serving[numbers] = Serving.by([self._rooms[number] for number in numbers])
            self._serving_task[lane.group, lane.task] = serving
        return serving

    def _size(self, amounts: Iterable[tuple[str, int]]) -> float:
        return sum(amount / self._largest[name] for name, amount in amounts)

    def _shrink(self, host: Host, kind: _Kind) -> None:
        host.hole -= kind.size
        self._by_hole.sort(key=_hole)


class _Waiting(Mapping[Lane, Reason]):
    """Reasons that are computed when they are read: they rarely are, and plans are made many times a second."""

    def __init__(self, whys: Mapping[Lane, tuple[_Why, int]], reserved: Sequence[JobId]) -> None:
        self._whys = whys
        self._reserved = reserved

    def __getitem__(self, lane: Lane) -> Reason:
        why, reserved_before = self._whys[lane]
        return why(lane, self._reserved[:reserved_before])

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._whys)

    def __len__(self) -> int:
        return len(self._whys)


_NOWHERE = Spot("", "")
_WHENEVER = datetime.min.replace(tzinfo=UTC)
_hole = attrgetter("hole")


def _lacking(kind: _Kind) -> HostsBusy:
    hosts = (host for host in kind.serving.hosts if host.holds(kind.needed))
    host = min(hosts, key=lambda host: (host.lacks(kind.needed), host.name))
    name, amount = max(kind.needed, key=lambda each: host.lacks((each,)))
    return HostsBusy(name, amount, max(0, host.free.get(name, 0)), host.name)
