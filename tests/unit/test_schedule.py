from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from bson import CodecOptions, decode, encode

from recruiter.domain.policy_registry import SchedulePolicyRegistry
from recruiter.domain.retry.decision import LATEST
from recruiter.domain.schedule.policies import Cron, Every, EveryMinutes
from recruiter.domain.schedule.scheduler import Due, Late, SchedulePolicy, late_occurrences, next_occurrence
from recruiter.errors import InvalidName, InvalidSchedule


class Unexportable(SchedulePolicy):
    def next_after(self, moment: datetime) -> datetime | None:
        return moment


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def runs(policy: SchedulePolicy, after: str, count: int) -> str:
    """The next instants, in UTC, as the tables below write them: without the year if it is that of `after`."""
    found, moment = [], utc(after)
    for _ in range(count):
        answer = policy.next_after(moment)
        assert answer is not None
        assert answer > moment
        assert answer.tzinfo is UTC
        assert answer.microsecond == 0
        text = answer.replace(tzinfo=None).isoformat(" ", "seconds" if answer.second else "minutes")
        found.append(text.removeprefix(f"{after[:4]}-"))
        moment = answer
    return ", ".join(found)


# How the clocks of these zones are moved (T is the instant, in UTC). The tables: expression, zone, the instant that is
# asked about, and the occurrences after it; instants are in UTC.
#
#   Europe/Rome           2024-03-31 02:00 -> 03:00   T 01:00        2024-10-27 03:00 -> 02:00   T 01:00
#   America/New_York      2024-03-10 02:00 -> 03:00   T 07:00        2024-11-03 02:00 -> 01:00   T 06:00
#   America/Sao_Paulo     2018-11-04 00:00 -> 01:00   T 03:00        2018-02-18 00:00 -> 23:00   T 02:00
#   Asia/Beirut           2024-03-31 00:00 -> 01:00   T 22:00 -1d    2024-10-27 00:00 -> 23:00   T 21:00 -1d
#   Australia/Lord_Howe   2024-10-06 02:00 -> 02:30   T 15:30 -1d    2024-04-07 02:00 -> 01:30   T 15:00 -1d
#   Africa/Casablanca     2024-04-14 02:00 -> 03:00   T 02:00        2024-03-10 03:00 -> 02:00   T 02:00
#   Pacific/Apia          2011-12-30 00:00 -> 2011-12-31 00:00   T 10:00
#   Asia/Kathmandu        never; it is UTC+05:45

# A time that does not exist runs once, at the next instant that does.
GAP = """
30 2 * * *    | Europe/Rome         | 2024-03-30 00:00 | 03-30 01:30, 03-31 01:00, 04-01 00:30
30 2,3 * * *  | Europe/Rome         | 2024-03-30 12:00 | 03-31 01:00, 03-31 01:30, 04-01 00:30
15 30 2 * * * | Europe/Rome         | 2024-03-30 12:00 | 03-31 01:00, 04-01 00:30:15
@daily        | America/Sao_Paulo   | 2018-11-03 00:00 | 11-03 03:00, 11-04 03:00, 11-05 02:00
15 2 * * *    | Australia/Lord_Howe | 2024-10-05 00:00 | 10-05 15:30, 10-06 15:15
0 12 30 12 *  | Pacific/Apia        | 2011-01-01 00:00 | 12-30 10:00, 2012-12-29 22:00
"""

# A time that exists twice runs once, the first time.
FOLD = """
30 2 * * *      | Europe/Rome         | 2024-10-26 00:00 | 10-26 00:30, 10-27 00:30, 10-28 01:30
45 2 * * *      | Europe/Rome         | 2024-10-27 01:15 | 10-28 01:45  -- asked during the second time
*/30 30 2 * * * | Europe/Rome         | 2024-10-26 12:00 | 10-27 00:30, 10-27 00:30:30, 10-28 01:30
30 23 * * *     | America/Sao_Paulo   | 2018-02-17 12:00 | 02-18 01:30, 02-19 02:30
45 1 * * *      | Australia/Lord_Howe | 2024-04-06 00:00 | 04-06 14:45, 04-07 15:15
"""

# Every thirty minutes is every thirty minutes.
PACE = """
*/30 * * * *   | Europe/Rome         | 2024-03-31 00:00 | 03-31 00:30, 03-31 01:00, 03-31 01:30
*/30 * * * *   | Europe/Rome         | 2024-10-26 23:30 | 10-27 00:00, 10-27 00:30, 10-27 01:00, 10-27 01:30
*/30 * * * *   | Australia/Lord_Howe | 2024-10-05 14:30 | 10-05 15:00, 10-05 15:30, 10-05 16:00
*/30 * * * *   | Australia/Lord_Howe | 2024-04-06 14:00 | 04-06 14:30, 04-06 15:00, 04-06 15:30
0 */30 * * * * | Europe/Rome         | 2024-10-27 00:00 | 10-27 00:30, 10-27 01:00, 10-27 01:30
"""

# A pace follows the face of the clock: an hour that comes twice runs twice, one that is missing runs once if it is one
# of some hours, and not if every hour runs.
FACE = """
@hourly        | Australia/Lord_Howe | 2024-10-05 14:00 | 10-05 14:30, 10-05 16:00
@hourly        | Australia/Lord_Howe | 2024-04-06 13:30 | 04-06 14:00, 04-06 15:30
*/30 2 * * *   | Europe/Rome         | 2024-03-30 12:00 | 03-31 01:00, 04-01 00:00
0 */2 * * *    | Europe/Rome         | 2024-03-30 22:00 | 03-30 23:00, 03-31 01:00, 03-31 02:00
*/30 2 27 10 * | Europe/Rome         | 2024-01-01 00:00 | 10-27 00:00, 10-27 00:30, 10-27 01:00  -- moved on the way
"""

# Days of the month and of the week, names, aliases.
CALENDAR = """
0 6 * * *                     | UTC              | 2024-02-28 06:00 | 02-29 06:00, 03-01 06:00
0 6 * * *                     | Asia/Kathmandu   | 2024-03-31 00:00 | 03-31 00:15, 04-01 00:15
0 0 31 * *                    | UTC              | 2024-01-31 00:00 | 03-31 00:00, 05-31 00:00, 07-31 00:00
30 2 31 * *                   | Europe/Rome      | 2024-02-01 00:00 | 03-31 01:00, 05-31 00:30  -- the gap
0 0 L * *                     | UTC              | 2024-01-31 00:00 | 02-29 00:00, 03-31 00:00, 04-30 00:00
0 18 LW * *                   | UTC              | 2024-03-01 00:00 | 03-29 18:00, 04-30 18:00
0 9 * * MON#2                 | America/New_York | 2024-03-01 00:00 | 03-11 13:00, 04-08 13:00
0 0 13 * FRI                  | UTC              | 2024-09-07 00:00 | 09-13 00:00, 09-20 00:00
0 0 29 feb *                  | UTC              | 2096-03-01 00:00 | 2104-02-29 00:00
5/20 9-17/4 * jan,JUL mon-fri | UTC              | 2024-07-01 17:20 | 07-01 17:25, 07-01 17:45, 07-02 09:05
30 0 6 * * *                  | UTC              | 2024-03-01 00:00 | 03-01 06:00:30, 03-02 06:00:30
"""


def rows(table: str) -> list[list[str]]:
    lines = (line.partition("--")[0] for line in table.strip().splitlines())
    return [[cell.strip() for cell in line.split("|")] for line in lines]


@pytest.mark.parametrize(
    ("expression", "tz", "after", "expected"), rows(GAP) + rows(FOLD) + rows(PACE) + rows(FACE) + rows(CALENDAR)
)
def test_cron_expressions_in_time_zones_and_across_clock_changes(
    expression: str, tz: str, after: str, expected: str
) -> None:
    assert runs(Cron(expression, tz), after, expected.count(",") + 1) == expected


POLICIES = [
    Cron("* * * * * *", "Pacific/Kiritimati"),
    Cron("0 0 1 1 *", "America/New_York"),
    Cron("*/5 0 29 2 *", "Pacific/Pago_Pago"),
    EveryMinutes(7),
    Every("100 days", anchor=datetime.max.replace(microsecond=0, tzinfo=UTC)),
    Every("36525 days"),
]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_ends_of_time(policy: SchedulePolicy) -> None:
    for hours in (-14, 0, 14):
        zone = timezone(timedelta(hours=hours))
        first = policy.next_after(datetime.min.replace(tzinfo=zone))
        assert first is not None
        assert first.year < 110
        assert policy.next_after(datetime.max.replace(tzinfo=zone)) is None
    assert policy.next_after(LATEST) is None
    assert next_occurrence(policy, LATEST - timedelta(microseconds=1)) in (None, LATEST)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (EveryMinutes(1), "03-31 00:08, 03-31 00:09"),
        (EveryMinutes(15), "03-31 00:15, 03-31 00:30"),
        (EveryMinutes(7), "03-31 00:13, 03-31 00:20"),  # 00:13 is 4,075,819 times seven minutes after 1970 began
        (EveryMinutes(24 * 60), "04-01 00:00, 04-02 00:00"),
        (Every("90s"), "03-31 00:07:30, 03-31 00:09"),
        (Every(timedelta(hours=6)), "03-31 06:00, 03-31 12:00"),
        (Every("1 week"), "04-04 00:00, 04-11 00:00"),  # 1970 began on a Thursday
        (Every("1 day", anchor=datetime(2030, 1, 1, 6, tzinfo=UTC)), "03-31 06:00, 04-01 06:00"),
        (Every("1 day", anchor=datetime(2020, 1, 1, 6, tzinfo=ZoneInfo("Asia/Tokyo"))), "03-31 21:00, 04-01 21:00"),
    ],
)
def test_steady_policies_count_from_a_fixed_instant(policy: SchedulePolicy, expected: str) -> None:
    assert runs(policy, "2024-03-31 00:07", 2) == expected


# What is made after downtime. The leader was last seen just after 12:00, where everything was handled.


def after_downtime(policy: SchedulePolicy, back_at: str, **options: Any) -> Due:
    return late_occurrences(policy, utc("2024-05-01 12:00"), utc(back_at), **options)


def clock(due: Due) -> list[str]:
    return [f"{each:%d %H:%M}" for each in due.occurrences]


QUARTERS = EveryMinutes(15)


@pytest.mark.parametrize(
    ("late", "back_at", "made", "skipped"),
    [
        # twenty minutes: inside the window
        (Late.SKIP, "2024-05-01 12:20", [], 1),
        (Late.LATEST, "2024-05-01 12:20", ["01 12:15"], 0),
        (Late.ALL, "2024-05-01 12:20", ["01 12:15"], 0),
        # forty minutes: 12:15 is still inside the window, by five minutes
        (Late.SKIP, "2024-05-01 12:40", [], 2),
        (Late.LATEST, "2024-05-01 12:40", ["01 12:30"], 1),
        (Late.ALL, "2024-05-01 12:40", ["01 12:15", "01 12:30"], 0),
        # fifty minutes: 12:15 is too old
        (Late.LATEST, "2024-05-01 12:50", ["01 12:45"], 1),
        (Late.ALL, "2024-05-01 12:50", ["01 12:30", "01 12:45"], 0),
        # back in the very minute of an occurrence: that one is on time
        (Late.SKIP, "2024-05-01 12:45:30", ["01 12:45"], 1),
        (Late.LATEST, "2024-05-01 12:45:30", ["01 12:45"], 1),
        (Late.ALL, "2024-05-01 12:45:30", ["01 12:30", "01 12:45"], 0),
        # three days
        (Late.SKIP, "2024-05-04 12:10", [], 2),
        (Late.LATEST, "2024-05-04 12:10", ["04 12:00"], 1),
        (Late.ALL, "2024-05-04 12:10", ["04 11:45", "04 12:00"], 0),
    ],
)
def test_a_quarterly_job_after_downtime(late: Late, back_at: str, made: list[str], skipped: int) -> None:
    due = after_downtime(QUARTERS, back_at, late=late)
    assert clock(due) == made
    assert due.skipped == skipped
    assert due.too_old == (utc(back_at) - timedelta(minutes=30) > utc("2024-05-01 12:15"))
    assert due.next == QUARTERS.next_after(utc(back_at))
    assert due.handled == utc(back_at).replace(minute=utc(back_at).minute // 15 * 15, second=0)


@pytest.mark.parametrize("late", Late)
def test_a_change_of_leader_loses_nothing_whatever_the_policy_says(late: Late) -> None:
    due = after_downtime(Every("10s"), "2024-05-01 12:00:59", late=late)
    assert len(due.occurrences) == 5
    assert (due.skipped, due.too_old) == (0, False)
    assert due.handled == utc("2024-05-01 12:00:50")
    assert due.next == utc("2024-05-01 12:01:00")
    a_minute = after_downtime(Every("30s"), "2024-05-01 12:01:30", late=late)
    assert len(a_minute.occurrences) == 3


def test_the_window_the_tolerance_and_the_bound_can_be_chosen() -> None:
    minutely = EveryMinutes(1)
    hours = after_downtime(minutely, "2024-05-01 15:00", late=Late.ALL, window="3h", bound=1_000)
    assert len(hours.occurrences) == 180
    patient = after_downtime(minutely, "2024-05-01 12:10", late="skip", tolerance="5m")
    assert clock(patient) == [f"01 12:{minute:02}" for minute in range(5, 11)]
    bounded = after_downtime(minutely, "2024-05-01 12:25", late=Late.ALL, bound=3)
    assert (clock(bounded), bounded.skipped) == (["01 12:23", "01 12:24", "01 12:25"], 22)
    everything = after_downtime(minutely, "2024-05-01 12:05", late=Late.ALL, window=timedelta.max)
    assert len(everything.occurrences) == 5


@dataclass(frozen=True)
class Once(SchedulePolicy):
    """A policy of somebody's own, with an end."""

    at: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        return self.at if self.at > moment else None


def test_three_years_of_every_second_are_not_walked_through() -> None:
    asked = 0

    class Counted(SchedulePolicy):
        def next_after(self, moment: datetime) -> datetime | None:
            nonlocal asked
            asked += 1
            return Every(1).next_after(moment)

    due = after_downtime(Counted(), "2027-05-01 12:00", window="10s", late=Late.ALL)
    assert len(due.occurrences) == 11
    assert asked <= 11 + 2


@dataclass(frozen=True)
class Odd(SchedulePolicy):
    """A policy that answers whatever it is told to."""

    answer: Any

    def next_after(self, moment: datetime) -> datetime | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(moment) if callable(self.answer) else self.answer  # type: ignore[no-any-return]


# Policies as documents.


@dataclass(frozen=True)
class Either(SchedulePolicy):
    """Whichever of them is first."""

    policies: tuple[SchedulePolicy, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", tuple(self.policies))

    def next_after(self, moment: datetime) -> datetime | None:
        return min(filter(None, (policy.next_after(moment) for policy in self.policies)), default=None)


@pytest.mark.parametrize(
    ("policy", "document"),
    [
        (
            Cron("0 6 * * *", "Europe/Rome"),
            {"class": "Cron", "parameters": {"expression": "0 6 * * *", "tz": "Europe/Rome"}},
        ),
        (EveryMinutes(5), {"class": "EveryMinutes", "parameters": {"n": 5}}),
        (Every("5 minutes"), {"class": "Every", "parameters": {"interval": 300}}),
        (
            Every("1500ms", utc("2024-01-01")),
            {"class": "Every", "parameters": {"interval": 1.5, "anchor": utc("2024-01-01")}},
        ),
        (
            Either((EveryMinutes(5), Cron("@daily"))),
            {
                "class": "Either",
                "parameters": {
                    "policies": [
                        {"class": "EveryMinutes", "parameters": {"n": 5}},
                        {"class": "Cron", "parameters": {"expression": "@daily", "tz": "UTC"}},
                    ]
                },
            },
        ),
    ],
    ids=repr,
)
def test_policies_are_stored_by_name(policy: SchedulePolicy, document: dict[str, Any]) -> None:
    registry = SchedulePolicyRegistry()
    registry.register(Either)
    stored = registry.dump(policy)
    assert stored == document
    assert registry.load(stored) == policy
    assert registry.load(decode(encode(stored), CodecOptions(tz_aware=True))) == policy


def test_policies_of_your_own_are_registered() -> None:
    registry, other = SchedulePolicyRegistry(), SchedulePolicyRegistry()
    with pytest.raises(InvalidSchedule, match="cannot be stored: its class is not registered"):
        registry.dump(Once(utc("2030-01-01")))
    registry.register(Once)
    registry.register(name="odd")(Odd)
    other.merge(registry)
    assert other.load(other.dump(Once(utc("2030-01-01")))) == Once(utc("2030-01-01"))
    assert other.dump(Odd(1)) == {"class": "odd", "parameters": {"answer": 1}}
    with pytest.raises(InvalidName, match=r"is called 'Cron' already; give .*Once.* a name="):
        registry.register(Once, name="Cron")
    with pytest.raises(InvalidSchedule, match="is not a subclass of SchedulePolicy"):
        registry.register(dict)


def test_a_policy_that_is_no_dataclass_says_how_it_is_stored() -> None:
    registry = SchedulePolicyRegistry()
    registry.register(Unexportable)
    with pytest.raises(InvalidSchedule, match=r"Unexportable must be a dataclass or define export\(\) and import_\(\)"):
        registry.dump(Unexportable())
