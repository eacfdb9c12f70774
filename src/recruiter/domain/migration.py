"""Migration: reads the documents of other schedulers as jobs and schedulers of Recruiter. Nothing is stored here.

A foreign document becomes a job, a scheduler, or nothing, with the reason.

    Agenda (Node)        one collection, `agendaJobs`, with a document for each job that waits, has ended or repeats
    APScheduler 3        `MongoDBJobStore` keeps each job as a pickle, in the collection `jobs`
    Recruiter for PHP    `scheduled` has the waiting jobs, `schedulers` the repeatable jobs
    MongoDB Job Scheduler Worker, Virtool's jobs manager    `jobs` has a document for each job, waiting or ended

A pickle can call any function of any module when it is loaded. Here it cannot: only dates and time zones are built.
Every other name becomes an inert record of its arguments, and nothing is imported.

    {"func": "shop:report", "args": (), "trigger": <CronTrigger {"fields": [<BaseField {"name": "hour", …}>]}>}
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

from recruiter.domain.names import DEFAULT_METHOD
from recruiter.domain.options import GivenJobOptions
from recruiter.domain.policy_registry import schedule_policy
from recruiter.domain.retry.decision import RetryPolicy
from recruiter.domain.retry.policies import DoNotDoItAgain, ExponentialBackoff, RetryForever, RetryManyTimes, TimeTable
from recruiter.domain.schedule.policies import Cron, Every, EveryMinutes
from recruiter.domain.schedule.scheduler import SchedulePolicy
from recruiter.errors import RecruiterError

Arguments = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class MovedJob:
    """A foreign document that becomes a job."""

    id: str
    """Derived from its id there, so that it cannot be imported twice."""
    task: str
    args: Arguments
    at: datetime | None = None
    options: GivenJobOptions = field(default_factory=GivenJobOptions)
    """Its options there. For others the defaults of the task apply, if its code is loaded."""
    method: str = DEFAULT_METHOD
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MovedScheduler:
    """A foreign document that becomes a repeatable job."""

    id: str
    urn: str
    task: str
    args: Arguments
    policy: SchedulePolicy
    unique: bool = False
    options: GivenJobOptions = field(default_factory=GivenJobOptions)
    paused: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotMoved:
    """A foreign document that is not imported."""

    id: str
    reason: str


Moved = MovedJob | MovedScheduler | NotMoved


def task_name(name: object, renamed: Mapping[str, str]) -> str:
    """The name of our task: the given one, or the name there with blanks and slashes replaced."""
    text = str(name)
    return renamed.get(text) or re.sub(r"[\s/]+", "_", text.strip())


def moment(value: object) -> datetime | None:
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def arguments(value: object) -> Arguments:
    """A document has named arguments, an array positional ones; any other value is the only argument."""
    if value is None:
        return {}
    return value if isinstance(value, Mapping | list) else [value]


# -- Agenda ------------------------------------------------------------------------------------------------------------


def from_agenda(document: Mapping[str, Any], renamed: Mapping[str, str]) -> Moved:
    """Translates a document of `agendaJobs`."""
    id = f"agenda:{document['_id']}"
    if not isinstance(document.get("name"), str):
        return NotMoved(id, "it has no name")
    task, args = task_name(document["name"], renamed), arguments(document.get("data"))
    every, at_time = document.get("repeatInterval"), document.get("repeatAt")
    if at_time:
        return NotMoved(id, f"it repeats at {at_time!r}: write that as a cron expression, with @recruiter.every")
    if every:
        return _agenda_scheduler(id, task, args, every, document)
    due = moment(document.get("nextRunAt"))
    if due is None:
        return NotMoved(id, "it has ended")
    if document.get("disabled"):
        return NotMoved(id, "it is disabled")
    if document.get("lockedAt") is not None:
        return NotMoved(id, "it is running there: stop Agenda, and import again")
    return MovedJob(id, task, args, due, _agenda_options(document))


def _agenda_options(document: Mapping[str, Any]) -> GivenJobOptions:
    """Agenda stores 0 for jobs without a priority."""
    priority = document.get("priority")
    return {"priority": priority} if priority and isinstance(priority, int | float) else {}


def _agenda_scheduler(id: str, task: str, args: Any, every: object, document: Mapping[str, Any]) -> Moved:
    """Translates a job of Agenda that repeats. Its interval is a cron expression, words, or a number of milliseconds;
    it keeps the phase of `nextRunAt`. `agenda.every` stores one document for each name, of the type `single`; of other
    types there may be several."""
    due = moment(document.get("nextRunAt"))
    if due is None:
        return NotMoved(id, "it has ended")
    interval = f"{every / 1000}s" if isinstance(every, int | float) else str(every)
    notes = _not_kept(document, "skipDays", "startDate", "endDate")
    try:
        policy = schedule_policy(interval, document.get("repeatTimezone") or "UTC")
    except RecruiterError as error:
        return NotMoved(id, f"its interval is not understood: {error}")
    if isinstance(policy, Every):
        policy = Every(policy.interval, due.replace(microsecond=due.microsecond // 1000 * 1000))
    return MovedScheduler(
        id,
        f"agenda:{task}" if document.get("type") == "single" else f"agenda:{task}:{document['_id']}",
        task,
        args,
        policy,
        unique=True,
        options=_agenda_options(document),
        paused=bool(document.get("disabled")),
        notes=notes,
    )


def _not_kept(values: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    """The note for restrictions of a schedule that have no counterpart here."""
    lost = [name for name in names if values.get(name)]
    return (f"not kept: {', '.join(lost)}",) if lost else ()


# -- APScheduler -------------------------------------------------------------------------------------------------------


def _zone_named(name: str, *_: Any) -> ZoneInfo:
    """The time zone of a pickle of zoneinfo or pytz. Looks the name up in the time zone database; imports nothing."""
    return ZoneInfo(name)


def _attribute(owner: Any, name: Any) -> Any:
    """`getattr` of a pickle, which pickles of `ZoneInfo` call for one attribute."""
    return _zone_named if owner is ZoneInfo and name == "_unpickle" else Record(owner, name)


_DATES: Mapping[tuple[str, str], Callable[..., Any]] = {
    **{("datetime", kind.__name__): kind for kind in (date, datetime, timedelta, timezone)},
    ("zoneinfo", "ZoneInfo"): ZoneInfo,
    ("zoneinfo", "ZoneInfo._unpickle"): _zone_named,
    ("builtins", "getattr"): _attribute,
    ("pytz", "_p"): _zone_named,
    ("pytz", "_UTC"): lambda: UTC,
}
"""The only names of a pickle that are called: they build dates."""
_CRON_FIELDS = ("minute", "hour", "day", "month", "day_of_week")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class Record:
    """An inert object of a pickle: the name of its class, its arguments and its state."""

    name = ""

    made_with: tuple[Any, ...] = ()
    state: Mapping[str, Any] = MappingProxyType({})

    def __new__(cls, *args: Any, **_kwargs: Any) -> Record:
        record = object.__new__(cls)
        record.made_with = args
        return record

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        """Accepts any arguments."""

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, Mapping) else {}

    def __call__(self, *args: Any) -> Record:
        """A pickle may call a record; that creates another record."""
        return Record(*args)


class _Reader(pickle.Unpickler):
    """Builds dates and inert records, and imports nothing."""

    def find_class(self, module: str, name: str) -> Any:
        return _DATES.get((module, name)) or type(name, (Record,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it refers to {pid!r}, which is elsewhere")


def from_apscheduler(document: Mapping[str, Any], renamed: Mapping[str, str]) -> Moved:
    """Translates a document of `MongoDBJobStore`: a pickle of the state of a job."""
    id = f"apscheduler:{document['_id']}"
    try:
        state = _Reader(io.BytesIO(document["job_state"])).load()
        paused = "next_run_time" in document and document["next_run_time"] is None
        return _apscheduler_job(id, str(document["_id"]), state, renamed, paused)
    except RecruiterError as error:
        return NotMoved(id, str(error))
    except Exception as error:  # the pickle may hold anything
        return NotMoved(id, f"it cannot be read: {type(error).__name__}: {error}")


def _apscheduler_job(id: str, urn: str, state: Mapping[str, Any], renamed: Mapping[str, str], paused: bool) -> Moved:
    reference = str(state["func"])
    task = renamed.get(reference) or task_name(reference.rpartition(":")[2].rpartition(".")[2], renamed)
    args, kwargs = list(state.get("args") or ()), dict(state.get("kwargs") or {})
    if args and kwargs:
        return NotMoved(id, "it has positional and named arguments: enqueue it with your own code")
    given = arguments(kwargs or args)
    if _has_record(given):
        return NotMoved(id, "its arguments are Python objects, which only their own code can rebuild")
    trigger: Record = state["trigger"]
    kind, values = trigger.name.rpartition(".")[2], trigger.state
    unique = state.get("max_instances") == 1
    if kind == "DateTrigger" and paused:
        return NotMoved(id, "it is paused there: resume it, and import again")
    if kind == "DateTrigger":
        return MovedJob(id, task, given, moment(values["run_date"]))
    policy: SchedulePolicy | None = None
    if kind == "IntervalTrigger":
        start = moment(values.get("start_date"))  # the runs keep their phase
        anchor = start and start.replace(microsecond=start.microsecond // 1000 * 1000)
        policy, notes = Every(values["interval"], anchor), _not_kept(values, "end_date", "jitter")
    if kind == "CronTrigger":
        policy, notes = _cron(values), _not_kept(values, "start_date", "end_date", "jitter")
    if policy is not None:
        return MovedScheduler(id, urn, task, given, policy, unique, paused=paused, notes=notes)
    return NotMoved(id, f"its trigger {kind} has no counterpart: write a schedule policy of your own")


def _has_record(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_record, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_record, value))
    return isinstance(value, Record)


def _cron(values: Mapping[str, Any]) -> Cron:
    """The schedule of a cron trigger. Raises RecruiterError if no cron expression has the same times."""
    fields = {field.state["name"]: field for field in values["fields"]}
    texts = {name: _field(name, field.state["expressions"]) for name, field in fields.items()}
    for name in ("year", "week"):
        if texts.get(name, "*") != "*":
            raise RecruiterError(f"its cron trigger has {name}={texts[name]}, for which there is no cron expression")
    if _is_weekday_position(texts["day"]) and texts["day_of_week"] == "*":  # in cron, `fri#2` is a day of the week
        texts["day"], texts["day_of_week"] = "*", texts["day"]
    if not any(texts[name].startswith("*") for name in ("day", "day_of_week")):
        raise RecruiterError("its cron trigger has a day and a day of the week; in a cron expression either would do")
    seconds = () if texts.get("second", "0") == "0" else ("second",)
    return Cron(" ".join(texts[name] for name in (*seconds, *_CRON_FIELDS)), tz=_zone(values.get("timezone")))


def _field(name: str, expressions: Iterable[Record]) -> str:
    texts = []
    for expression in expressions:
        kind, state = expression.name.rpartition(".")[2], expression.state
        texts.append(_weekdays(kind, state) if name == "day_of_week" else _cron_term(kind, state))
    return ",".join(texts)


def _weekdays(kind: str, state: Mapping[str, Any]) -> str:
    """Days of the week, by name: 0 is Monday in APScheduler and Sunday in cron. No range of cron ends on a Sunday."""
    step = state.get("step") or 1
    if kind == "AllExpression" and step == 1:
        return "*"
    first, last = (0, 6) if kind == "AllExpression" else (state["first"], state.get("last"))
    last = first if last is None else last
    if step == 1 and first < last < 6:
        return f"{_DAYS[first]}-{_DAYS[last]}"
    return ",".join(_DAYS[first : last + 1 : step])


def _is_weekday_position(text: str) -> bool:
    """Whether every term names a weekday of the month, such as `fri#2` or `5L`."""
    return all(re.fullmatch(r"[a-z]{3}#\d|\dL", term) for term in text.split(","))


def _cron_term(kind: str, state: Mapping[str, Any]) -> str:
    step = f"/{state['step']}" if state.get("step") else ""
    match kind:
        case "AllExpression":
            return f"*{step}"
        case "LastDayOfMonthExpression":
            return "L"
        case "WeekdayPositionExpression":
            place, day = state["option_num"], state["weekday"]  # option 5 is "last"
            return f"{(day + 1) % 7}L" if place == 5 else f"{_DAYS[day]}#{place + 1}"
        case "RangeExpression":
            return _range(state, str) + step
        case "MonthRangeExpression":
            return _range(state, lambda number: _MONTHS[number - 1])
    raise RecruiterError(f"its cron trigger has a {kind}, for which there is no cron expression")


def _range(state: Mapping[str, Any], shown: Any) -> str:
    first, last = state["first"], state.get("last")
    return shown(first) if last is None or last == first else f"{shown(first)}-{shown(last)}"


def _zone(zone: Any) -> str:
    if isinstance(zone, ZoneInfo):
        return zone.key
    if zone is None or (isinstance(zone, timezone) and not zone.utcoffset(None)):
        return "UTC"
    raise RecruiterError(f"its time zone {getattr(zone, 'name', zone)} has no name in the time zone database")


# -- Recruiter for PHP -------------------------------------------------------------------------------------------------


_HOW_OFTEN, _WAIT, _FIRST_WAIT = (
    "retry_how_many_times",
    "seconds_to_wait_before_retry",
    "seconds_to_initially_wait_before_retry",
)


def from_recruiter_php(document: Mapping[str, Any], renamed: Mapping[str, str]) -> Moved:
    id = f"recruiter-php:{document['_id']}"
    try:
        return (_php_scheduler if "schedule_policy" in document else _php_job)(id, document, renamed)
    except (KeyError, TypeError, ValueError, RecruiterError) as error:
        return NotMoved(id, f"it cannot be read: {type(error).__name__}: {error}")


def _php_job(id: str, document: Mapping[str, Any], renamed: Mapping[str, str]) -> Moved:
    if "workable" not in document:
        return NotMoved(id, "it is not a job of Recruiter for PHP")
    if document.get("locked"):
        return NotMoved(id, "it is running there: stop its recruiter and workers, and import again")
    workable = document["workable"]
    options, notes = _php_options(document.get("retry_policy"))
    if document.get("group"):
        options["group"] = document["group"]
    options["tags"] = tuple(map(str, document.get("tags") or ()))
    return MovedJob(
        id,
        _php_task(workable, renamed),
        arguments(workable.get("parameters")),
        moment(document.get("scheduled_at")),
        options,
        workable.get("method") or DEFAULT_METHOD,
        notes,
    )


def _php_scheduler(id: str, document: Mapping[str, Any], renamed: Mapping[str, str]) -> Moved:
    workable = document["job"]["workable"]
    options, notes = _php_options(document["job"].get("retry_policy"))
    policy = _php_schedule(document["schedule_policy"])
    if policy is None:
        return NotMoved(id, f"its schedule policy {document['schedule_policy'].get('class')} is a class of its own")
    task, args = _php_task(workable, renamed), arguments(workable.get("parameters"))
    return MovedScheduler(id, document["urn"], task, args, policy, bool(document.get("unique")), options, notes=notes)


def _php_task(workable: Mapping[str, Any], renamed: Mapping[str, str]) -> str:
    """A workable is stored under the name of its class, without the namespace."""
    name = str(workable["class"])
    return renamed.get(name) or task_name(_short_name(name), renamed)


def _short_name(name: str) -> str:
    return name.rpartition("\\")[2]


def _php_options(stored: Mapping[str, Any] | None) -> tuple[GivenJobOptions, tuple[str, ...]]:
    policy, notes = _php_retry(stored)
    return {} if policy is None else {"retry": policy}, notes


def _php_retry(stored: Mapping[str, Any] | None) -> tuple[RetryPolicy | None, tuple[str, ...]]:
    """The counterpart of a retry policy, and notes on the rules that it does not keep."""
    if not stored:
        return None, ()
    name, values = _short_name(str(stored["class"])), stored.get("parameters") or {}
    match name:
        case "DoNotDoItAgain":
            return DoNotDoItAgain(), ()
        case "RetryManyTimes":
            return RetryManyTimes(int(values[_HOW_OFTEN]), values[_WAIT]), ()
        case "RetryForever":
            return RetryForever(values[_WAIT]), ()
        case "ExponentialBackoff":
            return ExponentialBackoff(int(values[_HOW_OFTEN]), values[_FIRST_WAIT]), ()
        case "TimeTable":
            return TimeTable(values["time_table"]), ()
        case "SelectByException":
            return _php_choice(list(values.values() if isinstance(values, Mapping) else values))
        case "RetriableExceptionFilter":
            policy, notes = _php_retry(values["filtered_retry_policy"])
            only = ", ".join(map(str, values["retriable_exceptions"]))
            return policy, (*notes, f"it was retried only after {only}; here it is retried after every exception")
    return None, (f"its retry policy {name} is not known here; the policy of its task is used",)


def _php_choice(cases: list[Mapping[str, Any]]) -> tuple[RetryPolicy | None, tuple[str, ...]]:
    """The policy of the case for every exception, or else of the last case: exceptions of PHP have no counterpart."""
    every = [case for case in cases if _short_name(str(case["when"])) in ("Exception", "Throwable")]
    chosen = (every or cases)[-1]
    policy, notes = _php_retry(chosen["then"])
    if len(cases) == 1 and every:
        return policy, notes
    named = ", ".join(str(case["when"]) for case in cases)
    note = f"it had a retry policy for each of {named}; here that of {chosen['when']} holds for every exception"
    return policy, (*notes, note)


def _php_schedule(stored: Mapping[str, Any]) -> SchedulePolicy | None:
    name, values = _short_name(str(stored["class"])), stored.get("parameters") or {}
    if name == "Cron":
        return Cron(values["cron_expression"])
    return EveryMinutes(1) if name == "EveryMinutes" else None


# -- MongoDB Job Scheduler Worker --------------------------------------------------------------------------------------


def from_job_scheduler_worker(document: Mapping[str, Any], renamed: Mapping[str, str]) -> Moved:
    """Translates a document of `jobs`. A pending job runs within 30 minutes of its time or not at all, as there. A
    locked job runs when its lock would have been taken over: 15 minutes after it was set, or now without a date."""
    id, status = f"job-scheduler-worker:{document['_id']}", document.get("status")
    if not isinstance(document.get("job_name"), str):
        return NotMoved(id, "it has no job_name")
    if status not in ("pending", "locked"):
        return NotMoved(id, f"its status is {status!r}")
    task, args = task_name(document["job_name"], renamed), arguments(document.get("payload"))
    tags = (f"scheduler:{document['scheduler_id']}",) if isinstance(document.get("scheduler_id"), str) else ()
    if status == "pending":
        due = moment(document.get("trigger_time"))
        if due is None:
            return NotMoved(id, "its trigger_time is not a date")
        return MovedJob(id, task, args, due, {"tags": tags, "expires": timedelta(minutes=30)})
    locked_at = moment(document.get("locked_at"))
    at = None if locked_at is None else locked_at + timedelta(minutes=15)
    return MovedJob(id, task, args, at, {"tags": tags}, notes=("it was locked there, and begins again",))


# -- Virtool's jobs manager --------------------------------------------------------------------------------------------


def from_virtool(document: Mapping[str, Any], renamed: Mapping[str, str]) -> Moved:
    """Translates a document of `jobs`: the last entry of its status decides whether it has ended."""
    id = f"virtool:{document['_id']}"
    if not isinstance(document.get("task"), str):
        return NotMoved(id, "it has no task")
    last = (document.get("status") or [{}])[-1]
    state = last.get("state", "waiting") if isinstance(last, Mapping) else "waiting"
    if state not in ("waiting", "running") or document.get("archived"):
        return NotMoved(id, f"it has ended: {'archived' if document.get('archived') else state}")
    needs = {name: document[name] for name in ("proc", "mem") if document.get(name)}
    options: GivenJobOptions = {"needs": needs} if needs else {}
    if document.get("username"):
        options["owner"] = document["username"]
    return MovedJob(
        id,
        task_name(document["task"], renamed),
        arguments(document.get("args")),
        options=options,
        notes=("it was running there, and begins again",) if state == "running" else (),
    )


Translate = Callable[[Mapping[str, Any], Mapping[str, str]], Moved]

SOURCES: Mapping[str, tuple[Translate, tuple[str, ...]]] = {
    "agenda": (from_agenda, ("agendaJobs",)),
    "recruiter-php": (from_recruiter_php, ("scheduled", "schedulers")),
    "apscheduler": (from_apscheduler, ("jobs",)),
    "job-scheduler-worker": (from_job_scheduler_worker, ("jobs",)),
    "virtool": (from_virtool, ("jobs",)),
}
"""How the documents of each program are read, and the collections in which they are."""
