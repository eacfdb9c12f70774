"""Schedule policies as documents: names and values go into the database, and only registered classes come out.

    {"class": "Cron", "parameters": {"expression": "0 6 * * *", "tz": "Europe/Rome"}}

The stored name is looked up here and never imported, so whoever writes to the database chooses among the
policies that the application has loaded and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from recruiter.domain.cron import Cron
from recruiter.domain.schedule import SchedulePolicy
from recruiter.domain.schedule_policies import Every, EveryMinutes
from recruiter.domain.text import said_by
from recruiter.errors import InvalidName, InvalidSchedule

BUILT_IN = (Cron, Every, EveryMinutes)

P = TypeVar("P", bound=type[SchedulePolicy])


class SchedulePolicyRegistry:
    """Which schedule policy classes may be stored and rebuilt, and under which name."""

    def __init__(self) -> None:
        self._classes: dict[str, type[SchedulePolicy]] = {cls.__name__: cls for cls in BUILT_IN}

    @overload
    def register(self, cls: P, *, name: str | None = None) -> P: ...
    @overload
    def register(self, cls: None = None, *, name: str | None = None) -> Callable[[P], P]: ...
    def register(self, cls: P | None = None, *, name: str | None = None) -> P | Callable[[P], P]:
        """Make a policy class of your own known; also a decorator, with or without `name=`."""
        if cls is None:
            return lambda decorated: self.register(decorated, name=name)
        if not (isinstance(cls, type) and issubclass(cls, SchedulePolicy)):
            raise InvalidSchedule(f"{cls!r} is not a subclass of SchedulePolicy")
        chosen = name or cls.__name__
        if self._classes.setdefault(chosen, cls) is not cls:
            raise InvalidName(f"{self._classes[chosen]!r} is called {chosen!r} already; give {cls!r} a name=")
        return cls

    def merge(self, other: SchedulePolicyRegistry) -> None:
        """Know what the other one knows."""
        for name, cls in other._classes.items():
            self.register(cls, name=name)

    def dump(self, policy: SchedulePolicy) -> dict[str, Any]:
        """The document to store."""
        return {"class": self._name_of(policy), "parameters": self._exported(policy.export())}

    def load(self, document: Mapping[str, Any]) -> SchedulePolicy:
        """The policy a document describes; InvalidSchedule if it describes none, whatever the document holds."""
        if not isinstance(document, Mapping):
            raise InvalidSchedule(f"a stored schedule policy is a document, not {said_by(document, repr)}")
        name, stored = document.get("class"), document.get("parameters")
        cls = self._classes.get(name) if isinstance(name, str) else None
        if cls is None:
            known = ", ".join(sorted(self._classes))
            told = said_by(name, repr)
            raise InvalidSchedule(f"no schedule policy {told} is registered here; known are {known}")
        return self._rebuilt(cls, self._imported({} if stored is None else stored))

    def _rebuilt(self, cls: type[SchedulePolicy], parameters: Any) -> SchedulePolicy:
        try:
            policy: object = cls.import_(parameters)
        except InvalidSchedule:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {said_by(error)}"
            raise InvalidSchedule(f"{said_by(parameters, repr)} does not make a {cls.__name__}: {told}") from error
        if not isinstance(policy, SchedulePolicy):
            raise InvalidSchedule(f"{cls.__name__}.import_() answered {said_by(policy, repr)} instead of a policy")
        return policy

    def _name_of(self, policy: SchedulePolicy) -> str:
        for name, cls in self._classes.items():
            if cls is type(policy):
                return name
        told = said_by(policy, repr)
        raise InvalidSchedule(f"{told} cannot be stored: its class is not registered (register it where tasks are)")

    def _exported(self, value: Any) -> Any:
        """Parameters may hold other policies at any depth; they become documents too."""
        if isinstance(value, SchedulePolicy):
            return self.dump(value)
        if isinstance(value, Mapping):
            return {key: self._exported(item) for key, item in value.items()}
        return [self._exported(item) for item in value] if isinstance(value, list | tuple) else value

    def _imported(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            if value.keys() == {"class", "parameters"}:
                return self.load(value)
            return {key: self._imported(item) for key, item in value.items()}
        return [self._imported(item) for item in value] if isinstance(value, list) else value
