"""Limits: the number of jobs of a task, a group or a key that may be held together or start in a period, and the amount
of a resource that the whole fleet may use.

The *subject* of a limit:

    task:resize         every job of this task
    group:mail          every job of this group
    key:customer        every job with a key `customer:…`, each customer separately
    key:charge/customer the same, of the task `charge` only: `@recruiter.task(limits={"customer": "2/10s"})`
    resource:mem        what all jobs together use of it, on all hosts

Jobs are counted in *buckets*: the subject itself, and for keys one bucket per key (`key:customer:42`,
`key:charge/customer:42`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from recruiter.domain.duration import DurationLike, humanize, to_seconds
from recruiter.domain.job import JobId
from recruiter.domain.lane import Lane
from recruiter.domain.names import check_name
from recruiter.domain.planning.needs import THOUSAND, AmountLike, amount_of, said
from recruiter.domain.text import said_by
from recruiter.errors import RecruiterError, SettingsError

TASK, GROUP, KEY, RESOURCE = "task", "group", "key", "resource"
_EXAMPLES = "'task:resize', 'group:mail', 'key:customer' or 'resource:mem'"
_MIN_PERIOD_SECONDS, _MAX_PERIOD_SECONDS = 0.001, 366 * 86400.0
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GRAINS_PER_PERIOD = 100

LIMITLESS = 2**100
"""More than any limit allows."""

Start = tuple[datetime, int]
"""A time, and the number of jobs that started then."""


MAX_STARTS = 1_000_000_000
"""Of a rate, in its period."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` starts within any period of `seconds`: strict, not on average.

    Two starts exactly `seconds` apart are not in one window. A log of starts may be in any order, and may hold moments
    to come (another leader's clock was ahead): whatever is less than a window away from now counts.
    """

    count: int
    seconds: float

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or not 1 <= self.count <= MAX_STARTS:
            raise SettingsError(
                f"a rate is a whole number of starts, from 1 to {MAX_STARTS:,}, not {_shown(self.count)}"
            )
        if not isinstance(self.seconds, int | float) or not _MIN_PERIOD_SECONDS <= self.seconds <= _MAX_PERIOD_SECONDS:
            raise SettingsError(f"the period of a rate is 1ms to 366 days, not {_shown(self.seconds)} seconds")

    @classmethod
    def parse(cls, text: str) -> Rate:
        """From text: "5/1s", "100/minute", "1000/24 hours"."""
        count, _, time = text.partition("/") if isinstance(text, str) else ("", "", "")
        time = time.strip()
        try:
            return cls(int(count), to_seconds(f"1 {time}" if time[:1].isalpha() else time))
        except (ValueError, RecruiterError):
            raise SettingsError(
                f"{_shown(text)} is not a rate; write how many may start in which time, as in '5/1s' or '100/minute'"
            ) from None

    @property
    def window(self) -> timedelta:
        return timedelta(seconds=self.seconds)

    def left(self, log: Iterable[Start], now: datetime) -> int:
        """The number of jobs that may start now."""
        return max(0, self.count - sum(count for moment, count in log if abs(moment - now) < self.window))

    def next_at(self, log: Iterable[Start], now: datetime) -> datetime:
        """The first time, from now on, at which a job may start."""
        window, starts = self.window, sorted(log)
        # `within` jobs started less than a window before or after the checked time: `starts[first:beyond]`.
        moment, first, beyond, within = now, 0, 0, 0
        while True:
            while beyond < len(starts) and starts[beyond][0] < moment + window:
                within += starts[beyond][1]
                beyond += 1
            while first < beyond and starts[first][0] <= moment - window:
                within -= starts[first][1]
                first += 1
            if within < self.count:
                return moment
            moment = starts[first][0] + window  # when the oldest of them counts no longer

    def noted(self, log: Iterable[Start], now: datetime, count: int) -> list[Start]:
        """The log with `count` more starts now, and without starts that count no longer. It never gets long.

        Times are rounded up to a hundredth of the window and at least to the milliseconds that MongoDB stores:
        later than the truth, so the next jobs wait a little longer and the rate is never exceeded.
        """
        grain = max(1, math.ceil(self.seconds * 1000 / _GRAINS_PER_PERIOD)) * _MILLISECOND
        grains: dict[datetime, int] = {}
        for moment, starts in sorted([*log, (now, count)]):
            if moment > now - self.window and starts > 0:
                rounded = _EPOCH - (_EPOCH - moment) // grain * grain
                grains[rounded] = grains.get(rounded, 0) + starts
        return list(grains.items())

    def __str__(self) -> str:
        return f"{self.count} per {humanize(self.window)}"


@dataclass(frozen=True, slots=True)
class Limit:
    """A maximum held together, a maximum of starts in a period, or both. Made by `Limit.of("resource:mem", "64GiB")`.

    `at_once` is a number of jobs, or for a resource an amount of it. Zero stops the subject altogether.
    """

    subject: str
    at_once: float | None = None
    rate: Rate | None = None
    floating: bool = False
    """The resource belongs to the fleet, as a licence does: hosts need not declare it, jobs take it anywhere."""

    @classmethod
    def of(
        cls,
        subject: str,
        at_once: AmountLike | None = None,
        *,
        count: int | None = None,
        seconds: DurationLike | None = None,
        floating: bool = False,
    ) -> Limit:
        """Makes a limit. The amount and the time may be strings."""
        kind, name = split_subject(subject)
        if (count is None) != (seconds is None):
            raise SettingsError(f"a rate needs both: how many, and in what time: {subject}")
        try:
            if isinstance(at_once, str):
                thousandths = amount_of(name if kind == RESOURCE else "jobs", at_once)
                at_once = thousandths / THOUSAND if thousandths % THOUSAND else thousandths // THOUSAND
            rate = None if count is None or seconds is None else Rate(count, to_seconds(seconds))
        except RecruiterError as error:
            raise SettingsError(f"limit of {subject}: {error}") from None
        return cls(subject, at_once, rate, floating)

    def __post_init__(self) -> None:
        kind, name = split_subject(self.subject)
        if self.at_once is None and self.rate is None:
            raise SettingsError(f"a limit of {self.subject} needs a number of running jobs, or a rate")
        if kind == RESOURCE and (self.rate is not None or self.at_once is None):
            raise SettingsError(f"a limit of {self.subject} is an amount; rates are for tasks, groups and keys")
        if kind != RESOURCE and self.floating:
            raise SettingsError(f"only a resource can be floating, not {self.subject}")
        try:
            thousandths = amount_of(name if kind == RESOURCE else "jobs", self.at_once)
        except RecruiterError as error:
            raise SettingsError(f"limit of {self.subject}: {error}") from None
        if isinstance(self.at_once, str) or (kind != RESOURCE and thousandths % THOUSAND):
            raise SettingsError(f"a limit of {self.subject} is a whole number of jobs, not {_shown(self.at_once)}")

    def __str__(self) -> str:
        """Its bounds, for people, such as `100 per 1m`."""
        ceiling = self.ceiling
        amount = None if ceiling is None else said(self.name, ceiling)[0] if self.kind == RESOURCE else str(ceiling)
        return ", ".join(filter(None, (amount and f"{amount} at once", str(self.rate or ""))))

    @property
    def kind(self) -> str:
        return self.subject.partition(":")[0]

    @property
    def name(self) -> str:
        return self.subject.partition(":")[2]

    @property
    def task(self) -> str | None:
        """The task whose jobs alone it is about."""
        if self.kind == TASK:
            return self.name
        return self.name.rpartition("/")[0] or None if self.kind == KEY else None

    @property
    def ceiling(self) -> int | None:
        """`at_once` in the unit of the counters: jobs, or thousandths of the resource."""
        if self.at_once is None:
            return None
        return amount_of(self.name, self.at_once) if self.kind == RESOURCE else int(self.at_once)

    def covers(self, lane: Lane) -> bool:
        return self.bucket(lane) is not None

    def bucket(self, lane: Lane) -> str | None:
        """The bucket of jobs of this lane; None when the limit does not cover them."""
        if self.kind == KEY:
            task, _, kind = self.name.rpartition("/")
            covers = lane.kind_of_key == kind and task in ("", lane.task)
            return f"{KEY}:{_within(task)}{lane.key}" if covers else None
        if self.kind == RESOURCE:
            return self.subject if any(name == self.name for name, _ in lane.needs.thousandths) else None
        return self.subject if self.name == (lane.task if self.kind == TASK else lane.group) else None


KeyLimit = int | str
"""The limit of each key, in code: a number of jobs, or a rate such as "2/10s"."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The limits that a task declares for its jobs: `@recruiter.task(max_running=2, rate="5/1s", limits={"customer":
    "2/10s"})`."""

    max_running: int | None = None
    rate: Rate | None = None
    of_keys: tuple[tuple[str, int | Rate], ...] = ()
    """By the kind of key."""

    @classmethod
    def parse(
        cls, max_running: int | None, rate: str | None, limits: Mapping[str, KeyLimit] | None = None
    ) -> Ceiling | None:
        """Reads the options of a task; None if they limit nothing. Raises SettingsError."""
        if max_running is None and rate is None and not limits:
            return None
        if limits is not None and not isinstance(limits, Mapping):
            raise SettingsError(f'limits are by the kind of key, as in {{"customer": "2/10s"}}, not {_shown(limits)}')
        given = (limits or {}).items()
        of_keys = tuple((kind, Rate.parse(most) if isinstance(most, str) else most) for kind, most in given)
        return cls(max_running, None if rate is None else Rate.parse(rate), of_keys)

    def limits_of(self, task: str) -> list[Limit]:
        """The limits on the jobs of a task that has this ceiling. Raises SettingsError."""
        limits = (
            []
            if self.max_running is None and self.rate is None
            else [Limit(f"{TASK}:{task}", self.max_running, self.rate)]
        )
        for kind, most in self.of_keys:
            at_once, rate = (None, most) if isinstance(most, Rate) else (most, None)
            limits.append(Limit(f"{KEY}:{task}/{kind}", at_once, rate))
        return limits


def split_subject(subject: str) -> tuple[str, str]:
    """Kind and name. Raises SettingsError for an unknown subject."""
    kind, colon, name = subject.partition(":") if isinstance(subject, str) else ("", "", "")
    if not colon or kind not in (TASK, GROUP, KEY, RESOURCE):
        raise SettingsError(f"{_shown(subject)} cannot be limited; write {_EXAMPLES}")
    task, slash, last = name.rpartition("/") if kind == KEY else ("", "", name)
    try:
        check_name(kind, last)
        if slash:
            check_name(TASK, task)
    except RecruiterError as error:
        raise SettingsError(f"{_shown(subject)} cannot be limited: {error}") from None
    if kind == KEY and ":" in last:
        each = f"{KEY}:{_within(task)}{last.partition(':')[0]}"
        raise SettingsError(f"{_shown(subject)} cannot be limited: write {each}, for each key separately")
    if kind == RESOURCE and ("=" in name or "," in name):
        raise SettingsError(f"{_shown(subject)} cannot be limited: the name of a resource has no '=' and no ','")
    return kind, name


def subject_of(bucket: str) -> str:
    """The subject of the limit that counts in this bucket."""
    kind, _, name = bucket.partition(":")
    if kind != KEY:
        return bucket
    task, slash, key = name.rpartition("/")
    return f"{KEY}:{task}{slash}{key.partition(':')[0]}"


def _within(task: str) -> str:
    return f"{task}/" if task else ""


# -- why not ---------------------------------------------------------------------------------------------------------


class Reason:
    """Why a job waits. A small value; `str()` is a sentence for people."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AtLimit(Reason):
    bucket: str
    at_once: int
    holders: tuple[JobId, ...]
    """The first few of the jobs that hold it."""
    held: int

    def __str__(self) -> str:
        if not self.held:
            return f"{_titled(self.bucket)} is stopped by its limit of {self.at_once}"
        return f"{_titled(self.bucket)} is at its limit of {self.at_once} (held by {_listed(self.holders, self.held)})"


@dataclass(frozen=True, slots=True)
class AtRate(Reason):
    bucket: str
    rate: Rate
    next_at: datetime

    def __str__(self) -> str:
        return f"{_titled(self.bucket)} may start {self.rate}; the next one at {self.next_at:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class FleetBusy(Reason):
    resource: str
    needed: int
    free: int
    most: int

    def __str__(self) -> str:
        needed, free, most = said(self.resource, self.needed, self.free, self.most)
        return f"needs {needed} of {self.resource}; the whole fleet may use {most}, and {free} are free"


@dataclass(frozen=True, slots=True)
class KeptFor(Reason):
    """Something is free, and kept for a job that came first and waits for more."""

    what: str
    job: JobId

    def __str__(self) -> str:
        return f"{self.what} is reserved for job {self.job}, which comes first"


_MAX_HOLDERS_NAMED = 5


# -- counting -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Counter:
    """The use of one bucket of one limit: by held jobs, and kept for a waiting job."""

    limit: Limit
    bucket: str
    ceiling: int | None
    log: Sequence[Start]
    now: datetime
    startable: int
    used: int = 0
    holders: list[JobId] = field(default_factory=list)
    started: int = 0
    kept: int = 0
    keeper: JobId | None = None

    def refusal(self, amount: int, first: Collection[JobId]) -> Reason | None:
        """Why `amount` more cannot be assigned; None if it can. An amount that is kept for another job is missing only
        if that job is in `first`."""
        if self.ceiling is not None and self.used + amount > self.ceiling:
            if self.limit.kind == RESOURCE:
                return FleetBusy(self.limit.name, amount, max(0, self.ceiling - self.used), self.ceiling)
            return AtLimit(self.bucket, self.ceiling, tuple(self.holders[:_MAX_HOLDERS_NAMED]), len(self.holders))
        if self.limit.rate is not None and self.started >= self.startable:
            return AtRate(self.bucket, self.limit.rate, self.limit.rate.next_at(self.new_log(), self.now))
        if self.keeper is not None and self.keeper in first and amount > self.room():
            return KeptFor(f"what is left of {_titled(self.bucket)}", self.keeper)
        return None

    def new_log(self) -> Sequence[Start]:
        """The log as the next round will read it: with the jobs that were started."""
        if self.limit.rate is None or not self.started:
            return self.log
        return self.limit.rate.noted(self.log, self.now, self.started)

    def room(self) -> int:
        """The jobs or thousandths that may still be assigned. `refusal` returns the reason why it is not enough."""
        startable = self.startable - self.started - (self.keeper is not None)
        if self.ceiling is None:
            return startable
        return min(startable, self.ceiling - self.used - self.kept)


_Counters = tuple[list[_Counter], list[tuple[_Counter, int]]]
"""The counters of the jobs of a lane, and of the resources that they take."""
_NONE: _Counters = ([], [])


class Meter:
    """The use of all limits. Count the held jobs first, then ask for any lane.

    A limit may keep the amount that one waiting job needs (`keep`): then other jobs may not take the last of it. Only
    the first job gets that; the second has to wait for the first anyway.
    """

    def __init__(self, limits: Iterable[Limit], starts: Mapping[str, Sequence[Start]], now: datetime) -> None:
        self._starts = starts
        self._now = now
        self._counters: dict[str, list[_Counter]] = {}
        self._of_keys: dict[str, list[Limit]] = {}
        self._known: dict[Lane, _Counters] = {}
        limits = list(limits)
        self._limited = bool(limits)
        for limit in limits:
            if limit.kind == KEY:
                self._of_keys.setdefault(limit.name, []).append(limit)
            else:
                self._counters.setdefault(limit.subject, []).append(self._counter(limit, limit.subject))

    def is_limited(self, lane: Lane) -> bool:
        return any(self._counters_of(lane))

    def needs_planning(self, lane: Lane) -> bool:
        """Whether its jobs are planned one by one: they need resources, are isolated, or are under a limit."""
        return bool(lane.needs) or lane.isolated or lane.key is not None or self.is_limited(lane)

    def can_prefetch(self, lane: Lane) -> bool:
        """Whether its jobs may wait in the buffer of a worker: they need no resources, and no rate. A rate counts jobs
        when they are assigned, and they have to start then."""
        return not lane.needs and all(counter.limit.rate is None for counter in self._counters_of(lane)[0])

    def take(self, lane: Lane, id: JobId) -> None:
        """Counts a job that a worker holds."""
        counts, resources = self._counters_of(lane)
        for counter in counts:
            counter.used += 1
            counter.holders.append(id)
        for counter, amount in resources:
            counter.used += amount

    def start(self, lane: Lane, id: JobId) -> None:
        """Counts a job that is given to a worker now."""
        self.take(lane, id)
        for counter in self._counters_of(lane)[0]:
            counter.started += 1

    def allows(self, lane: Lane) -> bool:
        """Whether the limits of its task, group and key let a job of this lane start now."""
        for counter in self._counters_of(lane)[0]:  # noqa: SIM110 - asked for every job
            if counter.room() < 1:
                return False
        return True

    def suffices(self, lane: Lane) -> bool:
        """Whether the fleet has enough for a job of this lane now."""
        for counter, amount in self._counters_of(lane)[1]:  # noqa: SIM110 - asked for every job
            if counter.room() < amount:
                return False
        return True

    def refusal(self, lane: Lane, first: Collection[JobId] = ()) -> Reason | None:
        """Why no job of this lane may start: too many are held, or started lately, or the last place is kept for a job
        that comes first."""
        return next((reason for counter in self._counters_of(lane)[0] if (reason := counter.refusal(1, first))), None)

    def shortage(self, lane: Lane, first: Collection[JobId] = ()) -> Reason | None:
        """Why the fleet has not enough for a job of this lane."""
        reasons = (counter.refusal(amount, first) for counter, amount in self._counters_of(lane)[1])
        return next(filter(None, reasons), None)

    def never(self, lane: Lane) -> tuple[str, int] | None:
        """The resource of which the fleet may not use as much as one such job needs, and how much it may."""
        for counter, amount in self._counters_of(lane)[1]:
            if counter.ceiling is not None and amount > counter.ceiling:
                return counter.limit.name, counter.ceiling
        return None

    def can_keep(self, lane: Lane) -> bool:
        """False if it lacks a resource of the fleet that another job waits for: that one comes first."""
        _, resources = self._counters_of(lane)
        return not any(counter.keeper is not None and counter.room() < amount for counter, amount in resources)

    def keep(self, lane: Lane, id: JobId) -> None:
        """Keeps the amounts that a waiting job needs."""
        counts, resources = self._counters_of(lane)
        for counter, amount in [*((counter, 1) for counter in counts), *resources]:
            if counter.keeper is None:
                counter.kept, counter.keeper = amount, id

    def room(self, lane: Lane) -> int:
        """The number of jobs of this lane that the limits would let start now: the planner reads only these."""
        counts, resources = self._counters_of(lane)
        rooms = [counter.room() for counter in counts] + [counter.room() // amount for counter, amount in resources]
        return max(0, min(rooms, default=LIMITLESS))

    def logs(self) -> dict[str, list[Start]]:
        """The new log of every bucket with a rate of which jobs were assigned."""
        counters = (counter for counters in self._counters.values() for counter in counters)
        return {
            counter.bucket: list(counter.new_log()) for counter in counters if counter.started and counter.limit.rate
        }

    def _counters_of(self, lane: Lane) -> _Counters:
        """The counters of every limit on jobs of this lane."""
        if not self._limited:
            return _NONE
        known = self._known.get(lane)
        if known is None:
            counts = [*self._counters_of_key(lane)] if lane.key is not None else []
            counts += self._counters.get(f"{TASK}:{lane.task}", ())
            counts += self._counters.get(f"{GROUP}:{lane.group}", ())
            resources = [
                (counter, amount)
                for name, amount in lane.needs.thousandths
                for counter in self._counters.get(f"{RESOURCE}:{name}", ())
            ]
            known = self._known[lane] = (counts, resources)
        return known

    def _counters_of_key(self, lane: Lane) -> list[_Counter]:
        """The counters of the limits on its key, for all tasks and for its task. Made on first use."""
        counters: list[_Counter] = []
        for task in ("", lane.task):
            bucket = f"{KEY}:{_within(task)}{lane.key}"
            if bucket not in self._counters:
                limits = self._of_keys.get(f"{_within(task)}{lane.kind_of_key}", ())
                self._counters[bucket] = [self._counter(limit, bucket) for limit in limits]
            counters += self._counters[bucket]
        return counters

    def _counter(self, limit: Limit, bucket: str) -> _Counter:
        log = self._starts.get(bucket, ()) if limit.rate else ()
        startable = limit.rate.left(log, self._now) if limit.rate else LIMITLESS
        return _Counter(limit, bucket, limit.ceiling, log, self._now, startable)


def _titled(bucket: str) -> str:
    kind, _, name = bucket.partition(":")
    task, slash, key = name.rpartition("/")
    return f"{kind} {key} of task {task}" if slash else f"{kind} {name}"


def _listed(ids: Sequence[JobId], total: int) -> str:
    shown = ", ".join(str(id) for id in ids)
    return f"{'job' if total == 1 else 'jobs'} {shown}" + (f" and {total - len(ids)} more" if total > len(ids) else "")


def _shown(value: object) -> str:
    return said_by(value, repr, 100)
