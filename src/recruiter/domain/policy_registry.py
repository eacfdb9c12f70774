"""Policies as documents: a name and values are stored, and only registered classes are built from them.

    {"class": "RetryManyTimes", "parameters": {"n": 3, "seconds": 60}, "only": ["ConnectionError"]}
    {"class": "Cron", "parameters": {"expression": "0 6 * * *", "tz": "Europe/Rome"}}

The stored name is looked up here and never imported, so a document can only choose among the policies that the
application has registered. Parameters may hold other policies at any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

from cronsim import CronSim, CronSimError

from recruiter.domain.definitions import note, same_definition
from recruiter.domain.duration import LONGEST_SECONDS, DurationLike, brief, humanize
from recruiter.domain.retry.decision import RetryPolicy, StoredPolicy, checked_names, only_names
from recruiter.domain.retry.policies import (
    DoNotDoItAgain,
    ExponentialBackoff,
    RetriableExceptionFilter,
    RetryForever,
    RetryManyTimes,
    SelectByException,
    TimeTable,
)
from recruiter.domain.schedule.policies import Cron, Every, EveryMinutes
from recruiter.domain.schedule.scheduler import SchedulePolicy
from recruiter.domain.text import said_by
from recruiter.errors import InvalidDuration, InvalidName, InvalidSchedule

S = TypeVar("S", bound=StoredPolicy)
C = TypeVar("C", bound=type)

_MARKS = {"class", "parameters"}


class ClassRegistry(Generic[S]):
    """The classes of one kind that may be stored and rebuilt, by name."""

    kind: ClassVar[str]
    base: ClassVar[type[StoredPolicy]]
    built_in: ClassVar[Iterable[type]]
    marks: ClassVar[set[str]] = _MARKS
    """The keys of a document that may stand for a policy."""

    def __init__(self) -> None:
        self._classes: dict[str, type[S]] = {cls.__name__: cls for cls in self.built_in}

    @overload
    def register(self, cls: C, *, name: str | None = None) -> C: ...
    @overload
    def register(self, cls: None = None, *, name: str | None = None) -> Callable[[C], C]: ...
    def register(self, cls: C | None = None, *, name: str | None = None) -> C | Callable[[C], C]:
        """Registers a custom policy class; also a decorator, with or without `name=`."""
        if cls is None:
            return lambda decorated: self.register(decorated, name=name)
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            raise self.base.error(f"{cls!r} is not a subclass of {self.base.__name__}")
        note(cls)
        chosen = name or cls.__name__
        known = self._classes.get(chosen)
        if known is not None and not same_definition(known, cls):
            raise InvalidName(f"{known!r} is called {chosen!r} already; give {cls!r} a name=")
        self._classes[chosen] = cls  # type: ignore[assignment]
        return cls

    @property
    def own_names(self) -> set[str]:
        """The names of custom classes."""
        return self._classes.keys() - {cls.__name__ for cls in self.built_in}

    def merge(self, other: Self) -> None:
        """Registers all classes of another registry."""
        for name, cls in other._classes.items():
            self.register(cls, name=name)

    def dump(self, policy: S) -> dict[str, Any]:
        """The document to store."""
        name = self._name_of(policy)
        try:
            parameters = policy.export()
        except self.base.error:
            raise
        except (Exception, SystemExit) as error:
            raise self.base.error(f"{name}.export() raised {type(error).__name__}: {said_by(error)}") from error
        return {"class": name, "parameters": self._exported(parameters)}

    def load(self, document: Any) -> S:
        """The policy of a stored document. Raises `error` for any other value."""
        if not isinstance(document, Mapping):
            found = said_by(document, repr)
            raise self.base.error(f"a stored {self.kind} is a document with 'class' and 'parameters', not {found}")
        name, stored = document.get("class"), document.get("parameters")
        cls = self._classes.get(name) if isinstance(name, str) else None
        if cls is None:
            known = ", ".join(sorted(self._classes))
            raise self.base.error(f"no {self.kind} {said_by(name, repr)} is registered here; known: {known}")
        return self._rebuilt(cls, self._imported({} if stored is None else stored))

    def _rebuilt(self, cls: type[S], parameters: Any) -> S:
        try:
            policy: object = cls.import_(parameters)
        except self.base.error:
            raise
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {said_by(error)}"
            raise self.base.error(f"{said_by(parameters, repr)} does not make a {cls.__name__}: {reason}") from error
        if not isinstance(policy, self.base):
            raise self.base.error(f"{cls.__name__}.import_() answered {said_by(policy, repr)} instead of a {self.kind}")
        return policy  # type: ignore[return-value]

    def _name_of(self, policy: S) -> str:
        for name, cls in self._classes.items():
            if cls is type(policy):
                return name
        name = said_by(policy, repr)
        raise self.base.error(f"{name} cannot be stored: its class is not registered (register it where tasks are)")

    def _exported(self, value: Any) -> Any:
        if isinstance(value, self.base):
            return self.dump(value)  # type: ignore[arg-type]
        if isinstance(value, Mapping):
            return {key: self._exported(item) for key, item in value.items()}
        return [self._exported(item) for item in value] if isinstance(value, list | tuple) else value

    def _imported(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            if _MARKS <= value.keys() <= self.marks:
                return self.load(value)
            return {key: self._imported(item) for key, item in value.items()}
        return [self._imported(item) for item in value] if isinstance(value, list) else value


class PolicyRegistry(ClassRegistry[RetryPolicy]):
    """Retry policies, with the exceptions to which they are limited (`only`)."""

    kind = "retry policy"
    base = RetryPolicy
    built_in = (DoNotDoItAgain, ExponentialBackoff, RetryForever, RetryManyTimes, SelectByException, TimeTable)
    marks = {"class", "parameters", "only"}  # noqa: RUF012

    def dump(self, policy: RetryPolicy, only: Iterable[type[BaseException] | str] = ()) -> dict[str, Any]:
        """The document to store. An empty `only` retries on every exception."""
        names = checked_names(only)
        if names:
            policy = RetriableExceptionFilter(policy, names)
        if isinstance(policy, RetriableExceptionFilter):
            return self.dump(policy.policy) | {"only": list(policy.only)}
        return super().dump(policy)

    def load(self, document: Any) -> RetryPolicy:
        policy = super().load(document)
        only = document.get("only") or ()
        return RetriableExceptionFilter(policy, only_names(only)) if only else policy


class SchedulePolicyRegistry(ClassRegistry[SchedulePolicy]):
    """The policies of repeatable jobs."""

    kind = "schedule policy"
    base = SchedulePolicy
    built_in = (Cron, Every, EveryMinutes)


def schedule_policy(schedule: SchedulePolicy | DurationLike, tz: str = "UTC") -> SchedulePolicy:
    """A policy from a policy, a cron expression, or an interval such as "5 minutes"."""
    if isinstance(schedule, SchedulePolicy):
        return schedule
    if isinstance(schedule, str) and (schedule.startswith("@") or len(schedule.split()) >= 5):
        return Cron(schedule, tz)
    try:
        return Every(schedule)
    except InvalidDuration:
        raise InvalidSchedule(
            f"{said_by(schedule, repr)} is not a schedule; write a cron expression such as '0 6 * * *', an interval "
            "such as '5 minutes', or a policy"
        ) from None


def policy_text(stored: Mapping[str, Any] | None) -> str | None:
    """A stored policy or schedule as Python: `RetryManyTimes(3, 60) only ConnectionError`, `Every(1h)`."""
    if stored is None:
        return None
    parameters, only = stored.get("parameters"), stored.get("only")
    texts = []
    for name, value in parameters.items() if isinstance(parameters, Mapping) else ():
        in_words = name == "interval" and isinstance(value, int | float) and 0 <= value < LONGEST_SECONDS
        texts.append(humanize(timedelta(seconds=value)) if in_words else str(value))
    only_text = f" only {', '.join(map(str, only))}" if isinstance(only, list) and only else ""
    return f"{stored.get('class')}({', '.join(texts)}){only_text}"


def policy_words(stored: Mapping[str, Any] | None) -> str | None:
    """A stored policy or schedule for people: `2 more times, 2s apart`, `every minute`. An unknown one as code."""
    parameters = stored.get("parameters") if stored is not None else None
    if stored is None or not isinstance(parameters, Mapping):
        return policy_text(stored)
    words = _words(str(stored.get("class")), parameters)
    only = stored.get("only")
    told = f", only after {' or '.join(map(str, only))}" if isinstance(only, list) and only else ""
    return f"{words}{told}" if words is not None else policy_text(stored)


def _words(name: str, parameters: Mapping[str, Any]) -> str | None:
    """The words for one of our policies; None for any other."""
    n, seconds = parameters.get("n"), parameters.get("seconds")
    times = f"{n} more time{'' if n == 1 else 's'}"
    try:
        match name:
            case "DoNotDoItAgain":
                return "not again"
            case "RetryManyTimes" if isinstance(n, int):
                return f"{times}, {brief(seconds)} {'later' if n == 1 else 'apart'}"
            case "RetryForever":
                return f"again and again, {brief(seconds)} apart"
            case "ExponentialBackoff" if isinstance(n, int):
                most = f", at most {brief(parameters['most'])}" if parameters.get("most") else ""
                return f"{times}, after {brief(seconds)}, then twice as long each time{most}"
            case "Every":
                return f"every {brief(parameters['interval'])}"
            case "EveryMinutes" if isinstance(n, int):
                return "every minute" if n == 1 else f"every {n} minutes"
            case "Cron":
                told = str(CronSim(str(next(iter(parameters.values()))), datetime(2000, 1, 1)).explain())
                return told[:1].lower() + told[1:]
    except (CronSimError, KeyError, StopIteration, TypeError, ValueError, OverflowError):
        pass  # written by another program or a newer release
    return None
