"""Metrics for Prometheus. Needs the extra `metrics`.

`REGISTRY.register(RecruiterCollector(recruiter))` adds them to the metrics of an application; `recruiter metrics` and
the web console's `/metrics` expose them alone. The collector reads MongoDB when it is scraped, and keeps the answer for
a few seconds.

Every number covers the whole fleet, so scrape only one process. Labels are group, task, state, outcome and limit: never
a job, a worker or a host, whose number is unbounded. The first hundred pairs of group and task have their own labels,
and all others share one.
"""

from __future__ import annotations

import gzip
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6

from recruiter.first_use import missing_extra

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise missing_extra("metrics", error) from None

import recruiter as package
from recruiter.app import Recruiter
from recruiter.caches import Cache
from recruiter.domain.state import State
from recruiter.domain.statistics import Again, Counts, Kind, Queue, Spread, longest_of
from recruiter.errors import SettingsError, StoreError
from recruiter.views.metrics import Metrics, metrics

__all__ = ["RecruiterCollector"]

OTHER = "_other"
KEPT_SECONDS = 5.0

_BUCKETS = range(16, 104, 4)
"""The buckets to expose: each is twice as long as the last, from 1.6 ms to 56 minutes."""
_KIND = ("group", "task")
_WORKERS = ("works", "joining", "drained", "leaving", "silent")
_SCHEDULES = ("on_time", "late", "overdue", "paused", "broken")
_ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST)


class RecruiterCollector(Collector):
    """All metrics of the fleet on this Recruiter's database. `kinds` bounds how many groups and tasks get labels."""

    def __init__(self, recruiter: Recruiter, *, kinds: int = 100, kept: float = KEPT_SECONDS) -> None:
        self._recruiter = recruiter
        self._max_kinds = kinds
        self._kept: Cache[tuple[Metrics | None, float]] = Cache(kept)

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registration does not read MongoDB."""
        return ()

    def collect(self) -> Iterator[Metric]:
        read, took = self._kept.get("all", self._read)
        yield InfoMetricFamily("recruiter_build", "The version of Recruiter.", {"version": package.__version__})
        yield _gauge("recruiter_up", "Whether MongoDB could be read.", float(read is not None))
        yield _gauge("recruiter_read_duration_seconds", "Duration of reading these metrics from MongoDB.", took)
        if read is not None:
            labels = _Labels(read, self._max_kinds)
            yield from _of_jobs(read, labels)
            yield from _of_ended(labels.totals)
            yield from _of_fleet(read)
            yield from _of_limits(read, self._max_kinds)

    def _read(self) -> tuple[Metrics | None, float]:
        began = time.monotonic()
        try:
            return metrics(self._recruiter.store), time.monotonic() - began
        except StoreError:
            return None, time.monotonic() - began


class _Labels:
    """The numbers by group and task, for a bounded number of labels."""

    def __init__(self, read: Metrics, max_kinds: int) -> None:
        kinds = [*read.totals, *(kind for kind in sorted(read.queues) if kind not in read.totals)]
        own = set(kinds[:max_kinds])
        self.totals: dict[Kind, Counts] = {}
        self.queues: dict[Kind, Queue] = {}
        for kind in kinds:
            label = kind if kind in own else (OTHER, OTHER)
            self.totals.setdefault(label, Counts()).merge(read.totals.get(kind, Counts()))
            queue = self.queues.get(label, Queue(0, 0, 0, 0))
            self.queues[label] = queue + read.queues.get(kind, Queue(0, 0, 0, 0))
        groups = dict.fromkeys(group for group, _ in self.totals)
        self.oldest: dict[str, float] = {}
        self.paused: dict[str, bool] = {}
        for group, age in read.oldest_due.items():
            name = group if group in groups else OTHER
            self.oldest[name] = max(age, self.oldest.get(name, 0.0))
            self.paused[name] = group in read.paused or self.paused.get(name, False)


def _of_jobs(read: Metrics, labels: _Labels) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("recruiter_jobs", "Jobs that have not ended, by state.", labels=(*_KIND, "state"))
    for kind, queue in labels.queues.items():
        counts = (queue.queued, queue.postponed, queue.running, queue.zombies)
        for state, count in zip(("queued", "postponed", "running", "zombie"), counts, strict=True):
            jobs.add_metric((*kind, state), count)
    yield jobs
    help = "How long the oldest due job of the group has been due; 0 if no due job waits."
    yield _by("recruiter_oldest_due_job_age_seconds", help, "group", labels.oldest)
    help = "1 if the group is paused, or all starts are blocked."
    yield _by("recruiter_group_paused", help, "group", {name: float(is_) for name, is_ in labels.paused.items()})
    yield _gauge("recruiter_archived_jobs", "Approximate number of jobs in the archive.", read.archived)


def _of_ended(totals: Mapping[Kind, Counts]) -> Iterator[Metric]:
    help = "Attempts that were started, counted when they end; running attempts are in recruiter_jobs."
    starts = CounterMetricFamily("recruiter_job_starts", help, labels=_KIND)
    ended = CounterMetricFamily("recruiter_jobs_ended", "Jobs that have ended.", labels=(*_KIND, "outcome"))
    retries = CounterMetricFamily("recruiter_job_retries", "Failed attempts that are tried again.", labels=_KIND)
    snoozes = CounterMetricFamily("recruiter_job_snoozes", "Jobs that asked to be run later.", labels=_KIND)
    help = "Duration of the last attempt of each ended job."
    durations = HistogramMetricFamily("recruiter_job_duration_seconds", help, labels=_KIND)
    help = "Time from when an ended job was due to the start of its last attempt."
    waits = HistogramMetricFamily("recruiter_job_wait_seconds", help, labels=_KIND)
    for kind, counts in totals.items():
        starts.add_metric(kind, counts.attempts)
        retries.add_metric(kind, counts.again.get(Again.RETRIED, 0))
        snoozes.add_metric(kind, counts.again.get(Again.SNOOZED, 0))
        for state in _ENDED:
            ended.add_metric((*kind, state.value), counts.ended.get(state, 0))
        durations.add_metric(kind, _buckets(counts.execution_time), counts.execution_time.total)
        waits.add_metric(kind, _buckets(counts.latency), counts.latency.total)
    yield from (starts, ended, retries, snoozes, durations, waits)


def _of_fleet(read: Metrics) -> Iterator[Metric]:
    yield _by("recruiter_workers", "Workers, by state.", "state", _all(_WORKERS, read.workers))
    yield _gauge("recruiter_slots", "Jobs that all workers together can run concurrently.", read.slots)
    yield _gauge("recruiter_slots_used", "Slots that have a job.", read.slots_used)
    yield _gauge("recruiter_leader_present", "Whether a recruiter leads.", float(read.leader_present))
    yield _gauge("recruiter_leader_term", "The term of the leader; it grows with every takeover.", read.term)
    assigned = CounterMetricFamily("recruiter_assigned_jobs", "Jobs that leaders have assigned to workers.")
    assigned.add_metric((), read.assigned)
    yield assigned
    help = "Duration of a round in which the leader assigns due jobs to workers."
    rounds = HistogramMetricFamily("recruiter_assignment_round_seconds", help)
    rounds.add_metric((), _buckets(read.rounds), read.rounds.total)
    yield rounds
    yield _by("recruiter_schedules", "Repeatable jobs, by state.", "state", _all(_SCHEDULES, read.schedules))
    yield _gauge(
        "recruiter_schedule_lateness_seconds", "How late the most delayed repeatable job is.", read.schedule_lateness
    )


def _of_limits(read: Metrics, max_limits: int) -> Iterator[Metric]:
    uses = read.limits[:max_limits]
    bound = {use.limit.subject: use.limit.at_once for use in uses if use.limit.at_once is not None}
    used = {use.limit.subject: use.used for use in uses if use.limit.at_once is not None}
    help = "The used amount of a limit: jobs, or an amount of a resource; for a limit on keys, of the fullest key."
    yield _by("recruiter_limit_used", help, "limit", used)
    yield _by("recruiter_limit_allowed", "The amount of a limit that may be in use.", "limit", bound)
    rates = {use.limit.subject: use.limit.rate.count for use in uses if use.limit.rate is not None}
    started = {use.limit.subject: use.started for use in uses if use.limit.rate is not None}
    yield _by("recruiter_limit_starts", "Jobs that have started in the period of a rate limit.", "limit", started)
    yield _by("recruiter_limit_starts_allowed", "Jobs that may start in the period of a rate limit.", "limit", rates)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value)


def _by(name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


def _all(names: Sequence[str], counts: Mapping[str, int]) -> dict[str, float]:
    """Includes zeros: a metric that comes and goes cannot be alerted on."""
    return {name: float(counts.get(name, 0)) for name in names}


def _buckets(spread: Spread) -> list[tuple[str, float]]:
    """Cumulative counts by duration. The bounds are bounds of the stored buckets, so nothing is estimated."""
    counts: list[tuple[str, float]] = []
    for last in _BUCKETS:
        upto = sum(count for bucket, count in spread.buckets.items() if bucket <= last)
        counts.append((repr(round(longest_of(last), 7)), upto))
    return [*counts, ("+Inf", spread.count)]


TOKEN_VARIABLE = "RECRUITER_METRICS_TOKEN"
"""The token that a scraper sends: `Authorization: Bearer …`."""


class Exposition:
    """The metrics of one Recruiter, and nothing else."""

    def __init__(self, recruiter: Recruiter) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(RecruiterCollector(recruiter))

    def written(self, accept: str = "", accept_encoding: str = "") -> tuple[bytes, dict[str, str]]:
        """The metrics in the requested format, and the headers of the response."""
        encode, content_type = choose_encoder(accept)
        text: bytes = encode(self._registry)
        headers = {"content-type": content_type, "vary": "accept, accept-encoding"}
        if len(text) > 500 and "gzip" in accept_encoding:
            return gzip.compress(text, 5), {**headers, "content-encoding": "gzip"}
        return text, headers


def may_scrape(authorization: str) -> bool | None:
    """Whether this header has the token; None if no token is configured."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        return None
    scheme, _, sent = authorization.partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(sent.strip().encode(), token.encode())


def server(exposition: Exposition, host: str, port: int) -> ThreadingHTTPServer:
    """A server that listens there. Raises SettingsError."""
    try:
        return _ExpositionServer(exposition, host, port)
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"cannot listen on {host}:{port}: {reason}; choose another --port") from None


class _ExpositionServer(ThreadingHTTPServer):
    """Answers scrapers, each request in its own thread."""

    daemon_threads = True

    def __init__(self, exposition: Exposition, host: str, port: int) -> None:
        self.exposition = exposition
        self.address_family = AF_INET6 if ":" in host else AF_INET
        super().__init__((host, port), _ExpositionHandler)


class _ExpositionHandler(BaseHTTPRequestHandler):
    server: _ExpositionServer
    server_version = "recruiter"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path != "/metrics":
            status = 200 if path == "/" else 404
            self._answer(status, b"The metrics are at /metrics.\n", {"content-type": "text/plain"})
        elif may_scrape(self.headers.get("authorization", "")) is False:
            self._answer(401, b"Send the token.\n", {"www-authenticate": "Bearer", "content-type": "text/plain"})
        else:
            accept = (self.headers.get(name, "") for name in ("accept", "accept-encoding"))
            self._answer(200, *self.server.exposition.written(*accept))

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body)), "cache-control": "no-store"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not logged."""
