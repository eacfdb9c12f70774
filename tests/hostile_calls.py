"""Every public call, each with one argument that may be anything; and the strangest values to say there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from bson import ObjectId
from hypothesis import strategies as some

from recruiter import (
    Cron,
    Every,
    ExponentialBackoff,
    JobFilter,
    Recruiter,
    RecruiterError,
    RetryForever,
    RetryManyTimes,
    SelectByException,
    TimeTable,
)
from recruiter.settings import Settings

nowhere = Recruiter("127.0.0.1:1", server_timeout="1ms")


@nowhere.task(name="hostile.echo")
def echo(value: Any) -> Any:
    return value


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


class SaysNothing:
    """Asking it what it is ends in an endless recursion, an exit of the process, or a megabyte."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __repr__(self) -> str:
        if self.how == "recursion":
            return repr(self)
        if self.how == "exit":
            raise SystemExit("asked")
        return "x" * 1_000_000

    __str__ = __repr__


STRANGE = [
    *(SaysNothing("recursion"), SaysNothing("exit"), SaysNothing("a megabyte")),
    *(
        {SaysNothing("exit"): 1},
        {"a": SaysNothing("exit")},
        [SaysNothing("recursion")],
        type("Exit", (str,), {"__repr__": SaysNothing.__repr__, "how": "exit"})("a/b"),
    ),
    *("\ud800", "a/b", "", "\0", "$where", 2**63, 2**70, -(2**70), 10**5000, float("nan"), float("inf"), True, None),
    *(object(), b"\xff", _cycle(), {"a": _cycle()}, [[]], [{}], {1: 2}, {"$x": 1}, (), print, ValueError, UUID(int=0)),
]
values = some.one_of(
    some.sampled_from(STRANGE),
    some.recursive(
        some.one_of(some.none(), some.booleans(), some.integers(), some.floats(), some.text(), some.binary()),
        lambda inner: some.one_of(some.lists(inner), some.dictionaries(some.text(), inner), some.tuples(inner)),
        max_leaves=5,
    ),
    some.builds(ObjectId),
)

job = echo.job(1)
repeated = job.repeat_with_policy(Every("1 minute"))
SETTINGS = tuple(Settings.model_fields)


def _task(word: str, value: Any) -> None:
    fresh = Recruiter("127.0.0.1:1")
    if word == "rate":
        fresh.task(rate=value)
    else:
        fresh.task(**{word: value})(len)


def _every(word: str, value: Any) -> None:
    Recruiter("127.0.0.1:1").every("1 minute", **{word: value})(print)


WORDS = ("in_group", "with_priority", "with_id", "with_urn", "owned_by", "tagged_as", "limited_by", "timeout")
FILTERS = ("ids", "recovered", "why", "args", "slow", "created_since", "state", "task", "limited_by", "attempts")
CALLS: dict[str, Callable[[Any], Any]] = {
    **{word: (lambda value, word=word: getattr(job, word)(value)) for word in WORDS},  # type: ignore[misc]
    "schedule_in": job.schedule_in,
    "schedule_at": job.schedule_at,
    "retry_with_policy": job.retry_with_policy,
    "needing": lambda value: job.needing(proc=value, gpu=value),
    "argument": echo.job,
    "job": lambda value: nowhere.job(value, {}),
    "data": lambda value: nowhere.job("unknown", value),
    "data of a known task": lambda value: nowhere.job("hostile.echo", value),
    "handle": nowhere.handle,
    **{f"filter {name}": (lambda value, name=name: JobFilter(**{name: value})) for name in FILTERS},  # type: ignore[misc]
    "limit of a list": lambda value: nowhere.jobs.list(limit=value),
    "counts": nowhere.counts,
    "calls": lambda value: echo.enqueue_many(value, errors="return"),
    "a call": lambda value: echo.enqueue_many([value], errors="return"),
    "ids": lambda value: echo.enqueue_many([(1,)], ids=value, errors="return"),
    "session": lambda value: job.enqueue(session=value),
    "TimeTable": TimeTable,
    "RetryManyTimes": lambda value: RetryManyTimes(value, value),
    "RetryForever": RetryForever,
    "ExponentialBackoff": lambda value: ExponentialBackoff(value, value),
    "SelectByException": SelectByException,
    "Every": Every,
    "Cron": lambda value: Cron(value),
    "Cron's zone": lambda value: Cron("* * * * *", tz=value),
    "only": lambda value: nowhere.task(only=value),
    "tags": lambda value: nowhere.task(tags=value),
    "group of a task": lambda value: nowhere.task(group=value),
    **{
        f"task {word}": (lambda value, word=word: nowhere.task(**{word: value}))  # type: ignore[misc]
        for word in ("priority", "retry", "timeout", "needs", "max_crashes", "expires", "keep_failed", "max_running")
    },
    **{f"task {word}": (lambda value, word=word: _task(word, value)) for word in ("name", "aliases", "rate")},  # type: ignore[misc]
    **{
        word: (lambda value, word=word: getattr(job, word)(value))  # type: ignore[misc]
        for word in ("max_crashes", "expires_in", "expires_at", "keep_failed")
    },
    "every": lambda value: nowhere.every(value)(print),
    **{
        f"every {word}": (lambda value, word=word: _every(word, value))  # type: ignore[misc]
        for word in ("tz", "urn", "late", "window", "must_succeed_within")
    },
    "repeat_with_policy": job.repeat_with_policy,
    "repeat_with_policy, stored": lambda value: job.repeat_with_policy(value).create(),
    "must_succeed_within": repeated.must_succeed_within,
    "when_late": repeated.when_late,
    "window": lambda value: repeated.when_late("all", value),
    "urn of a scheduler": repeated.with_urn,
    "settings": lambda value: Settings.load(**dict.fromkeys(SETTINGS, value)),
    "server_timeout": lambda value: Recruiter("127.0.0.1:1", server_timeout=value),
    "server_timeout of a call": lambda value: job.enqueue(server_timeout=value),
    "target": lambda value: Recruiter(value).target,
    "analytics": nowhere.analytics,
    "analytics of a task": lambda value: nowhere.analytics(task=value),
    "analytics at": lambda value: nowhere.analytics(at=value),
    "analytics within": lambda value: nowhere.analytics(within=value),
    "counts within": lambda value: nowhere.counts("group", within=value),
    "set_limit": lambda value: nowhere.controls.set_limit(value, 1),
    "set_limit at_once": lambda value: nowhere.controls.set_limit("group:a", value),
    "set_limit count": lambda value: nowhere.controls.set_limit("group:a", count=value, per="1s"),
    "set_limit per": lambda value: nowhere.controls.set_limit("group:a", count=1, per=value),
    "remove_limit": nowhere.controls.remove_limit,
    "pause_group": nowhere.controls.pause_group,
    "pause_group by": lambda value: nowhere.controls.pause_group("a", by=value, reason=value),
    "resume_group": nowhere.controls.resume_group,
    "block_starts": lambda value: nowhere.controls.block_starts(by=value, reason=value),
    "drain_worker": nowhere.controls.drain_worker,
    "resume_worker": nowhere.controls.resume_worker,
    **{
        f"jobs.{verb} {word}": (lambda value, verb=verb, word=word: getattr(nowhere.jobs, verb)(**{word: value}))  # type: ignore[misc]
        for verb, word in (("list", "filter"), ("count", "ids"), ("cancel", "task"), ("remove", "everything"))
    },
    "jobs.list after": lambda value: nowhere.jobs.list(after=value),
    "jobs.count most": lambda value: nowhere.jobs.count(most=value),
    "jobs.recover schedule_at": lambda value: nowhere.jobs.recover(task="a", schedule_at=value),
    "jobs.id_of": nowhere.jobs.id_of,
    **{verb: getattr(nowhere, verb) for verb in ("find", "cancel", "recover", "remove", "explain")},
    "cancel by": lambda value: nowhere.cancel("a", by=value, reason=value),
    "recover schedule_at": lambda value: nowhere.recover("a", schedule_at=value),
    "recover session": lambda value: nowhere.recover("a", session=value),
    **{
        f"scheduler.{verb}": (lambda value, verb=verb: getattr(nowhere.scheduler(value), verb)())  # type: ignore[misc]
        for verb in ("find", "pause", "remove")
    },
    "next_runs count": lambda value: nowhere.scheduler("a").next_runs(value),
    "run_now session": lambda value: nowhere.scheduler("a").run_now(session=value),
    "create": lambda value: nowhere.create(value, {}),
    "create data": lambda value: nowhere.create("unknown", value),
    "create id": lambda value: nowhere.create("unknown", {}, id=value),
    "create session": lambda value: nowhere.create("unknown", {}, session=value),
    "create_many": lambda value: echo.create_many(value, errors="return"),
    "create_many call": lambda value: echo.create_many([value], errors="return"),
    **{
        f"enqueue_many {word}": (lambda value, word=word: echo.enqueue_many([(1,)], **{word: value}))  # type: ignore[misc]
        for word in ("errors", "group", "tags", "priority", "schedule_at", "schedule_in", "session", "server_timeout")
    },
    "run": nowhere.run,
    "run_all": nowhere.run_all,
    "watch": nowhere.watch,
    "result": lambda value: nowhere.handle("a").result(value),
}


SILENT = {
    *("schedule_in", "schedule_at", "retry_with_policy", "needing", "argument", "job", "data", "data of a known task"),
    *("handle", "TimeTable", "RetryManyTimes", "RetryForever", "ExponentialBackoff", "SelectByException", "Every"),
    *("Cron", "Cron's zone", "only", "tags", "group of a task", "max_crashes", "expires_in", "expires_at"),
    *("keep_failed", "repeat_with_policy", "must_succeed_within", "when_late", "window", "urn of a scheduler"),
    *("settings", "server_timeout", "target", *WORDS),
}
TALKING = {call for call in CALLS if call not in SILENT and not call.startswith(("filter ", "task ", "every"))}
"""These try to connect, which takes its time."""
MAX_MESSAGE_CHARACTERS = 20_000


def escaping(calls: Iterable[str]) -> list[str]:
    """The errors that are not our own. A report of pytest would ask the value what it is, so they are noted."""
    escaped = []
    for call in calls:
        for number, value in enumerate(STRANGE):
            try:
                CALLS[call](value)
            except RecruiterError as error:
                if len(str(error)) > MAX_MESSAGE_CHARACTERS:
                    escaped.append(f"{call}: a message of {len(str(error)):,} characters about value {number}")
            except BaseException as error:
                escaped.append(f"{call}: {type(error).__name__} about value {number}")
    return escaped
