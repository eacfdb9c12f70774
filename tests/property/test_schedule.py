"""What schedules promise, for any expression, zone and time: against a walk, minute by minute, that knows no shortcut.

The walk looks at nothing but what the clock on the wall shows at each minute of real time. It notices that the clock
was moved because it shows something else than a minute more, and that a time comes twice because it was there before.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from bson import CodecOptions, decode, encode
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from recruiter.domain.policy_registry import SchedulePolicyRegistry
from recruiter.domain.schedule.policies import Cron, Every, EveryMinutes
from recruiter.domain.schedule.scheduler import Late, SchedulePolicy, late_occurrences, occurrence_id
from recruiter.errors import InvalidSchedule
from tests.depth import examples

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
START, END = datetime(2000, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)
ZONES = (
    "Europe/Rome",
    "Europe/Dublin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "America/Caracas",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Kathmandu",
    "Asia/Pyongyang",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Pacific/Apia",
    "UTC",
)

# Expressions, and what they mean. Each part is made together with its meaning, so nothing here reads cron's language.


@dataclass(frozen=True)
class Part:
    text: str
    values: frozenset[int]

    @property
    def star(self) -> bool:
        return self.text.startswith("*")


@dataclass(frozen=True)
class Days:
    text: str
    fits: Callable[[date], bool]


@dataclass(frozen=True)
class Expression:
    second: Part | None
    minute: Part
    hour: Part
    day: Days
    month: Part
    weekday: Days

    @property
    def text(self) -> str:
        parts = (self.minute, self.hour, self.day, self.month, self.weekday)
        return " ".join(part.text for part in (parts if self.second is None else (self.second, *parts)))

    def fits_day(self, day: date) -> bool:
        either = not (self.day.text.startswith("*") or self.weekday.text.startswith("*"))
        fit = (self.day.fits(day), self.weekday.fits(day))
        return day.month in self.month.values and (any(fit) if either else all(fit))

    def fits(self, wall: datetime) -> bool:
        return wall.minute in self.minute.values and wall.hour in self.hour.values and self.fits_day(wall.date())


@st.composite
def parts(draw: st.DrawFn, low: int, high: int, *, most: int | None = None) -> Part:
    everything = range(low, high + 1)
    first, last = sorted((draw(st.sampled_from(everything)), draw(st.sampled_from(everything))))
    step = draw(st.integers(1, high - low))
    shapes = {
        "*": everything,
        f"*/{step}": everything[::step],
        f"{first}": [first],
        f"{first}-{last}": range(first, last + 1),
        f"{first}/{step}": range(first, high + 1, step),
        f"{first},{last}": [first, last],
    }
    if first < last:
        shapes[f"{first}-{last}/{step}"] = range(first, last + 1, step)
    fitting = [text for text, values in shapes.items() if most is None or len(values) <= most]
    text = draw(st.sampled_from(fitting))
    return Part(text, frozenset(shapes[text]))


def last_day(day: date) -> int:
    return monthrange(day.year, day.month)[1]


def is_last_workday(day: date) -> bool:
    later = (day + DAY * n for n in range(1, last_day(day) - day.day + 1))
    return day.isoweekday() <= 5 and all(each.isoweekday() > 5 for each in later)


def month_days() -> st.SearchStrategy[Days]:
    plain = parts(1, 31).map(lambda part: Days(part.text, lambda day: day.day in part.values))
    special = [
        Days("*", lambda _: True),
        Days("L", lambda day: day.day == last_day(day)),
        Days("LW", is_last_workday),
        Days("15,L", lambda day: day.day in (15, last_day(day))),
        Days("31", lambda day: day.day == 31),
    ]
    return st.one_of(st.just(special[0]), st.sampled_from(special), plain)


def weekdays() -> st.SearchStrategy[Days]:
    def nth(weekday: int, n: int) -> Days:
        return Days(f"{weekday}#{n}", lambda day: day.isoweekday() % 7 == weekday and (day.day - 1) // 7 + 1 == n)

    def last(weekday: int) -> Days:
        return Days(f"{weekday}L", lambda day: day.isoweekday() % 7 == weekday and day.day + 7 > last_day(day))

    special = [
        Days("*", lambda _: True),
        Days("MON-FRI", lambda day: day.isoweekday() <= 5),
        Days("6-7", lambda day: day.isoweekday() >= 6),
        Days("sun", lambda day: day.isoweekday() == 7),
    ]
    plain = parts(0, 6).filter(lambda part: "/" not in part.text)  # cron counts the Sunday twice there
    return st.one_of(
        st.just(special[0]),
        st.sampled_from(special),
        plain.map(lambda part: Days(part.text, lambda day: day.isoweekday() % 7 in part.values)),
        st.builds(nth, st.integers(0, 6), st.integers(1, 5)),
        st.builds(last, st.integers(0, 6)),
    )


every_month = st.just(Part("*", frozenset(range(1, 13))))
some_months = st.one_of(every_month, parts(1, 12))
hours = st.one_of(parts(0, 23), st.sampled_from([Part(str(n), frozenset([n])) for n in (0, 1, 2, 3, 23)]))
expressions = st.builds(
    Expression,
    second=st.none() | parts(0, 59, most=2),
    minute=parts(0, 59),
    hour=hours,
    day=month_days(),
    month=st.one_of(every_month, some_months),
    weekday=weekdays(),
)


# The walk.


def shown(instant: datetime, zone: ZoneInfo) -> datetime:
    """What the clock on the wall shows."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def walk(expression: Expression, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
    """The occurrences in (after, until]."""
    pace = expression.minute.star or expression.hour.star
    every_hour = len(expression.hour.values) == 24
    seconds = expression.second.values if expression.second else {0}
    now = after.replace(second=0, microsecond=0) - DAY  # no clock was ever moved by more than a day
    was, before = shown(now, zone), set[datetime]()
    while (now := now + MINUTE) <= until:
        wall = shown(now, zone)
        fits = expression.fits(wall) and (pace or wall not in before)
        found = {now + timedelta(seconds=n) for n in seconds} if fits else set()
        skipped = (was + MINUTE * n for n in range(1, (wall - was) // MINUTE))
        if not (pace and every_hour) and any(map(expression.fits, skipped)):
            found.add(now)
        yield from sorted(each for each in found if after < each <= until)
        before.add(wall)
        was = wall


@cache
def moved(zone: str) -> list[datetime]:
    """The days on which the clock of the zone is moved."""
    days = [START + DAY * n for n in range((END - START).days)]
    offsets = [day.astimezone(ZoneInfo(zone)).utcoffset() for day in days]
    return [day for day, offset, then in zip(days, offsets, offsets[1:], strict=False) if offset != then] or [START]


@st.composite
def places(draw: st.DrawFn) -> tuple[str, datetime]:
    """A zone and a moment, mostly around a day on which its clock is moved."""
    zone = draw(st.sampled_from(ZONES))
    anywhere = st.datetimes(START.replace(tzinfo=None), END.replace(tzinfo=None), timezones=st.just(UTC))
    around = st.builds(
        lambda day, by: day + by, st.sampled_from(moved(zone)), st.timedeltas(min_value=-DAY, max_value=DAY)
    )
    return zone, draw(around | around | anywhere)


def occurrences(policy: SchedulePolicy, after: datetime, until: datetime) -> Iterator[datetime]:
    found = policy.next_after(after)
    while found and found <= until:
        yield found
        found = policy.next_after(found)


def cron(expression: Expression, zone: str) -> Cron | None:
    """None: it will never run."""
    try:
        return Cron(expression.text, zone)
    except InvalidSchedule as refused:
        if "it will never run" not in str(refused):
            raise
        return None


@given(expressions, places())
@settings(max_examples=examples(60), deadline=None)  # each walks through two days and a half, minute by minute
def test_none_is_skipped_none_is_added(expression: Expression, place: tuple[str, datetime]) -> None:
    zone, after = place
    until = after + DAY * 1.5
    policy = cron(expression, zone)
    found = list(occurrences(policy, after, until)) if policy else []
    assert found == list(walk(expression, ZoneInfo(zone), after, until))


half_past, twelve = Part("30", frozenset([30])), Part("12", frozenset([12]))
at_noon = st.builds(Expression, st.none(), st.just(half_past), st.just(twelve), month_days(), some_months, weekdays())


@given(at_noon, st.sampled_from(ZONES), st.dates(START.date(), END.date()))
@settings(max_examples=examples(150), deadline=None)
def test_the_next_day_that_fits_is_found_however_far_it_is(expression: Expression, zone: str, day: date) -> None:
    assume(zone != "Pacific/Apia" or day.year > 2011)  # it had no noon on 2011-12-30
    later = (day + DAY * n for n in range(1, 50 * 366))
    expected = next((each for each in later if expression.fits_day(each)), None)
    policy = cron(expression, zone)
    found = policy.next_after(noon(day, zone)) if policy else None
    assert found == (expected and noon(expected, zone))


def noon(day: date, zone: str) -> datetime:
    return datetime(day.year, day.month, day.day, 12, 30, tzinfo=ZoneInfo(zone))


@given(expressions, st.sampled_from(ZONES), st.datetimes(timezones=st.timezones()))
@settings(max_examples=examples(150), deadline=None)
def test_any_moment_there_is_has_an_answer(expression: Expression, zone: str, moment: datetime) -> None:
    policy = cron(expression, zone)
    assume(policy)
    assert policy is not None
    found = policy.next_after(moment)
    assert found is None or found > moment
    assert found is not None or moment.year > 9_940


@given(st.text(alphabet="0123456789*/-,#L W@JANMONdaily", max_size=30) | st.text(max_size=20))
@settings(max_examples=examples(300), deadline=None)
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    for fields in (text, f"0 6 * * {text}", f"0 6 {text} * *"):
        try:
            policy = Cron(fields)
        except InvalidSchedule:
            continue
        assert policy.next_after(START) is not None


anchors = st.none() | st.datetimes(timezones=st.just(UTC)).map(lambda each: each.replace(microsecond=0))
intervals = st.integers(1_000, 3_155_760_000_000).map(lambda n: timedelta(milliseconds=n))
steady = st.builds(Every, intervals, anchors)
moments = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


@given(steady, moments)
@settings(max_examples=examples(200), deadline=None)
def test_a_steady_policy_keeps_its_pace(policy: Every, moment: datetime) -> None:
    found = policy.next_after(moment)
    assert found is not None
    assert moment < found <= moment + policy.interval
    assert (found - policy.anchor) % policy.interval == timedelta(0)
    assert policy.next_after(found) == found + policy.interval


stored = st.one_of(
    steady,
    st.builds(EveryMinutes, st.integers(1, 100_000)),
    st.builds(Cron, st.sampled_from(["@daily", "0 6 * * MON", "*/10 30 2 L * *"]), st.sampled_from(ZONES)),
)


@given(stored, moments)
@settings(max_examples=examples(150), deadline=None)
def test_a_stored_policy_answers_like_the_one_that_was_stored(policy: SchedulePolicy, moment: datetime) -> None:
    registry = SchedulePolicyRegistry()
    document: Any = decode(encode(registry.dump(policy)), CodecOptions(tz_aware=True))
    loaded = registry.load(document)
    assert loaded == policy
    assert hash(loaded) == hash(policy)
    assert loaded.next_after(moment) == policy.next_after(moment)


# What is made after downtime.

lively: st.SearchStrategy[SchedulePolicy] = st.one_of(
    st.builds(Every, st.integers(4, 5_000)),  # of very many occurrences only the last are looked at; see unit tests
    st.builds(EveryMinutes, st.integers(1, 90)),
    st.builds(
        Cron,
        st.sampled_from(["*/5 * * * *", "30 2 * * *", "0,20 2 * * *", "*/20 2 * * *", "15 */10 * * * *"]),
        st.sampled_from(ZONES),
    ),
)
lates = st.sampled_from(Late)
durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(hours=2))
visits = st.lists(st.timedeltas(min_value=-HOUR, max_value=HOUR * 2), min_size=1, max_size=8)


@given(lively, places(), st.lists(st.integers(0, 1_000), min_size=1, max_size=8))
@settings(max_examples=examples(150), deadline=None)
def test_small_steps_make_what_one_big_step_makes(
    policy: SchedulePolicy, place: tuple[str, datetime], steps: list[int]
) -> None:
    start = last = now = place[1]
    made: list[datetime] = []
    for seconds in steps:
        now += timedelta(seconds=seconds)
        due = late_occurrences(policy, last, now, window="1d", late=Late.ALL, bound=10_000)
        made.extend(due.occurrences)
        last = due.handled
    at_once = late_occurrences(policy, start, now, window="1d", late=Late.ALL, bound=10_000)
    assert made == list(at_once.occurrences) == list(occurrences(policy, start, now))
    assert (at_once.skipped, at_once.too_old) == (0, False)


@given(lively, places(), visits, durations, durations, lates, st.integers(1, 50))
@settings(max_examples=examples(250), deadline=None)
def test_each_is_made_at_most_once_never_early_never_too_late(
    policy: SchedulePolicy,
    place: tuple[str, datetime],
    steps: list[timedelta],
    window: timedelta,
    tolerance: timedelta,
    late: Late,
    bound: int,
) -> None:
    last = now = place[1]
    made: list[datetime] = []
    for step in steps:  # a negative one is a clock that steps back
        now += step
        due = late_occurrences(policy, last, now, window, late, tolerance=tolerance, bound=bound)
        pending = list(occurrences(policy, last, now))
        inside = [each for each in pending if each >= now - window]
        assert all(each in inside for each in due.occurrences)
        assert len(due.occurrences) <= bound
        assert due.skipped == len(inside) - len(due.occurrences)
        assert due.too_old == (len(inside) < len(pending))
        assert due.next == policy.next_after(max(last, now))
        assert last <= due.handled <= max(last, now)
        assert not list(occurrences(policy, due.handled, now))
        if inside:
            kept = {Late.ALL: inside, Late.LATEST: inside[-1:], Late.SKIP: [t for t in inside if now - t <= tolerance]}
            on_time = now - pending[0] <= tolerance and not due.too_old
            assert list(due.occurrences) == (inside if on_time else kept[late])[-bound:]
        made.extend(due.occurrences)
        last = due.handled
    assert made == sorted(set(made))


@given(st.lists(st.tuples(st.text(), moments), min_size=2, max_size=2, unique=True))
@example([("a@b", START), ("a", START)])
@settings(max_examples=examples(200), deadline=None)
def test_two_occurrences_never_have_one_id(pair: list[tuple[str, datetime]]) -> None:
    ids = [occurrence_id(urn, instant) for urn, instant in pair]
    assert ids[0] != ids[1]
    for (urn, instant), each in zip(pair, ids, strict=True):
        name, _, when = each.rpartition("@")
        assert (name, datetime.fromisoformat(when)) == (urn, instant)
