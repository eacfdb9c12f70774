"""Who gets which job when jobs need resources, limits apply, or tenants take turns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.planning.fair import FairShare, TurnsTaken, take_turns
from recruiter.domain.planning.hosts import Reservation
from recruiter.domain.planning.limits import AtLimit, FleetBusy, KeptFor, Limit
from recruiter.domain.planning.needs import Needs
from recruiter.domain.planning.pack import AssignedJob, Candidate, Packing, pack
from recruiter.domain.planning.reasons import HostsBusy, IsolatedBusy, NeverFits
from recruiter.domain.planning.workers import RosterWorker
from tests.samples import NOW

GIB = 2**30 * 1000
"""In thousandths of a byte, as amounts are counted."""


def job(id: JobId, lane: str = "g/t", priority: float = 0) -> Candidate:
    return Candidate(id, Lane.parse(lane), priority, NOW)


def jobs(count: int, lane: str = "g/t", first: int = 1) -> list[Candidate]:
    return [job(id, lane) for id in range(first, first + count)]


def place(worker: str = "w", host: str | None = None, *, slots: int = 4, holds: int = 0, **serves: Any) -> RosterWorker:
    tasks = serves.pop("tasks", {"t", "u", "v"})
    groups, prefetch = serves.pop("groups", None), serves.pop("prefetch", 0)
    return RosterWorker(
        worker, groups, frozenset(tasks), slots, prefetch, holds, beats=0, host=host or f"host of {worker}"
    )


def held(id: JobId, lane: str, worker: str = "w", host: str | None = None) -> AssignedJob:
    return AssignedJob(id, worker, host or f"host of {worker}", Lane.parse(lane))


def plan(
    candidates: Sequence[Candidate],
    places: Sequence[RosterWorker],
    has: dict[str, str] | str = "",
    holding: Sequence[AssignedJob] = (),
    limits: Sequence[Limit] = (),
    **more: Any,
) -> Packing:
    hosts = {each.host for each in places}
    capacities = {host: Needs.parse(has if isinstance(has, str) else has.get(host, "")) for host in hosts}
    return pack(candidates, places, capacities, holding, limits, now=NOW, **more)


def why(packing: Packing, lane: str = "g/t") -> object:
    return packing.waiting[Lane.parse(lane)]


class TestResources:
    def test_resources_are_exact_to_the_thousandth(self) -> None:
        holding = [held(9, "g/t/proc=0.5")]

        packing = plan([job(1, "g/t/proc=0.501"), job(2, "g/t/proc=1.001")], [place()], "proc=1", holding)

        assert packing.assignments == {}
        assert why(packing, "g/t/proc=0.501") == HostsBusy("proc", 501, 500, "host of w")
        assert why(packing, "g/t/proc=1.001") == NeverFits(Needs.of(proc=1.001), "proc", 1001, 1000)

    def test_a_small_job_leaves_the_large_space_free(self) -> None:
        """The small one goes where less is free, so that the large one finds its place."""
        places, has = [place("large"), place("small")], {"host of large": "proc=8", "host of small": "proc=2"}

        assert plan([job(1, "g/t/proc=1"), job(2, "g/t/proc=8")], places, has).assignments == {
            "small": [1],
            "large": [2],
        }

    def test_it_fits_nowhere_ever(self) -> None:
        places, has = [place("a"), place("b")], {"host of a": "mem=10,proc=4", "host of b": "mem=30,proc=2"}

        packing = plan([job(1, "g/t/mem=40"), job(2, "g/t/mem=20,proc=4"), job(3, "g/t/mem=20")], places, has)

        assert packing.assignments == {"b": [3]}
        assert packing.reserved == {}
        assert str(why(packing, "g/t/mem=40")) == (
            "needs 40 GiB of mem, and no host that serves it has more than 30 GiB"
        )
        assert str(why(packing, "g/t/mem=20,proc=4")) == (
            "needs 20 GiB of mem and 4 of proc, and no single host that serves it has all of that"
        )


class TestLimits:
    def test_licences_that_are_all_in_use_hold_up_one_slot_and_no_more(self) -> None:
        limit = Limit("resource:licence:matlab", 1, floating=True)
        holding = [held(99, "g/t/licence:matlab=1", "elsewhere")]

        packing = plan([*jobs(9, "g/t/licence:matlab=1"), *jobs(9, first=50)], [place()], "", holding, [limit])

        assert packing.assignments == {"w": [50, 51, 52]}
        assert packing.reserved == {1: Reservation("w", "host of w")}


class TestReservation:
    def test_small_ones_fill_what_it_leaves(self) -> None:
        """Other resources, what is over of the same one, other hosts; but not its slot."""
        places = [place("a", slots=5, holds=1), place("b", slots=1, tasks={"u"})]
        has = {"host of a": "mem=100,proc=8", "host of b": "proc=4"}
        candidates = [
            job(1, "g/t/mem=10,proc=6"),
            job(2, "g/u/mem=90"),
            job(3, "g/u/mem=1"),
            job(4, "g/u/proc=2"),
            job(5, "g/u/proc=1"),
            job(6, "g/u"),
            job(7, "g/u"),
            job(8, "g/u"),
        ]

        packing = plan(candidates, places, has, [held(90, "g/v/proc=4", "a")])

        assert packing.assignments == {"a": [2, 6, 7], "b": [4]}
        assert why(packing, "g/u/mem=1") == KeptFor("room on host host of a", 1)
        assert why(packing, "g/u") == KeptFor("a slot of worker a", 1)

    def test_where_least_has_to_be_freed(self) -> None:
        places = [place("a"), place("b"), place("c", slots=1, holds=1)]
        holding = [held(90, "g/u/proc=5", "a"), held(91, "g/u/proc=3", "b"), held(92, "g/u/proc=1", "c")]

        packing = plan([job(1, "g/t/proc=8")], places, "proc=8", holding)

        assert packing.reserved == {1: Reservation("b", "host of b")}, "c lacks less, and a slot"

    def test_of_each_limit_for_the_first_only(self) -> None:
        """20 are used, and 95 are kept for the first: neither 92 for the second, nor both."""
        places = [place("a"), place("b"), place("c", tasks={"u"})]
        holding = [held(90, "g/u/mem=10", "a"), held(91, "g/u/mem=10", "b")]
        candidates = [job(1, "g/t/mem=95"), job(2, "g/t/mem=92"), job(3, "g/u/mem=100"), job(4, "g/u/mem=98")]
        has = {"host of a": "mem=100", "host of b": "mem=99", "host of c": "mem=100"}

        packing = plan(candidates, places, has, holding, [Limit("resource:mem", 213)])

        assert list(packing.reserved) == [1, 2]
        assert packing.assignments == {"c": [4]}
        assert why(packing, "g/u/mem=100") == FleetBusy("mem", 100 * GIB, 95 * GIB, 213 * GIB)


class TestIsolated:
    """Jobs whose workers died repeatedly: two of them never share a worker."""

    def test_each_gets_a_worker_without_another_and_ordinary_jobs_use_the_other_slots(self) -> None:
        candidates = [*jobs(3, "g/t///isolated"), *jobs(6, first=11)]

        packing = plan(candidates, [place("a", slots=4, holds=1), place("b", slots=4)])

        lanes = {each.id: each.lane for each in candidates}
        isolated = {worker: [id for id in hand if lanes[id].isolated] for worker, hand in packing.assignments.items()}
        assert sorted(isolated.values()) == [[1], [2]]
        assert sum(map(len, packing.assignments.values())) == 7, "every slot is used"
        assert (packing.kept, packing.drained, packing.reserved) == ({}, frozenset(), {})
        assert why(packing, "g/t///isolated") == IsolatedBusy(2)

    def test_it_waits_in_a_buffer_like_any_other_job(self) -> None:
        places = [place("a", slots=1, holds=1, prefetch=3), place("b", slots=1, holds=1, prefetch=9)]

        packing = plan(jobs(3, "g/t///isolated"), places, holding=[held(90, "g/t///isolated", "b")])

        assert packing.assignments == {"a": [1]}
        assert packing.drained == frozenset()


class TestBuffers:
    """Which workers must not be filled with jobs that can be prefetched."""

    def test_one_with_a_limit_waits_in_the_largest_buffer(self) -> None:
        """It has its turn there in a moment, and no worker has to be emptied for it."""
        places = [place("a", slots=2, holds=20, prefetch=30), place("b", slots=2, holds=9, prefetch=10)]

        packing = plan(jobs(4), places, limits=[Limit("task:t", 3)])

        assert packing.assignments == {"a": [1, 2, 3]}
        assert (packing.kept, packing.drained, packing.reserved) == ({}, frozenset(), {})
        assert why(packing) == AtLimit("task:t", 3, (1, 2, 3), 3)

    def test_who_comes_after_one_that_can_has_its_turn_later(self) -> None:
        """Given one with a limit among ordinary ones: what comes before it goes through the buffer."""
        places, limits = [place(holds=20)], [Limit("task:u", 1)]

        behind = plan([*jobs(1), job(5, "g/u")], places, limits=limits)
        first = plan([job(5, "g/u"), *jobs(1, first=6)], places, limits=limits)

        assert (behind.reserved, behind.kept, behind.drained) == (
            {5: Reservation("w", "host of w")},
            {"w": 1},
            frozenset(),
        )
        assert first.drained == {"w"}

    def test_a_job_that_waits_for_a_fleet_resource_drains_no_worker(self) -> None:
        limits = [Limit("resource:licence", 1, floating=True)]

        packing = plan([job(1, "g/t/licence=1")], [place(holds=20)], "", [held(90, "g/u/licence=1", "x")], limits)

        assert (packing.kept, packing.drained) == ({"w": 1}, frozenset())


T0 = datetime(2030, 1, 1, tzinfo=UTC)


def queue(*ids: str, group: str = "mail", priority: float = 0.0) -> list[Candidate]:
    """Jobs in order; the first letter of an id is its tenant."""
    return [Candidate(id, Lane(group, "send"), priority, T0 + timedelta(seconds=place)) for place, id in enumerate(ids)]


def order(candidates: list[Candidate], held: dict[str, int] | None = None, **weights: float) -> list[str]:
    share = FairShare.of("owner", weights)
    has = {("mail", tenant): count for tenant, count in (held or {}).items()}
    return [str(each.id) for each in take_turns(candidates, {"mail": share}, lambda c: str(c.id)[0], has)]


def test_other_groups_do_not_notice() -> None:
    candidates = sorted(
        [*queue("a1", "a2", "a3", "b1"), *queue("x1", "x2", group="other")], key=lambda candidate: candidate.rank
    )
    before = [candidate.id for candidate in candidates]

    after = order(candidates)

    assert [place for place, id in enumerate(before) if str(id)[0] == "x"] == [
        place for place, id in enumerate(after) if id[0] == "x"
    ]
    assert [id for id in after if id[0] != "x"] == ["a1", "b1", "a2", "a3"]


class TestOfLate:
    """Quick jobs are held for a moment only: what tenants were given before counts, too."""

    def turns(self, rounds: int, queues: dict[str, int], taken: TurnsTaken, **weights: float) -> str:
        """One job a round, with nothing held; each tenant has as many jobs as it says."""
        share, given = FairShare.of("owner", weights), ""
        for _ in range(rounds):
            ids = [f"{tenant}{number}" for tenant, count in queues.items() for number in range(count)]
            first = str(take_turns(queue(*ids), {"mail": share}, lambda c: str(c.id)[0], {}, taken)[0].id)[0]
            taken.count("mail", first, share.weight(first))
            queues[first] -= 1
            given += first
        return given

    def test_who_comes_later_is_next_and_does_not_make_up_for_the_time_before(self) -> None:
        taken = TurnsTaken()
        self.turns(50, {"a": 100}, taken)

        assert self.turns(6, {"a": 100, "b": 100}, taken) in ("ababab", "bababa")


def test_nothing_is_lost_or_doubled() -> None:
    ids = [f"{tenant}{number}" for tenant in "abcde" for number in range(20)]

    assert sorted(order(queue(*ids), {"a": 3, "z": 9}, b=2, c=0.5)) == sorted(ids)
