"""Statistics: the counts of ended jobs, and the values computed from them.

Counts are kept by minute, group and task, and by hour for long periods. Durations are kept as a sum, the longest, and a
*spread*: the number in each of a row of buckets, each 19 % wider than the last. Sums and spreads of any number of
workers and minutes add up, so averages over any time are exact, and percentiles are accurate to a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from bson import ObjectId

from recruiter.domain.job import JobId

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
_BY_THE_HOUR_FROM = 3 * HOUR

_FINEST_SECONDS = 1e-4
"""Shorter durations count as this."""
_BUCKETS_PER_DOUBLING = 4


@dataclass(slots=True)
class Spread:
    """A distribution of durations in seconds."""

    count: int = 0
    total: float = 0.0
    longest: float = 0.0
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        seconds = max(0.0, seconds)  # clocks of two hosts may disagree
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)
        bucket = bucket_of(seconds)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def merge(self, other: Spread) -> None:
        self.count += other.count
        self.total += other.total
        self.longest = max(self.longest, other.longest)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    @property
    def average(self) -> float | None:
        return self.total / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """The duration that this percentage did not exceed; None without durations."""
        if not self.count:
            return None
        wanted, seen = math.ceil(self.count * percent / 100), 0
        if wanted == self.count:  # the last of them, which is known
            return self.longest
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return min(middle_of(bucket), self.longest)
        return self.longest


def bucket_of(seconds: float) -> int:
    if seconds <= _FINEST_SECONDS:
        return 0
    return max(0, math.ceil(math.log2(seconds / _FINEST_SECONDS) * _BUCKETS_PER_DOUBLING))


def longest_of(bucket: int) -> float:
    """The upper bound of this bucket, in seconds."""
    return float(_FINEST_SECONDS * 2 ** (bucket / _BUCKETS_PER_DOUBLING))


def middle_of(bucket: int) -> float:
    return float(_FINEST_SECONDS * 2 ** ((bucket - 0.5) / _BUCKETS_PER_DOUBLING)) if bucket else _FINEST_SECONDS


class Again(StrEnum):
    """Why a job waits again after an attempt."""

    RETRIED = "retried"
    """The attempt failed, or its process died."""
    SNOOZED = "snoozed"
    """The job asked to be run later."""


class Attempted(NamedTuple):
    """An attempt after which its job waits again, to be counted."""

    at: datetime
    group: str
    task: str
    again: Again


class JobEnd(NamedTuple):
    """The end of a job: the facts that are counted, and the step of a flow that ended with it."""

    at: datetime
    state: str
    group: str | None = None
    """None, like the task, for a document that is no job; it is not counted."""
    task: str | None = None
    latency: float | None = None
    execution_time: float | None = None
    flow: ObjectId | None = None
    step: JobId | None = None


@dataclass(slots=True)
class Counts:
    """Ended jobs: their states, their latency, and the duration of their last attempts."""

    ended: dict[str, int] = field(default_factory=dict)
    """By the state in which they ended."""
    latency: Spread = field(default_factory=Spread)
    execution_time: Spread = field(default_factory=Spread)
    again: dict[str, int] = field(default_factory=dict)
    """Attempts after which the job waits again, by `Again`."""

    def add(self, state: str, latency: float | None, execution_time: float | None) -> None:
        self.ended[state] = self.ended.get(state, 0) + 1
        if latency is not None:
            self.latency.add(latency)
        if execution_time is not None:
            self.execution_time.add(execution_time)

    def merge(self, other: Counts) -> None:
        for state, count in other.ended.items():
            self.ended[state] = self.ended.get(state, 0) + count
        self.latency.merge(other.latency)
        self.execution_time.merge(other.execution_time)
        for word, count in other.again.items():
            self.again[word] = self.again.get(word, 0) + count

    @property
    def attempts(self) -> int:
        """Attempts that have ended, those after which the job waits again included."""
        return self.execution_time.count + sum(self.again.values())

    @property
    def total(self) -> int:
        return sum(self.ended.values())


@dataclass(frozen=True, slots=True)
class PeriodCounts:
    """The counts of one minute or hour, group and task."""

    at: datetime
    group: str
    task: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class JobRate:
    value: float
    """Jobs a minute."""
    value_per_second: float


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds; None where nothing was measured."""

    average: float
    """0.0 when nothing has ended, as in the original; the others are None then."""
    median: float | None
    p95: float | None
    p99: float | None
    longest: float | None

    @classmethod
    def of(cls, spread: Spread) -> Times:
        longest = spread.longest if spread.count else None
        return cls(spread.average or 0.0, spread.percentile(50), spread.percentile(95), spread.percentile(99), longest)


@dataclass(frozen=True, slots=True)
class PeriodSummary:
    """The jobs that ended within a time."""

    ended: Mapping[str, int]
    """Number of jobs by the state in which they ended."""
    throughput: JobRate
    latency: Times
    """From the time a job was scheduled for to the start of its last attempt."""
    execution_time: Times
    """The duration of the last attempt."""

    @classmethod
    def of(cls, counts: Counts, span: timedelta) -> PeriodSummary:
        seconds = max(span.total_seconds(), 1e-6)
        rate = JobRate(counts.total / seconds * 60, counts.total / seconds)
        return cls(dict(counts.ended), rate, Times.of(counts.latency), Times.of(counts.execution_time))


Kind = tuple[str, str]
"""Group and task."""


class Backlog(NamedTuple):
    """Jobs that wait or run, as the index knows them."""

    due: int = 0
    postponed: int = 0

    def __add__(self, other: Backlog) -> Backlog:  # type: ignore[override]
        return Backlog(*(one + another for one, another in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Queue:
    """Jobs that have not ended."""

    queued: int
    """Due, and held by no worker."""
    postponed: int
    running: int
    """Held by a worker: running, or about to."""
    zombies: int
    """Held by a worker that is silent."""

    def __add__(self, other: Queue) -> Queue:
        return Queue(
            self.queued + other.queued,
            self.postponed + other.postponed,
            self.running + other.running,
            self.zombies + other.zombies,
        )


@dataclass(frozen=True, slots=True)
class Depth:
    """A recorded sample of the number of waiting and running jobs."""

    at: datetime
    due: int
    running: int
    slots: int
    groups: Mapping[str, int] = field(default_factory=dict)
    """Jobs that had not ended, by group; the largest groups only."""


@dataclass(frozen=True, slots=True)
class Analytics:
    """Jobs that have not ended, and jobs that ended from `since` to `until`."""

    since: datetime
    until: datetime
    jobs: Queue
    counted_at: datetime
    """When the waiting jobs were counted: just now, or recently if there are very many."""
    ended: Mapping[str, int]
    throughput: JobRate
    latency: Times
    execution_time: Times
    step: timedelta
    """A minute; an hour for periods of more than three hours."""
    series: Mapping[datetime, PeriodSummary]
    """The same for each step, by its begin, oldest first; empty steps are included. The first and the last step are cut
    at `since` and `until`."""
    groups: Mapping[str, PeriodSummary]
    tasks: Mapping[str, PeriodSummary]
    queues: Mapping[Kind, Queue]
    """Jobs that have not ended, by group and task."""
    flows: Mapping[Kind, PeriodSummary]
    """Jobs that have ended, by group and task."""


def window(at: datetime, within: timedelta, now: datetime) -> tuple[datetime, datetime]:
    """The whole minutes that cover `within` before `at`; the minute of `at` itself as far as it has gone."""
    since = minute_of(at - within)
    return since, max(min(minute_of(at) + MINUTE, now), since)


def minute_of(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def whole_hours(since: datetime, until: datetime) -> tuple[datetime, datetime]:
    """The part of the window for which hours are used; empty for a short window."""
    if until - since <= _BY_THE_HOUR_FROM:
        return since, since
    return hour_of(since + HOUR - timedelta(microseconds=1)), hour_of(until)


def add_up(
    counted: Iterable[PeriodCounts],
    queues: Mapping[Kind, Queue],
    counted_at: datetime,
    since: datetime,
    until: datetime,
) -> Analytics:
    """Adds up the counts of periods: in all, step by step, by group and by task."""
    step, begin_of = (HOUR, hour_of) if until - since > _BY_THE_HOUR_FROM else (MINUTE, minute_of)
    first = begin_of(since)
    series = {first + number * step: Counts() for number in range(max(0, math.ceil((until - first) / step)))}
    ended_of: dict[Kind, Counts] = {}
    for period in counted:  # there may be very many
        if (begin := begin_of(period.at)) in series:  # not in it: a document that was written by hand
            series[begin].merge(period.counts)
        ended_of.setdefault((period.group, period.task), Counts()).merge(period.counts)
    total = Counts()
    groups: dict[str, Counts] = {}
    tasks: dict[str, Counts] = {}
    for (group, task), counts in ended_of.items():
        for sums in (total, groups.setdefault(group, Counts()), tasks.setdefault(task, Counts())):
            sums.merge(counts)
    span = until - since
    summary = PeriodSummary.of(total, span)
    return Analytics(
        since=since,
        until=until,
        jobs=sum(queues.values(), Queue(0, 0, 0, 0)),
        counted_at=counted_at,
        ended=summary.ended,
        throughput=summary.throughput,
        latency=summary.latency,
        execution_time=summary.execution_time,
        step=step,
        series={
            # The window cuts off the first and the last step.
            max(begin, since): PeriodSummary.of(counts, min(begin + step, until) - max(begin, since))
            for begin, counts in series.items()
        },
        groups={name: PeriodSummary.of(counts, span) for name, counts in sorted(groups.items())},
        tasks={name: PeriodSummary.of(counts, span) for name, counts in sorted(tasks.items())},
        queues=queues,
        flows={kind: PeriodSummary.of(counts, span) for kind, counts in sorted(ended_of.items())},
    )
