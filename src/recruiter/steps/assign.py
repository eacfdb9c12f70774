"""Assign: one round of the leader. Every round starts from the roster.

Most lanes are free: their jobs may run on every worker that serves them. One query finds the next jobs of all of them,
and they are distributed in turn (domain/planning/workers.py). A lane is *limited* if its jobs need resources of their
host, count against a limit, or are isolated. These jobs are planned one by one (domain/planning/pack.py), together with
the free jobs that compete for the same slots. Then the buffers of the workers are filled from the free lanes.

If tenants share a group (domain/planning/fair.py), each round also asks for the next jobs of each owner, and puts the
jobs of the group into turns.

On an idle system `assign_new` gives new jobs to workers between two rounds, from the events of their inserts
(domain/planning/arrivals.py explains why that is safe). The other new jobs wait for the next round.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.names import ASIDE, MARKED_LANE, group_and_task
from recruiter.domain.planning.arrivals import Arrival, Vacancies, is_free
from recruiter.domain.planning.fair import By, Tenant, TurnsTaken, take_turns
from recruiter.domain.planning.hosts import Reservation
from recruiter.domain.planning.limits import Meter
from recruiter.domain.planning.lookahead import Lookahead
from recruiter.domain.planning.pack import EMPTY_PLAN, Candidate, Packing
from recruiter.domain.planning.prefetch import seconds_until_room
from recruiter.domain.planning.rules import Rules
from recruiter.domain.planning.situation import Situation
from recruiter.domain.planning.workers import RosterWorker, WorkerPool, pools
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.store.database import Store

MAX_ASSIGNED_PER_ROUND = 2000
"""With more jobs the write would be slow, and workers would receive the first jobs late."""
MAX_JOBS_PER_LIMITED_LANE = 100
MAX_OWNERS_PER_ROUND = 200
"""Maximum number of owners whose jobs a round reads for shared groups; of more owners, a random sample."""
MAX_MALFORMED_PER_ROUND = 20


@dataclass(frozen=True, slots=True)
class Round:
    """The effects of a round, and the facts that decide when the next one is due."""

    at: datetime
    """The time that decided which jobs were due."""
    roster: tuple[RosterWorker, ...]
    lanes: tuple[str, ...] | None
    """The lanes that have jobs; None when the round did not ask: there was no room, or the jobs were known."""
    given: Mapping[str, int] = field(default_factory=dict)
    """The number of jobs that each worker was given."""
    refused: bool = False
    """A worker did not take its jobs: it has left, or it has seen a newer term."""
    more: bool = False
    """There may be jobs that could be assigned immediately: the next round should come soon."""
    exhausted: bool = False
    """No due job is left that a worker could take now, or later when it has more room: from now on new jobs may be
    given from the events of their inserts."""
    limited: int = 0
    """The number of limited lanes."""
    reserved: Mapping[JobId, Reservation] = field(default_factory=dict)
    """The jobs for which room is kept: a hint for the next round."""
    unreadable: Sequence[Unreadable] = ()
    """Entries of the roster that cannot be read."""
    malformed: Sequence[Unreadable] = ()
    """Jobs that cannot be given to a worker."""
    marked: bool = False
    """Whether there were markers of flows."""

    @property
    def assigned(self) -> int:
        return sum(self.given.values())

    @property
    def roster_now(self) -> list[RosterWorker]:
        """The roster with the jobs that this round has assigned."""
        return [replace(worker, holds=worker.holds + self.given.get(worker.id, 0)) for worker in self.roster]


def assign(
    store: Store,
    term: int,
    now: datetime,
    rules: Rules | None = None,
    *,
    must_query: bool = True,
    reserved: Mapping[JobId, Reservation] | None = None,
    is_quiet: Callable[[RosterWorker], bool] = lambda _: False,
    turns: TurnsTaken | None = None,
    lookahead: Lookahead | None = None,
) -> Round:
    """Reads the roster, finds due jobs that no worker holds, and gives them to workers that have room.

    Without `must_query` it does not query the waiting jobs when no worker could take one, or when the jobs that an
    earlier round has found (`lookahead`) fill all the room. A quiet worker receives nothing, like a draining worker.
    The leader passes from round to round: `reserved`, the jobs for which room is kept; `turns`, the turns that each
    tenant has had; and `lookahead`. The last two change here.
    Raises StoreError when the outcome is unknown; then nothing else may be assigned with this term.
    """
    rules = rules or Rules()
    lookahead = Lookahead() if lookahead is None else lookahead
    entries = store.roster.read()
    roster = tuple(replace(worker, draining=True) if is_quiet(worker) else worker for worker in entries)
    open_pools = pools(roster)
    # The facts on which jobs found ahead depend. A function, because each assignment moves the fence time among them:
    # they are compared before the assignment, and kept after it.
    snapshot = partial(_snapshot, store, term, rules, open_pools)
    idle_round = Round(now, roster, lanes=None, reserved=reserved or {}, unreadable=entries.unreadable)
    if not must_query:
        if rules.blocked or not open_pools:
            return idle_round
        round = _from_lookahead(idle_round, store, term, lookahead, open_pools, snapshot)
        if round is not None:
            return round
    # Held jobs are read after the roster and before waiting jobs. Only this leader adds to them: a free job stays free.
    held = store.roster.held() if entries.unreadable or any(worker.holds for worker in roster) else set[JobId]()
    found = store.due_jobs.lanes_to_plan()
    lanes = tuple(lane for lane in found if lane != MARKED_LANE)
    round = replace(idle_round, lanes=lanes, marked=MARKED_LANE in found)
    if rules.blocked:
        return round  # the lanes are only reported
    planner = _Planner(store, Situation(roster, held, rules, now), lanes, TurnsTaken() if turns is None else turns)
    if found.unreadable:
        planner.malformed += store.due_jobs.in_lanes(found.unreadable, MAX_MALFORMED_PER_ROUND)
    return _plan_and_assign(round, store, term, planner, lookahead, snapshot)


def _from_lookahead(
    round: Round,
    store: Store,
    term: int,
    lookahead: Lookahead,
    open_pools: Sequence[WorkerPool],
    snapshot: Callable[[], object],
) -> Round | None:
    """Assigns jobs that an earlier round has found beyond its room, without a query. None if they do not fill the room
    now, or if the snapshot has changed since: another write may have assigned them."""
    if len(open_pools) != 1:
        return None  # jobs are found ahead for a single pool only
    pool = open_pools[0]
    jobs = lookahead.take(_room(pool), snapshot(), round.at)
    if not jobs:
        return None
    assignments = pool.distribute(jobs)
    refused = not store.roster.assign(assignments, term)
    lookahead.continue_from(None if refused else snapshot())  # a new one: this write has moved the fence time
    # It did not ask whether further jobs wait.
    return replace(round, given=_counts(assignments), refused=refused, more=True)


def _plan_and_assign(
    round: Round,
    store: Store,
    term: int,
    planner: _Planner,
    lookahead: Lookahead,
    snapshot: Callable[[], object],
) -> Round:
    """Assigns jobs of the lanes that the round has found: first jobs of limited lanes, which need a plan, together with
    the free jobs that compete for the same slots; then jobs of free lanes fill the room that is left."""
    packing = planner.plan_limited(round.reserved)
    # The buffer of a drained worker must empty: a planned job waits for one of its slots.
    not_drained = [worker for worker in round.roster if worker.id not in packing.drained]
    beyond_room = planner.fill([_with_plan(worker, packing) for worker in not_drained], lookahead)
    if packing.starts:
        # Before the assignment: if that fails, fewer jobs start than allowed, never more.
        store.limits.note_starts(packing.starts, term)
    refused = bool(planner.assignments) and not store.roster.assign(planner.assignments, term, planner.limited_jobs)
    planner.count_turns()  # also if a worker refused: a tenant that counts a turn too many is harmless
    lookahead.keep(beyond_room, None if refused else snapshot(), round.at)
    # Each of these means that a due job was seen and not given, or that room is kept for it.
    some_may_wait = planner.is_full or planner.has_candidates or packing.reserved or packing.kept or packing.drained
    return replace(
        round,
        given=_counts(planner.assignments),
        refused=refused,
        more=planner.is_full or bool(planner.limited_lanes),
        exhausted=not some_may_wait,
        limited=len(planner.limited_lanes),
        reserved=dict(packing.reserved),
        malformed=planner.malformed,
    )


def _counts(assignments: Mapping[str, Sequence[JobId]]) -> dict[str, int]:
    return {worker: len(jobs) for worker, jobs in assignments.items()}


def _room(pool: WorkerPool) -> int:
    return min(pool.room, MAX_ASSIGNED_PER_ROUND)


def _snapshot(store: Store, term: int, rules: Rules, open_pools: Sequence[WorkerPool]) -> object:
    """The facts on which jobs found ahead depend (domain/planning/lookahead.py); None when they must not be kept: the
    fence time is unknown, or workers of several kinds have room."""
    fence_time = fence_time_of(store)
    return (term, fence_time, rules, open_pools[0].kind) if fence_time and len(open_pools) == 1 else None


def _with_plan(worker: RosterWorker, packing: Packing) -> RosterWorker:
    """The worker after the plan: it holds the planned jobs, and its slots that are kept for other jobs count as
    taken."""
    taken = len(packing.assignments.get(worker.id, ())) + packing.kept.get(worker.id, 0)
    return replace(worker, holds=worker.holds + taken) if taken else worker


class _Planner:
    """The jobs that a round gives to workers."""

    def __init__(self, store: Store, situation: Situation, lanes: Iterable[str], turns: TurnsTaken) -> None:
        self._store = store
        self._situation = situation
        self._rules = situation.rules
        self._now = situation.now
        self._taken = set(situation.held)
        """Jobs that are held, or that this round assigns."""
        self._fair = _FairOrder(store, situation, turns)
        self._meter = situation.meter()
        for job in situation.holders:
            self._meter.take(job.lane, job.id)
        open_lanes = [lane for lane in lanes if self._rules.pauses(group_and_task(lane)[0]) is None]
        self.limited_lanes = [
            lane for lane in open_lanes if lane not in ASIDE and self._meter.needs_planning(Lane.parse(lane))
        ]
        self._free_lanes = [lane for lane in open_lanes if lane not in set(self.limited_lanes)]
        self.assignments: dict[str, list[JobId]] = {}
        self.limited_jobs: dict[str, list[tuple[JobId, str]]] = {}
        """The assigned jobs that count, with their lanes."""
        self.malformed: list[Unreadable] = []
        self.has_candidates = False
        """Whether jobs of limited lanes waited when the round began."""
        self.is_full = False
        """Whether free lanes may have more jobs than the workers had room for."""

    # -- limited lanes -------------------------------------------------------------------------------------------

    def plan_limited(self, reserved: Mapping[JobId, Reservation]) -> Packing:
        """Plans the jobs of the limited lanes, and the free jobs that compete with them. Notes them in `assignments`,
        and the jobs that count in `limited_jobs`."""
        if not self.limited_lanes:
            return EMPTY_PLAN
        candidates = self._candidates()
        packing = self._situation.plan(candidates, reserved)
        self.has_candidates = bool(candidates)
        lane_of = {candidate.id: str(candidate.lane) for candidate in candidates}
        limited = set(self.limited_lanes)
        for worker, jobs in packing.assignments.items():
            self.assignments[worker] = list(jobs)
            self.limited_jobs[worker] = [(job, lane_of[job]) for job in jobs if lane_of[job] in limited]
            self._taken.update(jobs)
        return packing

    def _candidates(self) -> list[Candidate]:
        """The next jobs of the limited lanes, and the free jobs that compete with them for the same slots."""
        wanted = self._wanted_of_each_lane()
        if not wanted:
            return []
        # The query excludes the held jobs that count against limits. Other held jobs are filtered out below.
        found = self._store.due_jobs.candidates_of_each(wanted, self._now, {job.id for job in self._situation.holders})
        self.malformed += found.unreadable
        limited = [candidate for candidate in found if candidate.id not in self._taken]
        in_order = sorted([*limited, *self._rivals(limited)], key=lambda candidate: candidate.rank)
        free_slots = sum(worker.free_slots for worker in self._situation.workers)
        return self._fair.ordered(in_order, wanted, max(free_slots, 1), self._taken)

    def _wanted_of_each_lane(self) -> dict[str, int]:
        """The number of jobs to read of each limited lane: as many as could start, or wait in a buffer, but at least
        one, because it may need a reservation. Lanes at their limit, and lanes that no worker serves, are left out."""
        workers = self._situation.workers
        slots = sum(worker.free_slots for worker in workers)
        buffers = sum(worker.spare for worker in workers)
        wanted: dict[str, int] = {}
        for text in self.limited_lanes:
            lane = Lane.parse(text)
            places = slots + buffers if self._meter.can_prefetch(lane) else slots
            most = min(self._meter.room(lane), max(places, 1), MAX_JOBS_PER_LIMITED_LANE)
            if most > 0 and any(worker.serves(lane) for worker in workers):
                wanted[text] = most
        return wanted

    def _rivals(self, candidates: Sequence[Candidate]) -> Iterable[Candidate]:
        """The next jobs of the free lanes on workers that serve a candidate: one for each free slot, and the one behind
        them. A slot is not kept for a limited job while an ordinary job comes first."""
        lanes = {candidate.lane for candidate in candidates}
        alike: dict[object, list[RosterWorker]] = {}
        for worker in self._situation.workers:
            alike.setdefault((worker.groups, worker.tasks), []).append(worker)
        rivals: dict[JobId, Candidate] = {}
        for workers in alike.values():
            served = [lane for lane in self._free_lanes if workers[0].serves(lane)]
            if served and any(workers[0].serves(lane) for lane in lanes):
                most = min(1 + sum(worker.free_slots for worker in workers), MAX_ASSIGNED_PER_ROUND)
                found = self._store.due_jobs.candidates(served, self._now, most, self._taken)
                self.malformed += found.unreadable
                rivals.update((candidate.id, candidate) for candidate in found)
        return rivals.values()

    # -- free lanes ----------------------------------------------------------------------------------------------

    def fill(self, workers: Iterable[RosterWorker], lookahead: Lookahead) -> Sequence[JobId]:
        """Fills these workers from the free lanes. Returns jobs that were found beyond their room, for the next rounds:
        only if one pool has room, and nothing is limited or shared."""
        open_pools = pools(workers)
        looks_ahead = len(open_pools) == 1 and not self.limited_lanes and not self._rules.fair
        beyond_room: Sequence[JobId] = ()
        for pool in open_pools:
            room, lanes = _room(pool), pool.lanes(self._free_lanes)
            if not lanes:
                continue
            found = self._due(lanes, lookahead.wanted(len(lanes), room) if looks_ahead else room)
            self.malformed += found.unreadable
            self.is_full |= len(found) + len(found.unreadable) >= room
            jobs = found[:room]
            if looks_ahead:
                beyond_room = found[room:]
            self._taken.update(jobs)
            for worker, ids in pool.distribute(jobs).items():
                self.assignments.setdefault(worker, []).extend(ids)
        return beyond_room

    def _due(self, lanes: Sequence[str], most: int) -> Parsed[JobId]:
        if not any(group_and_task(lane)[0] in self._rules.fair for lane in lanes):
            return self._store.due_jobs.due(lanes, self._now, most, self._taken)
        found = self._store.due_jobs.candidates(lanes, self._now, most, self._taken)
        in_order = sorted(found, key=lambda candidate: candidate.rank)
        in_turns = self._fair.ordered(in_order, lanes, most, self._taken)
        return Parsed((candidate.id for candidate in in_turns[:most]), found.unreadable)

    def count_turns(self) -> None:
        self._fair.count(job for jobs in self.assignments.values() for job in jobs)


class _FairOrder:
    """Puts the jobs of shared groups into turns."""

    def __init__(self, store: Store, situation: Situation, turns: TurnsTaken) -> None:
        self._store = store
        self._now = situation.now
        self._shares = situation.rules.fair
        self._turns = turns
        self._tenants: dict[JobId, Tenant] = {}
        """The tenants of the jobs of shared groups that were read."""

    def ordered(
        self, candidates: Sequence[Candidate], lanes: Iterable[str], most: int, taken: set[JobId]
    ) -> list[Candidate]:
        """The candidates in order, with the jobs of shared groups in turns, and at least one job of each owner."""
        if not self._shares:
            return list(candidates)
        by_id = {candidate.id: candidate for candidate in candidates}
        by_id |= {candidate.id: candidate for candidate in self._of_each_owner(lanes, most, taken)}
        lanes_and_owners = self._store.due_jobs.owners_of({*by_id, *taken})
        tenants = {id: self._tenant(*lanes_and_owners.get(id, ("", ""))) for id in by_id}  # a job may have just ended
        held_by_tenant = Counter(
            (group_and_task(lane)[0], self._tenant(lane, owner))
            for id, (lane, owner) in lanes_and_owners.items()
            if id not in by_id
        )
        self._tenants |= {
            id: (candidate.lane.group, tenants[id])
            for id, candidate in by_id.items()
            if candidate.lane.group in self._shares
        }
        in_order = sorted(by_id.values(), key=lambda candidate: candidate.rank)
        return take_turns(in_order, self._shares, lambda candidate: tenants[candidate.id], held_by_tenant, self._turns)

    def _of_each_owner(self, lanes: Iterable[str], most: int, taken: set[JobId]) -> Iterable[Candidate]:
        """The next jobs of each owner: a query by priority may return the jobs of a single owner. Twice as many as can
        be given, because some owners have few."""
        by_owner = [lane for lane in lanes if self._is_shared_by_owner(lane)]
        if not by_owner or most <= 0:
            return ()
        owners = self._store.due_jobs.owners()
        if len(owners) > MAX_OWNERS_PER_ROUND:
            owners = random.sample(owners, MAX_OWNERS_PER_ROUND)
        of_each = max(1, 2 * most // max(1, len(owners)))
        return self._store.due_jobs.candidates_of_owners(owners, by_owner, self._now, of_each, taken)

    def count(self, assigned: Iterable[JobId]) -> None:
        """Remembers which tenants have been given jobs, for the next rounds. The tenants are known from `ordered`."""
        for id in assigned:
            if id in self._tenants:
                group, tenant = self._tenants[id]
                self._turns.count(group, tenant, self._shares[group].weight(tenant))

    def _is_shared_by_owner(self, lane: str) -> bool:
        share = self._shares.get(group_and_task(lane)[0])
        return share is not None and share.by is By.OWNER

    def _tenant(self, lane: str, owner: str) -> str:
        return owner if self._is_shared_by_owner(lane) else Lane.parse(lane).key or ""


def recount(store: Store, term: int, rules: Rules, now: datetime) -> None:
    """Stores which held jobs count against a limit. Call this when the limits have changed."""
    meter = Meter(rules.limits, rules.starts, now)
    noted = {worker.id: {job for job, _ in worker.limited} for worker in store.roster.read()}
    holders = store.roster.holders()
    lanes = store.due_jobs.lanes_of({job for jobs in holders.values() for job in jobs})
    for worker, jobs in holders.items():
        known = noted.get(worker, set())
        entries = [
            (job, lanes[job])
            for job in jobs
            if job in lanes and job not in known and meter.is_limited(Lane.parse(lanes[job]))
        ]
        if entries:
            store.roster.meter(worker, entries, term)


def lacks_takers(round: Round) -> bool:
    """Whether jobs may wait that no worker could take: then the leader watches for workers that join or make room."""
    if round.lanes is None or round.limited:
        return True  # it did not ask which lanes have jobs, or limits hold some back
    taken = {lane for pool in pools(round.roster_now) for lane in pool.lanes(round.lanes)}
    return not taken.issuperset(lane for lane in round.lanes if lane not in ASIDE)


def until_room(round: Round) -> float:
    """The expected seconds until the first full worker takes more jobs; 0 if no worker is full."""
    full = (worker for worker in round.roster_now if worker.ready and not worker.draining and not worker.room)
    return min((seconds_until_room(worker.holds, worker.slots, worker.prefetch) for worker in full), default=0.0)


def unserved(round: Round) -> set[tuple[str, str]]:
    """Group and task of waiting jobs that no worker on the roster serves."""
    waiting = (lane for lane in round.lanes or () if lane not in ASIDE)
    return {group_and_task(lane) for lane in waiting if not any(worker.serves(lane) for worker in round.roster)}


def assign_new(
    store: Store,
    term: int,
    now: datetime,
    arrivals: Sequence[Arrival],
    vacancies: Vacancies,
    rules: Rules,
) -> bool:
    """Assigns new jobs to workers that had room; true when each was assigned. Call this on the leader's thread, between
    rounds. Raises StoreError when the outcome is unknown; then nothing else may be assigned with this term."""
    fence_time = fence_time_of(store)
    meter = Meter(rules.limits, rules.starts, now)
    usable = [
        arrival
        for arrival in arrivals
        if arrival.is_new(fence_time)
        and arrival.scheduled_at <= now
        and rules.pauses(group_and_task(arrival.lane)[0]) is None
        and is_free(arrival.lane, meter)
    ]
    offers = vacancies.offers(usable) if usable and not rules.blocked else None
    if not offers:
        return not arrivals  # none of them can be given without a round
    return store.roster.offer(offers, term) and len(usable) == len(arrivals)


def fence_time_of(store: Store) -> int:
    """The cluster time up to which this leader may have assigned or ended a job; 0 if it is unknown. Every write of the
    leader moves it."""
    return max(store.roster.answered_at, store.transactions.answered_at)
