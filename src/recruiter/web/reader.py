"""The reader: everything that the console and its API look at. The only module here that knows steps and store.

Each method reads MongoDB once and returns plain values (`schemas.py`), redacted. Only `record` writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast, get_args

from bson import ObjectId

import recruiter as package
from recruiter.app import Recruiter
from recruiter.caches import Cache
from recruiter.doctor import examine
from recruiter.doctor.findings import Finding, Level
from recruiter.domain.duration import resolved, to_moment, to_timedelta
from recruiter.domain.flow import FlowState
from recruiter.domain.job import Job, JobId
from recruiter.domain.names import DEFAULT_PREFIX
from recruiter.domain.observation import SILENT
from recruiter.domain.planning.rules import Rules
from recruiter.domain.policy_registry import policy_text, policy_words
from recruiter.domain.schedule.scheduler import Scheduler
from recruiter.domain.search.filter import ENDED, JobFilter, Page, filter_from_words
from recruiter.domain.state import WHY_SKIPPED, State
from recruiter.domain.statistics import Analytics, Depth, Kind, Queue, window
from recruiter.errors import InvalidFilter, RecruiterError, StoreError, UnreadableDocument
from recruiter.steps.repeat import next_runs
from recruiter.store.codec import job_from
from recruiter.store.collections.actions import ActionEntry
from recruiter.store.collections.flows import FlowPlace
from recruiter.store.connection import answered_within
from recruiter.store.database import ServerFacts, Store
from recruiter.store.search.search import MINIMAL
from recruiter.views.analytics import Performance, PerformanceBy, history, performances
from recruiter.views.explain import WaitReason, kinds_waiting, waiting_reasons
from recruiter.views.find import known_names
from recruiter.views.flows import FlowReport, failed_step, find_flows
from recruiter.views.record import job_record
from recruiter.views.resources import limit_uses
from recruiter.web import schemas, sentences, serializers
from recruiter.web.drawings import folded, graph_of, life_of
from recruiter.web.filter_words import TABS, Words
from recruiter.web.formats import iso
from recruiter.web.redaction import IDS, Redaction, masks_texts
from recruiter.web.schemas import Amount

RANGES = {"5m": "5 minutes", "15m": "15 minutes", "1h": "1 hour", "6h": "6 hours", "24h": "24 hours", "7d": "7 days"}
"""How far back the overview looks."""
_LONG = ("1h", "6h", "24h", "7d")  # Ranges that take tenths of a second to read with many tasks
SORTED_BY: Mapping[str, Callable[[Performance], float]] = {
    "name": lambda _: 0.0,
    "ended": lambda row: -row.ended,
    "failed": lambda row: -row.failed,
    "share": lambda row: -row.share,
    "p50": lambda row: -(row.execution_time.median or 0.0),
    "p95": lambda row: -(row.execution_time.p95 or 0.0),
    "p99": lambda row: -(row.execution_time.p99 or 0.0),
    "total": lambda row: -row.total_seconds,
    "latency": lambda row: -(row.latency.p95 or 0.0),
}
"""The columns of the page of tasks, and their fields."""
_TASKS_SHOWN = 200
ROWS = 50
ROWS_READ_FOR_TEXT = 100
MOST_READ_FOR_TEXT = 1_000  # Maximum number of jobs that a page reads in a search for a string
MAX_JOBS_COUNTED = 10_000  # Tabs count so far, and no further
_PULSE_SECONDS = 3.0
_ANSWER_SECONDS = 20.0
_ERRORS_READ = 1_000
_ERRORS_SHOWN = 5
_KINDS_SHOWN = 12
_SCHEDULES_SHOWN = 100
_RUNS_DAY = 1_500  # An every-minute schedule has 1,440
_SAMPLED_EVERY = timedelta(minutes=3)
_RUNS_SHOWN = 200
_SET_ASIDE_SHOWN = 50
_FLOWS_SHOWN = 50
_STEPS_SHOWN = 100
_ENOUGH_TO_COMPARE = 20  # Minimum number of ended jobs of a task for an estimate of the duration of the next job
_LONGEST_WHY = 300
_ACTIONS_SHOWN = 20

_SERIOUS = list(Level)  # The most serious last
_ROW_FIELDS = {name: 0 for name in MINIMAL if name != "args"}


@masks_texts("record", "id_of", "filter_of", "frozen")
class Reader:
    """Reads for all who look. Safe to share between threads. Every text that leaves it is masked, except for values
    that come back to it."""

    def __init__(self, recruiter: Recruiter, redaction: Redaction) -> None:
        self._recruiter = recruiter
        self.redaction = redaction
        self._findings: Cache[list[Finding]] = Cache(20.0)
        self._errors: Cache[list[schemas.FrequentError]] = Cache(5.0)
        self._new_errors: Cache[bool] = Cache(60.0)
        self._counts: Cache[dict[str, Amount]] = Cache(5.0)
        self._history: Cache[Analytics] = Cache(5.0)
        self._groups: Cache[set[str]] = Cache(60.0)
        self._performance: Cache[tuple[list[Performance], bool]] = Cache(5.0)
        self._names: Cache[dict[str, list[str]]] = Cache(30.0)
        self._alike: Cache[Amount] = Cache(10.0)
        self._durations: Cache[dict[str, float]] = Cache(10.0)
        self._failures: Cache[str] = Cache(60.0)
        self._arguments: Cache[dict[JobId, Any]] = Cache(60.0)
        self._days: Cache[tuple[list[datetime], Amount]] = Cache(60.0)
        self._reasons: Cache[dict[Kind, WaitReason]] = Cache(3.0)
        self._mongodb: Cache[ServerFacts] = Cache(300.0)
        self._leader: Cache[tuple[schemas.Leader | None]] = Cache(2.0)

    def close(self) -> None:
        """Waits for the doctor that runs in a thread; then the application may close its store."""
        self._findings.close()

    @property
    def _store(self) -> Store:
        return self._recruiter.store

    # -- which jobs --------------------------------------------------------------------------------------------------

    def filter_of(self, words: Words) -> JobFilter:
        """Raises InvalidFilter, including for a redacted argument: a filter must not reveal its value."""
        return self.redaction.check(filter_from_words(words))

    def frozen(self, words: Words, *, ended: bool) -> dict[str, list[str]]:
        """The same conditions with fixed times and an end at the present time, so that they exclude later jobs. Raises
        InvalidFilter."""
        self.filter_of(words)
        now = self._store.clock.now()
        fixed = {name: list(values) for name, values in words.items()}
        for name in fixed:
            if name.endswith(("since", "until")):
                fixed[name] = [iso(resolved(to_moment(name, fixed[name][-1]), now))]
        ends = ["ended_until"] if ended else ["created_until"]
        if words.get("state") == ["queued"]:
            ends.append("scheduled_until")
        return {name: [iso(now)] for name in ends} | fixed

    def jobs(
        self, filter: JobFilter, *, limit: int = ROWS, after: str | None = None, text: str = ""
    ) -> schemas.JobList:
        """A page of jobs. With `text`, only jobs that show it in their arguments, error or tags; redacted values cannot
        be found. It reads a bounded number of jobs, and `next` continues from there."""
        if not text:
            return self._jobs(filter, limit, after)
        found: list[Any] = []
        looked, wanted = 0, text.casefold()
        while True:
            page = self._jobs(filter, ROWS_READ_FOR_TEXT, after)
            found += [row for row in page.jobs if wanted in serializers.shown_text(row)]
            looked, after = looked + len(page.jobs), page.next
            if after is None or len(found) >= limit or looked >= MOST_READ_FOR_TEXT:
                return replace(page, jobs=found, looked_at=looked)

    def _jobs(self, filter: JobFilter, limit: int, after: str | None) -> schemas.JobList:
        """A page of jobs: running, waiting in the order of their turn, ended."""
        now = self._store.clock.now()
        page = self._store.search.jobs(filter, now, limit=limit, after=after or None, fields=_ROW_FIELDS)
        reasons = waiting_reasons(self._store, page, now)
        rows = [self._row(job, now, reasons.get(job.id)) for job in page]
        return schemas.JobList(now, rows, page.next, page.looked_at, len(page.unreadable))

    def recognize(self, filter: JobFilter) -> None:
        """Raises InvalidFilter for an unknown task or group."""
        self._recruiter.jobs.recognize(filter)

    def names(self) -> dict[str, list[str]]:
        """Known tasks, groups and errors, for completion."""

        def read() -> dict[str, list[str]]:
            groups, tasks = known_names(self._store)
            return {"task": sorted(tasks), "group": sorted(groups), "error": sorted(self._store.search.ended.errors())}

        return self._names.get("names", read)

    def alike(self, job: Mapping[str, Any]) -> Amount:
        """Number of jobs that failed like this one: the same task and the same error."""
        words = {"state": ["failed", "lost"], "task": [job["task"]], "error": [job["error"]]}
        return self._alike.get(str(words), lambda: Amount(*self._recruiter.jobs.count(filter_from_words(words))))

    def counts(self, words: Words) -> dict[str, Amount]:
        """Number of jobs on each tab, up to a bound; conditions on the state are ignored."""
        others = {name: list(values) for name, values in words.items() if name not in ("state", "why")}
        return self._counts.get(str(others), lambda: dict(self._count(others)))

    def count(self, filter: JobFilter) -> Amount:
        return Amount(*self._recruiter.jobs.count(filter))

    def _count(self, words: Words) -> Iterator[tuple[str, Amount]]:
        for state, conditions in TABS.items():
            try:
                filter = self.filter_of({**words, **conditions})
            except InvalidFilter:  # no such job can be in this state
                yield state, Amount(0)
                continue
            yield state, Amount(*self._recruiter.jobs.count(filter, most=MAX_JOBS_COUNTED))

    def _row(self, job: Job, now: datetime, reason: WaitReason | None = None) -> dict[str, Any]:
        record = self._record(job, now, minimal=True)
        message = record["message"] or record["reason"]
        return {
            **record,
            "message": message and message[:300],
            "args": self.redaction.line(job.args),
            "waits": serializers.waits(job, reason, now),
            "level": Level.OK if reason is None else reason.level,
            "slow": self._slow(job, now),
        }

    def _slow(self, job: Job, now: datetime) -> str | None:
        is_running = job.state is State.RUNNING
        return serializers.slow(job.task, job.locked_at, self._usual(), now) if is_running else None

    def _usual(self) -> Mapping[str, float]:
        """By task, the duration that 99 of 100 jobs of the last day did not exceed."""

        def read() -> dict[str, float]:
            rows, _ = performances(self._store, "task", self._store.clock.now(), timedelta(days=1))
            known = ((each.name, each.execution_time.p99) for each in rows if each.ended >= _ENOUGH_TO_COMPARE)
            return {name: p99 for name, p99 in known if p99 is not None}

        return self._durations.get("day", read)

    def _record(self, job: Job, now: datetime, *, minimal: bool = False) -> dict[str, Any]:
        """The record of a job without secrets; ids are text."""
        record = job_record(job, minimal=minimal, payload=self.redaction.plain)
        for name in IDS:
            record[name] = None if record[name] is None else str(record[name])
        return {**record, "state": serializers.shown_state(job, now)}

    # -- a job -------------------------------------------------------------------------------------------------------

    def id_of(self, text: str) -> JobId:
        """Raises JobNotFound."""
        return self._recruiter.jobs.id_of(text)

    def job(self, text: str) -> dict[str, Any]:
        """Everything about the job that is written like this. Raises JobNotFound."""
        id = self.id_of(text)
        try:
            sentence = self._recruiter.explain(id)
            job = self._recruiter.find(id)
        except UnreadableDocument as error:  # the page shows the document
            now = self._store.clock.now()
            sentence, job = str(error), Job(id, "", {}, now, now)
        now = self._store.clock.now()
        return {
            **self._record(job, now),
            "at": now,
            "sentence": sentence,
            "slow": self._slow(job, now),
            "stack": self._store.roster.stack(id) if job.state is State.RUNNING else None,
            "timeline": life_of(job, now),
            "document": self.redaction.plain(self._document(job)),
        }

    def _document(self, job: Job) -> Any:
        """The stored document. If the job was removed meanwhile, its fields."""
        places = (self._store.archived, self._store.scheduled)
        found = next(filter(None, (place.document(job.id) for place in places)), None)
        return found or {each.name: getattr(job, each.name) for each in fields(job)}

    # -- the fleet ---------------------------------------------------------------------------------------------------

    def fleet(self) -> schemas.WorkersPage:
        store, now = self._store, self._store.clock.now()
        entries = store.roster.entries()
        running = [run["job"] for entry in entries for run in entry.running][:_RUNS_SHOWN]
        said = store.scheduled.get_many(running) if running else {}
        usual = self._usual() if running else {}
        workers = [serializers.worker(entry, said, usual, now) for entry in entries]
        leader = self.leader()
        return schemas.WorkersPage(now, sentences.of_fleet(leader, workers), leader, workers)

    def leader(self) -> schemas.Leader | None:
        """The leader, if one leads."""

        def read() -> tuple[schemas.Leader | None]:
            lease, now = self._store.leases.read(), self._store.clock.now()
            if lease is None or lease.holder is None or now - (lease.renewed_at or now) > SILENT:
                return (None,)
            return (schemas.Leader(lease.host, lease.pid, lease.term, lease.since),)

        return self._leader.get("leader", read)[0]

    def pulse(self) -> None:
        """Raises StoreUnreachable if MongoDB does not answer soon."""
        with answered_within(_PULSE_SECONDS):
            self._store.leases.read()

    def bounded(self) -> contextlib.AbstractContextManager[None]:
        """Inside this block MongoDB must answer all reads within a time: if it stops, the thread is free soon."""
        return answered_within(_ANSWER_SECONDS)

    def frame(self, *, asks: bool = True) -> Mapping[str, Any]:
        """The header and footer. Without `asks`, MongoDB is known not to answer."""
        target = self._recruiter.target
        place = serializers.place(str(target), target.database)
        place = place if target.prefix == DEFAULT_PREFIX else f"{place} {target.prefix}"
        findings = self._findings.peek("all", old=True)
        problems = None if findings is None else sum(1 for each in findings if each.level is Level.PROBLEM)
        known = {"version": package.__version__, "place": place, "problems": problems}
        with contextlib.suppress(StoreError):
            if asks:
                mongodb = self._mongodb.get("facts", self._store.check)
                version = f"{mongodb.version} {mongodb.replica_set or 'mongos'}"
                return {**known, "mongodb": version, "leader": self.leader()}
        return {**known, "mongodb": "cannot be reached", "leader": None}

    # -- numbers -----------------------------------------------------------------------------------------------------

    def overview(self, within: str = "1h") -> schemas.OverviewPage:
        """How things are, and how they went within a time."""
        if within not in RANGES:
            raise InvalidFilter(f"the overview is of {', '.join(RANGES)}, not of {within!r}")
        told = self._told(within)
        lately = told if within not in _LONG else self._recruiter.analytics(within="1 minute")
        entries, rules, now = self._store.roster.entries(), self._store.limits.read(), self._store.clock.now()
        errors = self._errors.get(within, lambda: self._frequent_errors(within, told.since, told.until))
        waiting = self._waiting(lately.queues, rules, now)
        slots = sum(entry.registration.slots for entry in entries if not entry.is_silent(now))
        depths = self._store.queues.depths(told.since - told.step, told.until, hours=told.step > timedelta(minutes=1))
        trend = serializers.trend(depths, list(told.series), told.step)
        seen = schemas.OverviewPage(
            at=now,
            within=within,
            since=told.since,
            until=told.until,
            sentence=schemas.Sentence(Level.OK, ""),
            queued=lately.jobs.queued,
            postponed=lately.jobs.postponed,
            running=lately.jobs.running,
            slots=slots,
            workers=sum(1 for entry in entries if not entry.is_silent(now)),
            counted_at=lately.counted_at,
            per_second=self._pace(lately, now),
            ended=dict(told.ended),
            latency=told.latency,
            duration=told.execution_time,
            series=[serializers.point(at, flow, told) for at, flow in told.series.items()],
            waiting=waiting[:_KINDS_SHOWN],
            waiting_kinds=len(waiting),
            errors=errors,
            leader=self.leader(),
            paused={name.removeprefix("group:"): pause for name, pause in sorted(rules.paused.items())},
            due_trend=[None if each is None else each.due for each in trend],
            running_trend=[None if each is None else each.running for each in trend],
        )
        return replace(seen, sentence=sentences.of_overview(seen, waiting))

    def _told(self, within: str) -> Analytics:
        """A long time hardly changes: it is kept for a while."""
        if within not in _LONG:
            return self._recruiter.analytics(within=RANGES[within])
        return self._history.get(within, lambda: history(self._store, to_timedelta(RANGES[within])))

    def _pace(self, told: Analytics, now: datetime) -> float:
        """Ended jobs per second over the last one or two minutes."""
        since, until = window(now, timedelta(minutes=1), now)
        ended = sum(sum(flow.ended.values()) for at, flow in told.series.items() if at >= since)
        return ended / max(1.0, (until - since).total_seconds())

    def _waiting(self, queues: Mapping[Kind, Queue], rules: Rules, now: datetime) -> list[schemas.Waiting]:
        """Waiting jobs by group and task, with the reason; the most serious reason first, then the longest queue."""
        kinds = {kind: queue for kind, queue in queues.items() if queue.queued or queue.postponed or queue.running}
        due = sorted((kind for kind, queue in kinds.items() if queue.queued), key=lambda kind: -kinds[kind].queued)
        reasons = self._reasons.get(
            (*sorted(due), *sorted(rules.paused)), lambda: kinds_waiting(self._store, due, rules, now)
        )
        found = [serializers.waiting(kind, queue, reasons.get(kind)) for kind, queue in kinds.items()]
        return sorted(found, key=lambda each: (-_SERIOUS.index(each.level), -each.queued))

    def _frequent_errors(self, within: str, since: datetime, until: datetime) -> list[schemas.FrequentError]:
        """The errors that most of the newest failed jobs ended with."""
        page = self._recruiter.jobs.list(state=["failed", "lost"], ended_since=since, limit=_ERRORS_READ, minimal=True)
        jobs = [job for job in page if job.ended_at is not None and job.why not in WHY_SKIPPED]
        complete = page.next is None
        begin = since if complete or not jobs else min(job.ended_at for job in jobs if job.ended_at)
        span = max(1e-6, (until - begin).total_seconds())
        by_error: dict[str, list[Job]] = {}
        for job in jobs:
            by_error.setdefault(job.error or job.why or "?", []).append(job)
        most_frequent = sorted(by_error.items(), key=lambda item: -len(item[1]))[:_ERRORS_SHOWN]
        found = [serializers.frequent_error(name, of, begin, span, complete) for name, of in most_frequent]
        return [replace(each, is_new=self._is_new(each, within, since)) for each in found]

    def _is_new(self, error: schemas.FrequentError, within: str, since: datetime) -> bool:
        """Whether jobs ended before this time, none of them with this error."""

        def earlier(**words: list[str]) -> Page[Job]:
            filter = filter_from_words({"ended_until": [iso(since)], **words})
            return self._recruiter.jobs.list(filter, limit=1, minimal=True)

        def read() -> bool:
            with_it = earlier(**{error.by: [error.error]})
            return not with_it and with_it.next is None and bool(earlier())

        return self._new_errors.get((error.error, within), read)

    def tasks(self, by: str = "task", within: str = "1h", sort: str = "total") -> schemas.TasksPage:
        """Ended jobs by task, group or worker: how many, how many failed, how long they took."""
        if by not in get_args(PerformanceBy) or sort not in SORTED_BY:
            raise InvalidFilter(
                f"there are tables by {', '.join(get_args(PerformanceBy))}, sorted by {', '.join(SORTED_BY)}; "
                f"not by {by[:50]!r}, sorted by {sort[:50]!r}"
            )
        if within not in RANGES:
            raise InvalidFilter(f"the table is of {', '.join(RANGES)}, not of {within[:50]!r}")
        kind, now = cast(PerformanceBy, by), self._store.clock.now()
        rows, complete = self._performance.get(
            (by, within), lambda: performances(self._store, kind, now, to_timedelta(RANGES[within]))
        )
        rows = sorted(sorted(rows, key=lambda row: row.name), key=SORTED_BY[sort])
        more = max(0, len(rows) - _TASKS_SHOWN)
        sentence = sentences.of_tasks(by, rows, within)
        return schemas.TasksPage(now, sentence, by, within, rows[:_TASKS_SHOWN], more, complete)

    def groups(self) -> schemas.GroupsPage:
        """Depth, pauses and limits."""
        told = self._recruiter.analytics(within="5 minutes")
        rules, now = self._store.limits.read(), self._store.clock.now()
        names = {group for group, _ in told.queues} | set(told.groups)
        names |= self._groups.get("groups", lambda: known_names(self._store)[0])
        names |= {name.removeprefix("group:") for name in rules.paused if name.startswith("group:")}
        waiting = self._waiting(told.queues, rules, now)
        depths = self._store.queues.depths(now - timedelta(minutes=7), now - timedelta(minutes=3))
        before = min(depths, key=lambda depth: abs(now - depth.at - timedelta(minutes=5)), default=None)
        groups = [self._group(name, told, waiting, rules, before) for name in sorted(names)]
        limits = [serializers.limit_use(use, rules) for use in limit_uses(self._store, rules, now)]
        blocked = rules.paused.get("fleet")
        return schemas.GroupsPage(now, sentences.of_groups(blocked, groups, limits, waiting), blocked, groups, limits)

    def _group(
        self, name: str, told: Analytics, waiting: Sequence[schemas.Waiting], rules: Rules, before: Depth | None
    ) -> schemas.GroupRow:
        queues = [queue for (group, _), queue in told.queues.items() if group == name]
        queue = sum(queues, Queue(0, 0, 0, 0))
        flow = told.groups.get(name)
        pause = rules.paused.get(f"group:{name}")
        first = self._next(name) if queue.queued else None
        own = next((each for each in waiting if each.group == name and each.reason and each.queued), None)
        out = flow.throughput.value if flow else 0.0
        arrivals = None
        if before is not None:
            minutes = max(1.0, (told.until - before.at).total_seconds() / 60)
            now = queue.queued + queue.postponed + queue.running
            arrivals = serializers.arrivals(out, now, before.groups.get(name, 0), minutes)
        return serializers.copied(
            schemas.GroupRow,
            queue,
            name=name,
            per_minute=out,
            arrivals=arrivals,
            failed=sentences.failed(flow.ended) if flow else 0,
            latency_p95=flow.latency.p95 if flow else None,
            next_due=first.scheduled_at if first else None,
            next_id=str(first.id) if first else None,
            paused=pause,
            reason=None if pause is not None or own is None else own.reason,
            level=Level.OK if own is None else own.level,
        )

    def _next(self, group: str) -> Job | None:
        """The job of this group whose turn it is."""
        with contextlib.suppress(InvalidFilter):
            page = self._recruiter.jobs.list(state="queued", group=group, limit=1, minimal=True)
            return page.jobs[0] if page.jobs else None
        return None

    # -- schedules ---------------------------------------------------------------------------------------------------

    def schedules(self) -> schemas.SchedulesPage:
        now = self._store.clock.now()
        every = self._recruiter.schedulers()
        shown = [self._schedule(each, now) for each in every[:_SCHEDULES_SHOWN]]
        more = len(every) - len(shown)
        return schemas.SchedulesPage(now, sentences.of_schedules(shown, more, now), shown, more)

    def _schedule(self, scheduler: Scheduler, now: datetime) -> schemas.ScheduleRow:
        parameters = scheduler.schedule.get("parameters") or {}
        zone = parameters.get("tz") if isinstance(parameters, Mapping) else None
        ended = self._recruiter.jobs.list(urn=scheduler.urn, state=sorted(ENDED), limit=10, minimal=True)
        last = [
            schemas.EndedRun(str(job.id), job.state.value, job.ended_at) for job in ended if job.ended_at is not None
        ]
        runs, number = self._runs(scheduler, now)
        return serializers.copied(
            schemas.ScheduleRow,
            scheduler,
            scheduler.template,
            schedule=policy_text(scheduler.schedule) or "",
            words=policy_words(scheduler.schedule) or "",
            zone=zone if isinstance(zone, str) else None,
            next_runs=runs,
            runs_in_a_day=number,
            trouble=scheduler.broken or serializers.late(scheduler, last, now),
            last=last,
        )

    def _runs(self, scheduler: Scheduler, now: datetime) -> tuple[list[datetime], Amount]:
        """Runs within a day, or the first one after it; and their number."""
        if scheduler.paused is not None or scheduler.broken:
            return [], Amount(0)
        key = (scheduler.urn, str(scheduler.schedule), scheduler.next_at, now.replace(second=0, microsecond=0))
        try:
            return self._days.get(key, lambda: self._day(scheduler, now))
        except StoreError:
            raise
        except RecruiterError:
            return ([scheduler.next_at] if scheduler.next_at else []), Amount(0)

    def _day(self, scheduler: Scheduler, now: datetime) -> tuple[list[datetime], Amount]:
        """Beyond the first runs a dense schedule is sampled every few minutes: its ribbon covers all of the day."""
        policies, end = self._recruiter.schedules, now + timedelta(days=1)
        runs = next_runs(scheduler, policies, now, _RUNS_DAY)
        number = sum(run <= end for run in runs)
        if number < _RUNS_DAY:
            return [run for run in runs if run <= end] or runs[:1], Amount(number)
        while runs[-1] < end and (more := next_runs(scheduler, policies, runs[-1] + _SAMPLED_EVERY, 1)):
            runs += more
        return [run for run in runs if run <= end], Amount(number, exact=False)

    # -- flows -------------------------------------------------------------------------------------------------------

    def flows(self, state: str = "", text: str = "", after: str = "") -> schemas.FlowsPage:
        """The newest flows, in this state or with this text in their name, owner or id."""
        if state and state not in set(FlowState):
            raise InvalidFilter(f"a flow is {', '.join(FlowState)}, not {state[:50]!r}")
        reports, place = find_flows(self._store, _FLOWS_SHOWN, state=state, text=text, after=_flow_place(after))
        now = self._store.clock.now()
        why = self._why(reports, now)
        rows = [serializers.flow_row(flow, why.get(flow.id)) for flow in reports]
        following = None if place is None else f"{iso(place.created_at)}~{place.number}"
        return schemas.FlowsPage(now, sentences.of_flows(rows), rows, following)

    def _why(self, flows: Sequence[FlowReport], now: datetime) -> dict[ObjectId, str]:
        """The reason why each flow waits or failed. A flow with a running step does not wait."""
        found: dict[ObjectId, str] = {}
        firsts: dict[ObjectId, Job] = {}
        for flow in flows:
            if flow.state is FlowState.FAILED:
                found[flow.id] = self._failures.get((flow.id, flow.ended_at), partial(self._failure, flow.id))
            elif flow.state is FlowState.RUNNING and not flow.counts.get(State.RUNNING):
                document = self._store.flow_steps.first_waiting(flow.id, _ROW_FIELDS)
                if document is not None:
                    firsts[flow.id] = job_from(document)
        reasons = waiting_reasons(self._store, firsts.values(), now)
        waits = {id: serializers.waits(job, reasons.get(job.id), now) for id, job in firsts.items()}
        return found | {id: f"{firsts[id].task}: {text}" for id, text in waits.items()}

    def _failure(self, flow: ObjectId) -> str:
        step = failed_step(self._store, flow)
        return (
            "" if step is None else f"{step.title} {step.state}{f': {step.error}' if step.error else ''}"[:_LONGEST_WHY]
        )

    def flow(self, id: str, state: str = "", of: str = "", start: int = 0) -> schemas.FlowPage:
        """A flow with its steps: steps in this state, or all in the box of the step `of`. Raises FlowNotFound."""
        handle = self._recruiter.flows.find(id)
        report, steps = handle.report(), [serializers.flow_step(step) for step in handle.steps()]
        now = self._store.clock.now()
        row = serializers.flow_row(report, self._why([report], now).get(report.id))
        box = next((ids for column in folded(steps) for ids in column if of in ids), []) if of else []
        chosen = [step for step in steps if state in ("", step.state) and (not of or step.step in box)]
        shown = sorted(chosen, key=lambda step: step.state not in ("failed", "lost", "running"))[start:][:_STEPS_SHOWN]
        graph = graph_of(steps)
        drawn = [node.step for node in graph.nodes if node.count == 1] if graph else []
        more = max(0, len(chosen) - start - len(shown))
        labels = self._labels({step.step: step for step in (*drawn, *shown)})
        return schemas.FlowPage(now, sentences.of_flow(row, steps), row, graph, shown, more, labels)

    def _labels(self, steps: Mapping[str, schemas.FlowStepRow]) -> dict[str, str]:
        jobs = {step.job: id for id, step in steps.items()}
        read = self._store.flow_steps.arguments
        stored = self._arguments.get(tuple(jobs), lambda: read(list(map(self._recruiter.jobs.id_of, jobs))))
        plain = {jobs[str(job)]: self.redaction.scalars(args) for job, args in stored.items()}
        return serializers.labels(list(steps.values()), plain)

    # -- problems ----------------------------------------------------------------------------------------------------

    def problems(self, patience: float = 1.0) -> schemas.ProblemsPage:
        """Findings of the doctor, set-aside documents and past actions. With millions of jobs the doctor takes seconds:
        after `patience` seconds the answer is incomplete."""
        store, now = self._store, self._store.clock.now()
        known = self._findings.get_within("all", self._examine, patience)
        findings = known or []
        urgent = [each for level in (Level.PROBLEM, Level.NOTE) for each in findings if each.level is level]
        return schemas.ProblemsPage(
            at=now,
            sentence=sentences.of_problems(urgent) if known is not None else sentences.EXAMINING,
            findings=urgent,
            fine=[each for each in findings if each.level is Level.OK],
            set_aside=[self._row(job, now) for job in store.archived.jobs_set_aside(_SET_ASIDE_SHOWN)],
            past_actions=self.past_actions(),
            complete=known is not None,
        )

    def look_for_problems(self) -> None:
        """Starts the doctor in a thread, so that every page can show the number of problems."""
        self._findings.get_stale("all", self._examine)

    def _examine(self) -> list[Finding]:
        return examine(self._store)

    def past_actions(self, limit: int = _ACTIONS_SHOWN) -> list[ActionEntry]:
        """Actions of people, the newest first."""
        return list(self._store.actions.latest(limit))

    @contextlib.contextmanager
    def record(self, by: str, verb: str, subject: str, reason: str | None, address: str | None) -> Iterator[list[str]]:
        """Records an action before it is done; the caller appends the outcome to the list."""
        actions = self._store.actions
        id = actions.begin(ActionEntry(self._store.clock.now(), by, verb, subject, reason), address)
        outcome: list[str] = []
        try:
            yield outcome
        except RecruiterError as error:
            outcome.append(f"refused: {error}")
            raise
        finally:
            for cache in (self._findings, self._counts, self._errors, self._reasons):
                cache.expire()
            actions.conclude(id, outcome[-1] if outcome else "interrupted")


def _flow_place(text: str) -> FlowPlace | None:
    """The place that a link to the next page names. Raises InvalidFilter."""
    moment, _, number = text.partition("~")
    try:
        return FlowPlace(datetime.fromisoformat(moment), int(number)) if text else None
    except ValueError:
        raise InvalidFilter(
            f"{text[:50]!r} is no place in the list of flows; follow the link to the next page"
        ) from None
