"""Fair shares: whose turn it is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from recruiter.domain.lane import Lane
from recruiter.domain.planning.fair import FairShare, TurnsTaken, take_turns
from recruiter.domain.planning.pack import Candidate

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
