"""What plans promise, for any hosts, workers, limits and jobs: one plan at a time, and over many rounds.

The bound that `domain/planning/pack.py` proves is tested as it stands there: while the first in order waits with a
reservation, one of the jobs that its host held at the moment of the reservation is still running.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.planning.hosts import Reservation
from recruiter.domain.planning.limits import AtLimit, AtRate, FleetBusy, KeptFor, Limit, Meter, Rate, Reason, Start
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.pack import AssignedJob, Candidate, Packing, pack
from recruiter.domain.planning.reasons import HostsBusy, IsolatedBusy, NeverFits, NoWorker, SlotsBusy
from recruiter.domain.planning.workers import RosterWorker
from tests.depth import examples
from tests.samples import NOW

SECOND = timedelta(seconds=1)
TASKS, GROUPS, KEYS = ["t", "u", "v"], ["g", "h"], [None, None, "k:1", "k:2"]


@dataclass
class World:
    """Everything a plan is made from."""

    places: list[RosterWorker]
    capacities: dict[str, Needs]
    held: list[AssignedJob] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    starts: dict[str, list[Start]] = field(default_factory=dict)

    def plan(self, candidates: Iterable[Candidate], reserved: dict[JobId, Reservation] | None = None) -> Packing:
        return pack(
            candidates,
            self.places,
            self.capacities,
            self.held,
            self.limits,
            now=NOW,
            starts=self.starts,
            reserved=reserved or {},
        )

    def after(self, packing: Packing, candidates: Sequence[Candidate]) -> World:
        """The same world when everybody has got what the plan gives."""
        lanes = {candidate.id: candidate.lane for candidate in candidates}
        hands = {place.id: packing.assignments.get(place.id, []) for place in self.places}
        given = [AssignedJob(id, place.id, place.host, lanes[id]) for place in self.places for id in hands[place.id]]
        return World(
            [replace(place, holds=place.holds + len(hands[place.id])) for place in self.places],
            self.capacities,
            [*self.held, *given],
            self.limits,
            {**self.starts, **packing.starts},
        )

    # What a plan should know, worked out the slow way.

    def floating(self) -> set[str]:
        return {limit.name for limit in self.limits if limit.floating}

    def on_host(self, lane: Lane) -> Needs:
        return Needs.of({name: amount for name, amount in lane.needs.amounts().items() if name not in self.floating()})

    def used(self, host: str) -> Needs:
        return total(self.on_host(job.lane) for job in self.held if job.host == host)

    def has_room(self, host: str, lane: Lane) -> bool:
        needed = self.on_host(lane)
        return all(
            fits_beside(needed, self.used(host), self.capacities.get(host, Needs()), name) for name in names(needed)
        )

    def count(self, bucket: str) -> int:
        probes = (Limit(":".join(bucket.split(":")[:2]), 1),)
        return sum(limit.bucket(job.lane) == bucket for limit in probes for job in self.held)

    def isolated(self, worker: str) -> int:
        """How many isolated jobs it holds."""
        return sum(job.worker == worker and job.lane.isolated for job in self.held)


def total(all_needs: Iterable[Needs]) -> Needs:
    return sum(all_needs, Needs())


def names(needs: Needs) -> list[str]:
    return [name for name, _ in needs.thousandths]


def only(needs: Needs, name: str) -> Needs:
    return Needs(tuple(each for each in needs.thousandths if each[0] == name))


def fits_beside(needed: Needs, used: Needs, capacity: Needs, name: str) -> bool:
    return (only(needed, name) + only(used, name)).fits(capacity)


# -- any world -------------------------------------------------------------------------------------------------------

some_needs = st.builds(
    lambda proc, mem, gpu, licence: Needs.of({"licence": licence}, proc=proc, mem=mem, gpu=gpu),
    st.sampled_from([0, 0, 0.1, 1, 1.5, 4]),
    st.sampled_from([0, 0, 1, 5, 9]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([0, 0, 0, 0, 1]),
)
some_lanes = st.builds(
    Lane,
    st.sampled_from(GROUPS),
    st.sampled_from([*TASKS, "nobody's"]),
    some_needs | st.just(Needs()),
    st.sampled_from(KEYS),
    st.sampled_from([False] * 6 + [True]),
)
some_rates = st.none() | st.builds(Rate, st.integers(1, 4), st.sampled_from([5, 60]))


@st.composite
def some_limits(draw: st.DrawFn) -> list[Limit]:
    counted = st.sampled_from(["task:t", "task:u", "group:g", "key:k"])
    limits = [
        Limit(subject, draw(st.integers(0, 6)), draw(some_rates))
        for subject in draw(st.lists(counted, max_size=3, unique=True))
    ]
    if draw(st.booleans()):
        limits.append(Limit(draw(st.sampled_from(["resource:mem", "resource:proc"])), draw(st.integers(0, 20))))
    if draw(st.booleans()):
        limits.append(Limit("resource:licence", draw(st.integers(1, 3)), floating=True))
    return limits


@st.composite
def worlds(draw: st.DrawFn) -> World:
    hosts = [f"h{number}" for number in range(draw(st.integers(1, 4)))]
    capacities = {
        host: Needs.of(
            proc=draw(st.sampled_from([0, 2, 4, 8])),
            mem=draw(st.sampled_from([0, 5, 10, 20])),
            gpu=draw(st.integers(0, 2)),
        )
        for host in hosts
    }
    places = []
    for number in range(draw(st.integers(1, 6))):
        groups = draw(st.sampled_from([None, None, frozenset({"g"})]))
        tasks = draw(st.sampled_from([frozenset(TASKS), frozenset(TASKS), frozenset({"t"}), frozenset({"u", "v"})]))
        slots, buffered = draw(st.integers(1, 5)), draw(st.sampled_from([0, 0, 1, 3, 9]))
        prefetch = draw(st.sampled_from([0, 0, 0, 2, 9]))
        host = draw(st.sampled_from(hosts))
        places.append(RosterWorker(f"w{number}", groups, tasks, slots, prefetch, buffered, beats=0, host=host))
    held = []
    for number, lane in enumerate(draw(st.lists(some_lanes, max_size=6))):
        at = draw(st.integers(0, len(places) - 1))
        places[at] = replace(places[at], holds=places[at].holds + 1)
        held.append(AssignedJob(1000 + number, places[at].id, places[at].host, lane))
    limits = draw(some_limits())
    buckets = ["task:t", "task:u", "group:g", "key:k:1", "key:k:2"]
    logs = st.lists(st.tuples(st.integers(-70, 3).map(lambda ago: NOW + ago * SECOND), st.integers(1, 3)), max_size=3)
    return World(places, capacities, held, limits, {bucket: draw(logs) for bucket in buckets})


candidate_lists = st.lists(some_lanes, max_size=25).map(
    lambda lanes: [Candidate(id, lane, 0, NOW) for id, lane in enumerate(lanes)]
)


# -- one plan --------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(250), deadline=None)
@given(worlds(), candidate_lists)
def test_a_plan_keeps_every_promise(world: World, candidates: list[Candidate]) -> None:
    packing = world.plan(candidates)

    after = world.after(packing, candidates)
    check_who_got_what(world, packing, candidates)
    check_nothing_is_crossed(world, after, packing)
    check_reservations(after, packing, candidates)
    check_buffers(after, packing, candidates)
    check_reasons(after, packing, candidates)


def check_who_got_what(world: World, packing: Packing, candidates: list[Candidate]) -> None:
    lanes = {candidate.id: candidate.lane for candidate in candidates}
    given = [id for hand in packing.assignments.values() for id in hand]
    assert max(Counter(given).values(), default=1) == 1, "each job once"
    for place in world.places:
        hand = packing.assignments.get(place.id, [])
        assert len(hand) <= place.free_slots + place.spare
        assert sum(not may_wait_in_a_buffer(lanes[id], world) for id in hand) <= place.free_slots
        assert all(place.serves(lanes[id]) for id in hand)
        isolated = sum(lanes[id].isolated for id in hand)
        assert isolated == 0 or world.isolated(place.id) + isolated == 1
    for lane in set(lanes.values()):
        of_lane = [candidate.id for candidate in candidates if candidate.lane == lane]
        got = [id for id in of_lane if id in given]
        assert got == of_lane[: len(got)], "in order"
        assert (lane in packing.waiting) == (len(got) < len(of_lane)), "for all others there is a reason"


def check_nothing_is_crossed(world: World, after: World, packing: Packing) -> None:
    """Where something was above its limit before, nothing was added to it."""
    given = after.held[len(world.held) :]
    for job in given:
        for name in names(after.on_host(job.lane)):
            assert only(after.used(job.host), name).fits(after.capacities[job.host])
        for limit in world.limits:
            bucket = limit.bucket(job.lane)
            if bucket is None:
                continue
            if limit.kind == "resource":
                all_used = total(each.lane.needs for each in after.held)
                assert only(all_used, limit.name).fits(Needs.of({limit.name: limit.at_once}))
            elif limit.at_once is not None:
                assert after.count(bucket) <= limit.at_once
            if limit.rate:
                started = sum(limit.bucket(each.lane) == bucket for each in given)
                assert packing.starts[bucket] == limit.rate.noted(world.starts.get(bucket, []), NOW, started)
                assert started <= limit.rate.left(world.starts.get(bucket, []), NOW)


def check_reservations(after: World, packing: Packing, candidates: list[Candidate]) -> None:
    order = {candidate.id: number for number, candidate in enumerate(candidates)}
    lanes = {candidate.id: candidate.lane for candidate in candidates}
    given = [job for job in after.held if job.id in order]
    places = {place.id: place for place in after.places}
    with_needs = [spot.host for id, spot in packing.reserved.items() if after.on_host(lanes[id])]
    assert max(Counter(with_needs).values(), default=1) == 1, "a host is reserved for one"
    for id, (worker, host) in packing.reserved.items():
        lane, later = lanes[id], [job for job in given if order[job.id] > order[id]]
        assert id not in {job.id for job in given}
        assert places[worker].host == host
        assert places[worker].serves(lane)
        assert worker in packing.kept
        needed = after.on_host(lane)
        assert needed.fits(after.capacities[host])
        for job in later:
            for name in names(after.on_host(job.lane)) if job.host == host else ():
                assert fits_beside(needed, after.used(host), after.capacities[host], name), "room is left for it"
            if job.worker == worker:
                assert places[worker].free_slots >= 1, "and a slot"


def check_buffers(after: World, packing: Packing, candidates: list[Candidate]) -> None:
    """A worker is given nothing more only if that lets somebody start who is not behind those in its buffer."""
    places = {place.id: place for place in after.places}
    given = {id for hand in packing.assignments.values() for id in hand}
    for worker in packing.drained:
        before_it: list[Lane] = []
        for candidate in candidates:
            spot = packing.reserved.get(candidate.id)
            if spot is not None and spot.worker == worker and after.has_room(spot.host, candidate.lane):
                break
            if candidate.id not in given and not metered(candidate.lane, after):
                before_it.append(candidate.lane)
        else:
            raise AssertionError(f"nobody waits for a slot of {worker}")
        assert not any(places[worker].serves(lane) for lane in before_it)


def may_wait_in_a_buffer(lane: Lane, world: World) -> bool:
    rates = any(limit.rate for limit in world.limits if limit.bucket(lane) is not None and limit.kind != "resource")
    counted = lane.isolated or lane.key is not None or metered(lane, world)
    return not lane.needs and not rates and counted


def metered(lane: Lane, world: World) -> bool:
    return bool(lane.needs) or lane.isolated or any(limit.covers(lane) for limit in world.limits)


def check_reasons(after: World, packing: Packing, candidates: list[Candidate]) -> None:
    order = {candidate.id: number for number, candidate in enumerate(candidates)}
    lanes = {candidate.id: candidate.lane for candidate in candidates}
    given = {id for hand in packing.assignments.values() for id in hand}
    for lane, reason in packing.waiting.items():
        first = next(each for each in candidates if each.lane == lane and each.id not in given)
        assert str(reason)
        assert is_true(reason, lane, after), (reason, lane)
        # Work is conserved: but for what is kept for others, there is no place left for it.
        placed = after.plan([first]).assignments
        if isinstance(reason, KeptFor):
            assert reason.job in packing.reserved
            assert order[reason.job] < order[first.id]
            # Those after it that need less may have used up a limit that they share with it.
            held = [job for job in after.held if order.get(job.id, -1) < order[first.id]]
            placed = placed or replace(after, held=held).plan([first]).assignments
            assert placed or kept_within_a_limit(reason, lane, lanes[reason.job], after), (reason, lane)
        else:
            before_it = [each for each in candidates[: order[first.id]] if each.id not in given]
            assert not placed or left_to_others(placed, before_it, packing, after), (reason, lane)


def left_to_others(
    placed: Mapping[str, Sequence[JobId]], before_it: list[Candidate], packing: Packing, world: World
) -> bool:
    """Whether the buffer that has room for it is left to jobs that come first: to those that are prefetched as ever, or
    to one for which a slot is kept there."""
    kept = {packing.reserved[each.id].worker for each in before_it if each.id in packing.reserved} | {*packing.drained}
    prefetched = [each.lane for each in before_it if each.lane.key is None and not metered(each.lane, world)]
    return all(
        place.id in kept or any(place.serves(lane) for lane in prefetched)
        for place in world.places
        if placed.get(place.id)
    )


def kept_within_a_limit(reason: KeptFor, lane: Lane, keeper: Lane, world: World) -> bool:
    """It may lack more than that, but this is true: both are under a limit that has no more than one needs."""
    common = [limit for limit in world.limits if limit.covers(lane) and limit.bucket(lane) == limit.bucket(keeper)]
    return any(reason.what == f"what is left of {(limit.bucket(lane) or '').replace(':', ' ', 1)}" for limit in common)


def is_true(reason: Reason, lane: Lane, world: World) -> bool:
    serving = [place for place in world.places if place.serves(lane)]
    roomy = [place for place in serving if world.has_room(place.host, lane)]
    match reason:
        case NoWorker():
            return not serving
        case NeverFits(needs, resource, needed, largest, fleet):
            assert dict(needs.thousandths)[resource] == needed
            if fleet:
                return any(
                    limit.subject == f"resource:{resource}" and limit.ceiling == largest < needed
                    for limit in world.limits
                )
            return not any(world.on_host(lane).fits(world.capacities[place.host]) for place in serving)
        case AtLimit(bucket, at_once, holders, held):
            assert {job.id for job in world.held}.issuperset(holders)
            return world.count(bucket) == held >= at_once
        case AtRate(bucket, rate, next_at):
            log = world.starts[bucket]
            return rate.left(log, NOW) == 0 < rate.left(log, next_at) and next_at > NOW
        case FleetBusy(resource, needed, free, most):
            used = dict(total(job.lane.needs for job in world.held).thousandths).get(resource, 0)
            return used + needed > most and free == max(0, most - used)
        case HostsBusy(resource, needed, free, host):
            left = dict((world.capacities[host] - world.used(host)).thousandths).get(resource, 0)
            return not roomy and left == free < needed
        case SlotsBusy(workers):
            open_to_it = [p for p in roomy if not (lane.isolated and world.isolated(p.id))]
            return workers == len(serving) and not any(p.free_slots for p in open_to_it)
        case IsolatedBusy(workers):
            return lane.isolated and workers == len(serving) and all(world.isolated(p.id) for p in roomy)
        case KeptFor():
            return True  # checked by its caller
    return False


@settings(max_examples=examples(100), deadline=None)
@given(worlds(), candidate_lists, st.data())
def test_jobs_at_a_limit_change_nothing_for_other_jobs(
    world: World, candidates: list[Candidate], data: st.DataObject
) -> None:
    """Given a pile of jobs of a task that is at its limit, anywhere in the order, then all others get what they would
    get without it."""
    world.limits.append(Limit("task:full", 1))
    world.places = [replace(place, tasks=place.tasks | {"full"}) for place in world.places]
    world.held.append(AssignedJob(5000, "elsewhere", "elsewhere", Lane("g", "full", Needs.of(proc=1))))
    pile = data.draw(st.lists(st.tuples(st.integers(0, len(candidates)), some_needs), min_size=1, max_size=10))
    mixed = list(candidates)
    for number, (at, needs) in enumerate(pile):
        mixed.insert(at, Candidate(9000 + number, Lane("h", "full", needs), 0, NOW))

    without, with_pile = world.plan(candidates), world.plan(mixed)

    assert (with_pile.assignments, with_pile.reserved) == (without.assignments, without.reserved)
    assert (with_pile.kept, with_pile.drained) == (without.kept, without.drained)


@settings(max_examples=examples(100), deadline=None)
@given(worlds(), candidate_lists)
def test_a_lane_is_read_no_further_than_its_limits_allow(world: World, candidates: list[Candidate]) -> None:
    """What `Meter.room` says for a lane is enough: more of its jobs would change nothing but who waits."""
    meter = Meter(world.limits, world.starts, NOW)
    for job in world.held:
        meter.take(job.lane, job.id)

    packing = world.plan(candidates)

    lanes = {candidate.id: candidate.lane for candidate in candidates}
    got = Counter(lanes[id] for hand in packing.assignments.values() for id in hand)
    assert all(count <= meter.room(lane) for lane, count in got.items())


# -- many rounds -----------------------------------------------------------------------------------------------------


@dataclass
class Task:
    candidate: Candidate
    arrives: int
    lasts: int


class Fleet:
    """Rounds of a leader, and workers that take their time."""

    def __init__(self, world: World, tasks: Sequence[Task], forgets: random.Random | None = None) -> None:
        self.world = world
        self.tasks = {task.candidate.id: task for task in tasks}
        self.waiting = sorted(tasks, key=lambda task: task.arrives)
        self.ends: dict[JobId, int] = {}
        self.reserved: dict[JobId, Reservation] = {}
        self.forgets = forgets
        self.round = 0

    def step(self) -> tuple[Packing, list[Candidate]]:
        now = NOW + self.round * SECOND
        ended = {id for id, at in self.ends.items() if at <= self.round}
        self.world.held = [job for job in self.world.held if job.id not in ended]
        holds = Counter(job.worker for job in self.world.held)
        self.world.places = [replace(place, holds=holds[place.id]) for place in self.world.places]
        due = [task.candidate for task in self.waiting if task.arrives <= self.round]
        due.sort(key=lambda candidate: candidate.rank)
        remembered = {} if self.forgets and self.forgets.random() < 0.3 else self.reserved
        packing = pack(
            due,
            self.world.places,
            self.world.capacities,
            self.world.held,
            self.world.limits,
            now=now,
            starts=self.world.starts,
            reserved=remembered,
        )
        self._apply(packing, due)
        return packing, due

    def _apply(self, packing: Packing, due: list[Candidate]) -> None:
        before = World(self.world.places, self.world.capacities, self.world.held, self.world.limits, {})
        after = before.after(packing, due)
        self.world.held, self.world.places = after.held, after.places
        self.world.starts.update(packing.starts)
        given = {id for hand in packing.assignments.values() for id in hand}
        self.waiting = [task for task in self.waiting if task.candidate.id not in given]
        self.ends.update({id: self.round + self.tasks[id].lasts for id in given})
        self.reserved = packing.reserved
        self.round += 1


@st.composite
def fleets(draw: st.DrawFn, limits: Sequence[Limit], forgetful: bool) -> Fleet:
    """Three hosts of two or three sizes, and a few dozen jobs that come over time."""
    seed = random.Random(draw(st.integers(0, 2**32)))
    middle = draw(st.sampled_from([4, 8]))
    capacities = {"h1": Needs.of(proc=2, mem=8), "h2": Needs.of(proc=middle, mem=2 * middle)}
    capacities["h3"] = Needs.of(proc=8, mem=16, gpu=1)
    tasks = frozenset(TASKS)
    places = [
        RosterWorker("w1", None, tasks, 3, 0, 0, beats=0, host="h1"),
        RosterWorker("w2", None, tasks, 4, 0, 0, beats=0, host="h2"),
        RosterWorker("w3", None, tasks, 4, 0, 0, beats=0, host="h3"),
        RosterWorker("w4", None, frozenset({"t"}), 2, 0, 0, beats=0, host="h3"),
    ]
    jobs = []
    for id in range(draw(st.integers(10, 60))):
        large = seed.random() < 0.15
        needs = Needs.of(
            proc=seed.choice([4, 6, 8] if large else [0, 0.5, 1, 2]),
            mem=seed.choice([8, 12, 16] if large else [0, 1, 2, 4]),
            gpu=1 if seed.random() < 0.1 else 0,
        )
        lane = Lane(seed.choice(GROUPS), seed.choice(TASKS), needs, seed.choice(KEYS), seed.random() < 0.05)
        arrives = seed.randrange(20)
        moment = NOW + arrives * SECOND
        jobs.append(Task(Candidate(id, lane, 0, moment), arrives, seed.choice([1, 1, 2, 3, 10])))
    return Fleet(World(places, capacities, [], list(limits), {}), jobs, seed if forgetful else None)


ALL_KINDS = [Limit("task:t", 3), Limit("group:g", 4, Rate(3, 4)), Limit("key:k", 1), Limit("resource:proc", 9)]


@settings(max_examples=examples(30), deadline=None)
@given(fleets(ALL_KINDS, forgetful=True))
def test_everything_that_can_ever_run_ends(fleet: Fleet) -> None:
    """With limits of every kind, under leaders that come and go: nothing waits for ever, no limit is ever crossed."""
    while any(task.arrives >= fleet.round for task in fleet.waiting) or fleet.waiting:
        packing, due = fleet.step()
        used = {host: fleet.world.used(host) for host in fleet.world.capacities}
        assert all(needs.fits(fleet.world.capacities[host]) for host, needs in used.items())
        assert total(used.values()).fits(Needs.of(proc=9, mem=99, gpu=9)), "the fleet may use so much"
        assert fleet.world.count("task:t") <= 3
        assert fleet.world.count("group:g") <= 4
        assert max(fleet.world.count("key:k:1"), fleet.world.count("key:k:2")) <= 1
        for place in fleet.world.places:
            assert place.holds <= place.slots
            assert fleet.world.isolated(place.id) <= 1
        if (
            due
            and len(packing.waiting) == len({each.lane for each in due})
            and not packing.assignments
            and not fleet.world.held
        ):
            reasons = [packing.waiting[each.lane] for each in due]
            if all(isinstance(reason, NeverFits) for reason in reasons) and len(due) == len(fleet.waiting):
                break
        assert fleet.round < 2000, [packing.waiting[each.lane] for each in due]


@settings(max_examples=examples(60), deadline=None)
@given(fleets([Limit("task:u", 2), Limit("key:k", 1)], forgetful=False))
def test_a_large_job_waits_only_for_what_its_host_held_when_it_reserved(fleet: Fleet) -> None:
    """The bound: no job behind the first in order ever takes what it waits for, however many come."""
    awaited: dict[JobId, tuple[str, set[JobId]]] = {}
    while fleet.waiting and fleet.round < 1000:
        packing, due = fleet.step()
        running = {job.id: job for job in fleet.world.held}
        hopeful = [
            each for each in due if each.id not in running and not isinstance(packing.waiting[each.lane], NeverFits)
        ]
        first = hopeful[0] if hopeful else None
        for id in awaited.keys() - ({first.id} if first else set()):
            del awaited[id]
        if first is None or first.id not in packing.reserved:
            if not hopeful and all(task.arrives < fleet.round for task in fleet.waiting):
                break
            continue
        spot = packing.reserved[first.id]
        if first.id not in awaited:
            awaited[first.id] = (spot.host, {id for id, job in running.items() if job.host == spot.host})
            slots = sum(place.slots for place in fleet.world.places if place.host == spot.host)
            assert len(awaited[first.id][1]) <= slots
        host, held_then = awaited[first.id]
        assert spot.host == host, "it stays where it waits"
        assert held_then & running.keys(), (first, packing.waiting[first.lane])
    assert fleet.round < 1000
