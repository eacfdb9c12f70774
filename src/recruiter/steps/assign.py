"""Assign: one round of the leader. Every round starts from the roster. Between rounds it keeps nothing but, where there
are many lanes or much room, the next jobs that it has found (domain/planning/lookahead.py).

Most lanes are free: their jobs may run wherever a worker serves them. One query finds the next of all of them, and they
are dealt like cards (domain/planning/assign.py). Lanes are *metered* whose jobs need something of their host, or are
under a limit, or are isolated: these are planned one by one (domain/planning/pack.py), together with the free ones
that compete for the same slots; the buffers of the workers are then filled from the free lanes.

Where tenants share a group (domain/planning/fair.py), each round also asks for the next jobs of each owner, and puts
the group's jobs into turns. Without such a group, nothing more is asked.

On an idle system `assign_new` gives new jobs to workers between two rounds, straight from the events of their inserts
(domain/planning/arrivals.py says why that is safe). What is not given there is left to the next round.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.names import ASIDE, MARKED_LANE, group_and_task
from recruiter.domain.planning.arrivals import Arrival, Vacancies, is_free
from recruiter.domain.planning.assign import Opening, Registration, openings
from recruiter.domain.planning.fair import By, Tenant, TurnsTaken, take_turns
from recruiter.domain.planning.hosts import Place, Spot, largest_of
from recruiter.domain.planning.limits import Meter
from recruiter.domain.planning.lookahead import Lookahead
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.pack import AssignedJob, Candidate, Packing, never_fit, pack
from recruiter.domain.planning.prefetch import seconds_until_done, seconds_until_room
from recruiter.domain.planning.reasons import NeverFits
from recruiter.domain.unreadable import Parsed, Unreadable
from recruiter.store.collections.limits import Rules
from recruiter.store.database import Store

LARGEST_HAND = 2000
"""Jobs assigned in one round at most; more would make the write slow and help nobody."""
MOST_OF_A_LANE = 100
"""Jobs of one metered lane that are looked at in one round."""
MOST_OWNERS = 200
"""Owners that are asked for jobs in one round where a group is shared; of more, a random choice."""
MOST_MALFORMED = 20
"""Jobs in lanes that cannot be read that are looked for in one round."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did, and what its process needs to know to choose when to look again."""

    at: datetime
    """The moment that decided what was due."""
    roster: tuple[Registration, ...]
    lanes: tuple[str, ...] | None
    """The lanes that have jobs; None when the round did not look: there was no room, or the jobs were known."""
    assigned: int
    refused: bool
    """A worker did not take its jobs: it is gone, or it has seen a newer term."""
    more: bool = False
    """There may be jobs that could be assigned at once."""
    exhausted: bool = False
    """No due job was left that a worker with room could have taken, now or when there is more room."""
    metered: int = 0
    """How many lanes had to be planned."""
    reserved: Mapping[JobId, Spot] = field(default_factory=dict)
    """Who waits for room where: a hint for the next round."""
    unreadable: Sequence[Unreadable] = ()
    """Entries of the roster that nobody can plan with."""
    malformed: Sequence[Unreadable] = ()
    """Jobs that cannot be given to anybody."""
    marked: bool = False
    """Whether there were markers of flows."""


def assign(
    store: Store,
    term: int,
    now: datetime,
    rules: Rules | None = None,
    *,
    look: bool = True,
    reserved: Mapping[JobId, Spot] | None = None,
    is_quiet: Callable[[Registration], bool] = lambda _: False,
    turns: TurnsTaken | None = None,
    lookahead: Lookahead | None = None,
) -> Round:
    """Reads the roster, finds due jobs that nobody holds, and gives them to workers that have room.

    Without `look` it does not ask which jobs wait when no worker could take one, or when the jobs that an earlier round
    has found (`lookahead`) fill all the room. A worker that is quiet is given nothing, like one that drains. Raises
    StoreError when the outcome is unknown; then no more may be assigned with this term.
    """
    rules = rules or Rules()
    lookahead = Lookahead() if lookahead is None else lookahead
    entries = store.roster.read()
    roster = tuple(replace(worker, draining=True) if is_quiet(worker) else worker for worker in entries)
    vacant = openings(roster)
    if (not vacant and not look) or rules.blocked:
        lanes, marked = _lanes(store.scheduled.lanes_to_plan()) if look else (None, False)
        empty = Round(now, roster, lanes, 0, refused=False, reserved=reserved or {}, unreadable=entries.unreadable)
        return replace(empty, marked=marked)
    # Given before it looks: where there are many lanes that takes long, and the workers wait.
    ahead, refused = _give_ahead(store, term, now, rules, vacant, lookahead)
    if refused or (ahead and len(lookahead) >= ahead and not look):
        lookahead.rebase(None if refused else _basis(store, term, rules, vacant))
        return Round(now, roster, None, ahead, refused, more=True, unreadable=entries.unreadable)
    # Read after the roster and before the jobs: only this leader adds to it, so what is free now stays free.
    held = store.roster.held() if ahead or entries.unreadable or any(w.holds for w in roster) else set[JobId]()
    found = store.scheduled.lanes_to_plan()
    lanes, marked = _lanes(found)
    planning = _Planning(store, term, now, rules, roster, held, lanes, turns)
    planning.set_aside(found.unreadable)
    round = planning.after(ahead, vacant, lookahead if len(vacant) == 1 else None, reserved or {})
    lookahead.keep(planning.beyond, None if round.refused else _basis(store, term, rules, vacant), now)
    return replace(round, unreadable=entries.unreadable, malformed=planning.malformed, marked=marked)


def _give_ahead(
    store: Store, term: int, now: datetime, rules: Rules, vacant: Sequence[Opening], lookahead: Lookahead
) -> tuple[int, bool]:
    """Gives jobs that an earlier round has found; returns how many, and whether that was refused."""
    room = min(sum(opening.room for opening in vacant), LARGEST_HAND)
    ahead = lookahead.take(room, _basis(store, term, rules, vacant), now)
    return len(ahead), bool(ahead) and not store.roster.assign(vacant[0].deal(ahead), term)


def _basis(store: Store, term: int, rules: Rules, vacant: Sequence[Opening]) -> object:
    """What jobs that were found rest on (domain/planning/lookahead.py); None when they must not be kept."""
    floor = floor_of(store)
    return (term, floor, rules, vacant[0].kind) if floor and len(vacant) == 1 else None


def _lanes(found: Iterable[str]) -> tuple[tuple[str, ...], bool]:
    """The lanes that have jobs, and whether there are markers."""
    lanes = tuple(found)
    return tuple(lane for lane in lanes if lane != MARKED_LANE), MARKED_LANE in lanes


class _Planning:
    """One round, from what was read."""

    def __init__(
        self,
        store: Store,
        term: int,
        now: datetime,
        rules: Rules,
        roster: Sequence[Registration],
        held: set[JobId],
        lanes: tuple[str, ...],
        turns: TurnsTaken | None,
    ) -> None:
        self._store = store
        self._turns = turns or TurnsTaken()
        self._tenants: dict[JobId, Tenant] = {}
        """Of the jobs of shared groups that were looked at."""
        self._term = term
        self._now = now
        self._rules = rules
        self._roster = tuple(roster)
        self._held = held
        self._all_lanes = lanes
        open_lanes = [lane for lane in lanes if rules.pauses(group_and_task(lane)[0]) is None]
        self._meter = Meter(rules.limits, rules.starts, now)
        counted = (lane for lane in open_lanes if lane not in ASIDE and self._meter.counts(Lane.parse(lane)))
        self.metered = list(counted)
        self.malformed: list[Unreadable] = []
        self.beyond: Sequence[JobId] = ()
        """The jobs after those that were dealt, where that was asked for."""
        self.more = bool(self.metered)
        """Whether there may be jobs that could be assigned at once."""
        self._filled = False
        """Whether free lanes may have had more jobs than there was room."""
        known = set(self.metered)
        self._free = [lane for lane in open_lanes if lane not in known]

    def set_aside(self, unreadable: Sequence[Unreadable]) -> None:
        """Jobs in lanes that cannot be read are set aside."""
        if unreadable:
            self.malformed += self._store.scheduled.in_lanes(unreadable, MOST_MALFORMED)

    def after(
        self, ahead: int, vacant: Sequence[Opening], lookahead: Lookahead | None, reserved: Mapping[JobId, Spot]
    ) -> Round:
        """What is left to do when so many have been given ahead: if there were any, it only looks ahead again."""
        if ahead:
            self.look_ahead(vacant[0], lookahead)
            metered = len(self.metered)
            return Round(self._now, self._roster, self._all_lanes, ahead, refused=False, more=True, metered=metered)
        return self.pack(reserved) if self.metered else self.give(lookahead)

    def give(self, lookahead: Lookahead | None) -> Round:
        """A round in which nothing has to be planned."""
        hands = self.deal(self._roster, {}, lookahead)
        refused = bool(hands) and not self._store.roster.assign(hands, self._term)
        self.count_turns(hands)
        given = sum(map(len, hands.values()))
        return Round(self._now, self._roster, self._all_lanes, given, refused, self.more, exhausted=not self.more)

    def deal(
        self, roster: Sequence[Registration], hands: dict[str, list[JobId]], lookahead: Lookahead | None = None
    ) -> dict[str, list[JobId]]:
        """Fills what room there is from the free lanes; where that is worth it, it also looks ahead."""
        for opening in openings(roster):
            room = min(opening.room, LARGEST_HAND)
            found = self._next(opening, room, lookahead)
            jobs, self.beyond = list(found[:room]), found[room:]
            if len(found) + len(found.unreadable) >= room:
                self._filled = True
            self._held.update(jobs)
            self.more |= self._filled
            for worker, dealt in opening.deal(jobs).items():
                hands.setdefault(worker, []).extend(dealt)
        return hands

    def look_ahead(self, opening: Opening, lookahead: Lookahead | None) -> None:
        """Finds jobs for the next rounds, as if there was as much room again; unless they would have to be planned."""
        if not self.metered:
            self.beyond = self._next(opening, min(opening.room, LARGEST_HAND), lookahead)

    def _next(self, opening: Opening, room: int, lookahead: Lookahead | None) -> Parsed[JobId]:
        served = opening.lanes(self._free)
        wanted = room if lookahead is None or self._rules.fair else lookahead.wanted(len(served), room)
        found = self._due(served, wanted) if served else Parsed[JobId]()
        self.malformed += found.unreadable
        return found

    def _due(self, lanes: Sequence[str], room: int) -> Parsed[JobId]:
        if not any(group_and_task(lane)[0] in self._rules.fair for lane in lanes):
            return self._store.scheduled.due(lanes, self._now, room, self._held)
        found = self._store.scheduled.candidates(lanes, self._now, room, self._held)
        in_order = sorted(found, key=lambda candidate: candidate.rank)
        fair = self._in_turns(in_order, lanes, room)
        return Parsed((candidate.id for candidate in fair[:room]), found.unreadable)

    def _in_turns(self, candidates: Sequence[Candidate], lanes: Iterable[str], room: int) -> list[Candidate]:
        """The candidates, which are in order, with those of shared groups in turns, and of each owner at least one."""
        shares = self._rules.fair
        if not shares:
            return list(candidates)
        by_owner = [lane for lane in lanes if self._is_shared_by_owner(lane)]
        known = {candidate.id: candidate for candidate in candidates}
        if by_owner and room > 0:
            owners = self._store.scheduled.owners()
            some = random.sample(owners, MOST_OWNERS) if len(owners) > MOST_OWNERS else owners
            count = max(1, 2 * room // max(1, len(some)))
            found = self._store.scheduled.candidates_of_owners(some, by_owner, self._now, count, self._held)
            known |= {candidate.id: candidate for candidate in found}
        held = {id for id in self._held if id not in known}
        facts = self._store.scheduled.owners_of({*known, *held})
        all_ = sorted(known.values(), key=lambda candidate: candidate.rank)
        nobody = ("", "")  # it is gone in this moment
        tenants = {candidate.id: self._tenant(*facts.get(candidate.id, nobody)) for candidate in all_}
        self._tenants |= {c.id: (c.lane.group, tenants[c.id]) for c in all_ if c.lane.group in shares}
        return take_turns(all_, shares, lambda candidate: tenants[candidate.id], self._has(facts, held), self._turns)

    def count_turns(self, hands: Mapping[str, Sequence[JobId]]) -> None:
        """Remembers who has been given something, for the next rounds."""
        for id in (id for jobs in hands.values() for id in jobs) if self._tenants else ():
            if id in self._tenants:
                group, tenant = self._tenants[id]
                self._turns.count(group, tenant, self._rules.fair[group].weight(tenant))

    def _is_shared_by_owner(self, lane: str) -> bool:
        share = self._rules.fair.get(group_and_task(lane)[0])
        return share is not None and share.by is By.OWNER

    def _tenant(self, lane: str, owner: str) -> str:
        return owner if self._is_shared_by_owner(lane) else Lane.parse(lane).key or ""

    def _has(self, facts: Mapping[JobId, tuple[str, str]], held: Iterable[JobId]) -> Counter[Tenant]:
        """How many jobs of each tenant workers hold."""
        known = (facts[id] for id in held if id in facts)
        return Counter((group_and_task(lane)[0], self._tenant(lane, owner)) for lane, owner in known)

    def pack(self, reserved: Mapping[JobId, Spot]) -> Round:
        places = [_place(worker) for worker in self._roster if worker.ready and not worker.draining]
        holders = self._holders()
        for each in holders:
            self._meter.take(each.lane, each.id)
        candidates = self._candidates(places, holders)
        capacities = _capacities(self._roster)
        limits, starts = self._rules.limits, self._rules.starts
        packing = pack(candidates, places, capacities, holders, limits, now=self._now, starts=starts, reserved=reserved)
        if packing.starts:
            self._store.limits.note_starts(packing.starts, self._term)
        lane_of = {candidate.id: str(candidate.lane) for candidate in candidates}
        metered = set(self.metered)
        counted = {
            worker: [(job, lane_of[job]) for job in jobs if lane_of[job] in metered]
            for worker, jobs in packing.hands.items()
        }
        hands = {worker: list(jobs) for worker, jobs in packing.hands.items()}
        self._held.update(job for jobs in hands.values() for job in jobs)
        rest = [_after(worker, packing) for worker in self._roster if worker.id not in packing.drained]
        self.deal(rest, hands)
        refused = bool(hands) and not self._store.roster.assign(hands, self._term, counted)
        self.count_turns(hands)
        total, reserved = sum(map(len, hands.values())), dict(packing.reserved)
        waits = self._filled or candidates or reserved or packing.kept or packing.drained
        return Round(
            self._now,
            self._roster,
            self._all_lanes,
            total,
            refused,
            self.more,
            exhausted=not waits,
            metered=len(self.metered),
            reserved=reserved,
        )

    def _holders(self) -> list[AssignedJob]:
        """Who holds jobs that count. What has ended is not held any more, though it may still be noted."""
        return [
            AssignedJob(job, worker.id, worker.host, Lane.parse(lane))
            for worker in self._roster
            for job, lane in worker.metered
            if job in self._held
        ]

    def _candidates(self, places: Sequence[Place], holders: Sequence[AssignedJob]) -> list[Candidate]:
        """The next jobs of each lane, as many as could start now, and one if none could: it may have to reserve. A lane
        at its limit is not looked at at all. The free ones are, where they compete with these for the same slots."""
        slots = sum(place.free_slots for place in places)
        spare = sum(place.spare for place in places)
        rooms = {}
        for text in self.metered:
            lane = Lane.parse(text)
            most = slots + spare if self._meter.prefetchable(lane) else slots
            room = min(self._meter.room(lane), max(most, 1), MOST_OF_A_LANE)
            if room > 0 and any(place.serves(lane) for place in places):
                rooms[text] = room
        if not rooms:
            return []
        # Few of the held jobs are of these lanes, and they are known; should one be missing, it is left out afterwards.
        of_these = {job.id for job in holders}
        all_ = self._store.scheduled.candidates_of_each(rooms, self._now, of_these)
        self.malformed += all_.unreadable
        found = [candidate for candidate in all_ if candidate.id not in self._held]
        in_order = sorted([*found, *self._rivals(places, found)], key=lambda candidate: candidate.rank)
        return self._in_turns(in_order, rooms, max(slots, 1))

    def _rivals(self, places: Sequence[Place], candidates: Sequence[Candidate]) -> Iterable[Candidate]:
        """The next jobs of the free lanes, wherever one of these candidates could run: as many as there are free slots,
        and one more that has to wait."""
        lanes = {candidate.lane for candidate in candidates}
        alike: dict[tuple[frozenset[str] | None, frozenset[str]], list[Place]] = {}
        for place in places:
            alike.setdefault((place.groups, place.tasks), []).append(place)
        rivals: dict[JobId, Candidate] = {}
        for some in alike.values():
            served = [lane for lane in self._free if some[0].serves(Lane.parse(lane))]
            if served and any(some[0].serves(lane) for lane in lanes):
                most = min(1 + sum(place.free_slots for place in some), LARGEST_HAND)
                found = self._store.scheduled.candidates(served, self._now, most, self._held)
                self.malformed += found.unreadable
                rivals.update((candidate.id, candidate) for candidate in found)
        return rivals.values()


def recount(store: Store, term: int, rules: Rules, now: datetime) -> None:
    """Notes which of the jobs that are held count from now on: to be called when there are other limits than before."""
    meter = Meter(rules.limits, rules.starts, now)
    noted = {worker.id: {job for job, _ in worker.metered} for worker in store.roster.read()}
    holders = store.roster.holders()
    lanes = store.scheduled.lanes_of({job for jobs in holders.values() for job in jobs})
    for worker, jobs in holders.items():
        known = noted.get(worker, set())
        entries = [
            (job, lanes[job])
            for job in jobs
            if job in lanes and job not in known and meter.meters(Lane.parse(lanes[job]))
        ]
        if entries:
            store.roster.meter(worker, entries, term)


def lacks_takers(round: Round) -> bool:
    """Whether jobs may wait that no worker could take now: then it matters who joins, or makes room."""
    if round.lanes is None or round.metered:
        return True  # there was no room at all, or not for everybody
    taken = {lane for opening in openings(round.roster) for lane in opening.lanes(round.lanes)}
    return not taken.issuperset(lane for lane in round.lanes if lane not in ASIDE)


def until_room(round: Round) -> float:
    """Seconds until the first worker that is full will take more jobs, as far as that can be known."""
    full = (worker for worker in round.roster if worker.ready and not worker.draining and not worker.room)
    return min((seconds_until_room(worker.holds, worker.slots, worker.prefetch) for worker in full), default=0.0)


def until_done(round: Round) -> float:
    """Seconds until workers have ended what they hold, if these are quick jobs."""
    return max((seconds_until_done(worker.holds, worker.prefetch) for worker in round.roster), default=0.0)


def unserved(round: Round) -> set[tuple[str, str]]:
    """Group and task of waiting jobs that no worker on the roster serves: it does not know them, or works elsewhere."""
    waiting = (lane for lane in round.lanes or () if lane not in ASIDE)
    return {group_and_task(lane) for lane in waiting if not any(worker.serves(lane) for worker in round.roster)}


def never_fitting(round: Round, rules: Rules) -> dict[Lane, NeverFits]:
    """Lanes of waiting jobs that somebody serves, and that need more than there is, be it free or not."""
    lanes = {Lane.parse(lane)._replace(key=None, isolated=False) for lane in round.lanes or ()}
    places = [_place(worker) for worker in round.roster]
    return never_fit((lane for lane in lanes if lane.needs), places, _capacities(round.roster), rules.limits)


def _capacities(roster: Iterable[Registration]) -> dict[str, Needs]:
    """What each host has: of each resource as much as the worker says that knows of most. A process that joins from
    there for a moment, and says less, must not take it away from the others."""
    hosts: dict[str, list[Needs]] = {}
    for worker in roster:
        hosts.setdefault(worker.host, []).append(worker.resources)
    return {host: said[0] if len(said) == 1 else _largest(said) for host, said in hosts.items()}


def _largest(said: Iterable[Needs]) -> Needs:
    return Needs(tuple(sorted(largest_of(dict(needs.thousandths) for needs in said).items())))


def _place(worker: Registration) -> Place:
    return Place(worker.id, worker.host, worker.groups, worker.tasks, worker.slots, worker.holds, worker.prefetch)


def _after(worker: Registration, packing: Packing) -> Registration:
    """The worker as it will be: what it was given it holds, and what is kept there is not to be dealt."""
    taken = len(packing.hands.get(worker.id, ())) + packing.kept.get(worker.id, 0)
    return replace(worker, holds=worker.holds + taken) if taken else worker


def assign_new(
    store: Store,
    term: int,
    now: datetime,
    arrivals: Sequence[Arrival],
    vacancies: Vacancies,
    rules: Rules,
) -> bool:
    """Gives new jobs to workers that had room; true when each was given.

    To be called by the thread of the leader, between rounds. Raises StoreError when the outcome is unknown; then no
    more may be assigned with this term.
    """
    floor = floor_of(store)
    meter = Meter(rules.limits, rules.starts, now)
    usable = [arrival for arrival in arrivals if arrival.is_new(floor) and _may_start(arrival, now, rules, meter)]
    offers = vacancies.offers(usable) if usable and not rules.blocked else None
    if not offers:
        return not arrivals
    return store.roster.offer(offers, term) and len(usable) == len(arrivals)


def floor_of(store: Store) -> int:
    """The cluster time up to which a job may have been given by this leader, or have been ended by it; 0 when that is
    not known. Every write of a leader moves it, so none can be forgotten."""
    return max(store.roster.answered_at, store.transactions.answered_at)


def _may_start(job: Arrival, now: datetime, rules: Rules, meter: Meter) -> bool:
    group, _ = group_and_task(job.lane)
    return job.scheduled_at <= now and rules.pauses(group) is None and is_free(job.lane, meter)
