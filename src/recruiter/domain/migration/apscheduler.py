"""APScheduler 3: `MongoDBJobStore` keeps each job as a pickle, in the collection `jobs` of the database `apscheduler`.

A pickle can call any function of any module when it is loaded. Here it cannot: every name in it, but those of dates, is
read as an inert record that keeps what it is given, and nothing is imported.

    {"func": "shop:report", "args": (), "trigger": <CronTrigger {"fields": [<BaseField {"name": "hour", …}>]}>}
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

from recruiter.domain.migration import Moved, MovedJob, MovedScheduler, NotMoved, arguments, moment, task_name
from recruiter.domain.schedule.policies import Cron, Every
from recruiter.errors import RecruiterError

COLLECTIONS = ("jobs",)

_DATES = {("datetime", each.__name__): each for each in (date, datetime, timedelta, timezone)}
_CRON_FIELDS = ("minute", "hour", "day", "month", "day_of_week")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class Record:
    """An object of a pickle: the name of its class, what it was made with, and its state. It does nothing."""

    name = ""

    made_with: tuple[Any, ...] = ()
    state: Mapping[str, Any] = MappingProxyType({})

    def __new__(cls, *args: Any, **_kwargs: Any) -> Record:
        record = object.__new__(cls)
        record.made_with = args
        return record

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        """Whatever it is given."""

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, Mapping) else {}

    def __call__(self, *args: Any) -> Record:
        """What a name of a pickle has made may be called in it; that makes one more record."""
        return Record(*args)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _DATES.get((module, name)) or type(name, (Record,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it refers to {pid!r}, which is elsewhere")


def moved(document: Mapping[str, Any], renamed: Mapping[str, str], collection: str) -> Moved:
    """What becomes of a document of the job store."""
    del collection
    id = f"apscheduler:{document['_id']}"
    try:
        state = _Reader(io.BytesIO(document["job_state"])).load()
        return _moved(id, str(document["_id"]), state, renamed)
    except RecruiterError as error:
        return NotMoved(id, str(error))
    except Exception as error:  # whatever somebody has stored there
        return NotMoved(id, f"it cannot be read: {type(error).__name__}: {error}")


def _moved(id: str, urn: str, state: Mapping[str, Any], renamed: Mapping[str, str]) -> Moved:
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
    if kind == "DateTrigger":
        return MovedJob(id, task, given, moment(values["run_date"]))
    if kind == "IntervalTrigger":
        return MovedScheduler(id, urn, task, given, Every(values["interval"]), unique, notes=_notes(values))
    if kind == "CronTrigger":
        return MovedScheduler(id, urn, task, given, _cron(values), unique, notes=_notes(values))
    return NotMoved(id, f"its trigger {kind} has no counterpart: write a schedule policy of your own")


def _has_record(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_record, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_record, value))
    return isinstance(value, Record)


def _notes(values: Mapping[str, Any]) -> tuple[str, ...]:
    lost = [name for name in ("start_date", "end_date", "jitter") if values.get(name)]
    # An interval always has the date of its start, which is when it was made.
    lost = [name for name in lost if name != "start_date" or "interval" not in values]
    return (f"its {', '.join(lost)} is not kept",) if lost else ()


def _cron(values: Mapping[str, Any]) -> Cron:
    fields = {field.state["name"]: field for field in values["fields"]}
    texts = {name: _field(field.state["expressions"]) for name, field in fields.items()}
    for name, usual in (("year", "*"), ("week", "*"), ("second", "0")):
        if texts.get(name, usual) != usual:
            raise RecruiterError(f"its cron trigger says {name}={texts[name]}, for which there is no cron expression")
    return Cron(" ".join(texts[name] for name in _CRON_FIELDS), tz=_zone(values.get("timezone")))


def _field(expressions: Iterable[Record]) -> str:
    return ",".join(_expression(each.name.rpartition(".")[2], each.state) for each in expressions)


def _expression(kind: str, state: Mapping[str, Any]) -> str:
    step = f"/{state['step']}" if state.get("step") else ""
    match kind:
        case "AllExpression":
            return f"*{step}"
        case "LastDayOfMonthExpression":
            return "L"
        case "RangeExpression":
            return _range(state, str) + step
        case "WeekdayRangeExpression":
            return _range(state, lambda number: _DAYS[number])
        case "MonthRangeExpression":
            return _range(state, lambda number: _MONTHS[number - 1])
    raise RecruiterError(f"its cron trigger has a {kind}, for which there is no cron expression")


def _range(state: Mapping[str, Any], shown: Any) -> str:
    first, last = state["first"], state.get("last")
    return shown(first) if last is None or last == first else f"{shown(first)}-{shown(last)}"


def _zone(zone: Any) -> str:
    """The name of a time zone of zoneinfo or pytz, which both are pickled with."""
    if isinstance(zone, timezone):
        if zone.utcoffset(None):
            raise RecruiterError(f"its time zone {zone} has no name")
        return "UTC"
    named = [each for each in getattr(zone, "made_with", ()) if isinstance(each, str)]
    name = named[0] if named else "UTC"
    return name if name == str(UTC) else ZoneInfo(name).key
