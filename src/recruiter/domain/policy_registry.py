"""Policies as documents: names and numbers go into the database, and only registered classes come out.

    {"class": "RetryManyTimes", "parameters": {"n": 3, "seconds": 60}, "only": ["ConnectionError"]}

The stored name is looked up here and never imported, so whoever writes to the database chooses among the
policies that the application has loaded and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from recruiter.domain.policies import (
    DoNotDoItAgain,
    ExponentialBackoff,
    RetriableExceptionFilter,
    RetryForever,
    RetryManyTimes,
    SelectByException,
    TimeTable,
)
from recruiter.domain.retry import RetryPolicy, only_names
from recruiter.errors import InvalidJob, InvalidName, RecruiterError

BUILT_IN = (DoNotDoItAgain, ExponentialBackoff, RetryForever, RetryManyTimes, SelectByException, TimeTable)

P = TypeVar("P", bound=type[RetryPolicy])


class PolicyRegistry:
    """Which policy classes may be stored and rebuilt, and under which name."""

    def __init__(self) -> None:
        self._classes: dict[str, type[RetryPolicy]] = {cls.__name__: cls for cls in BUILT_IN}

    @overload
    def register(self, cls: P, *, name: str | None = None) -> P: ...
    @overload
    def register(self, cls: None = None, *, name: str | None = None) -> Callable[[P], P]: ...
    def register(self, cls: P | None = None, *, name: str | None = None) -> P | Callable[[P], P]:
        """Make a policy class of your own known; also a decorator, with or without `name=`."""
        if cls is None:
            return lambda decorated: self.register(decorated, name=name)
        if not (isinstance(cls, type) and issubclass(cls, RetryPolicy)):
            raise InvalidJob(f"{cls!r} is not a subclass of RetryPolicy")
        chosen = name or cls.__name__
        if self._classes.setdefault(chosen, cls) is not cls:
            raise InvalidName(f"{self._classes[chosen]!r} is called {chosen!r} already; give {cls!r} a name=")
        return cls

    def merge(self, other: PolicyRegistry) -> None:
        """Know what the other one knows."""
        for name, cls in other._classes.items():
            self.register(cls, name=name)

    def dump(self, policy: RetryPolicy, only: Iterable[type[BaseException] | str] = ()) -> dict[str, Any]:
        """The document to store. An empty `only` retries on every exception."""
        names = only_names(only)
        if names:
            policy = RetriableExceptionFilter(policy, names)
        if isinstance(policy, RetriableExceptionFilter):
            return self.dump(policy.policy) | {"only": list(policy.only)}
        return {"class": self._name_of(policy), "parameters": self._exported(policy.export())}

    def load(self, document: Mapping[str, Any]) -> RetryPolicy:
        """The policy a document describes; InvalidJob if it describes none, whatever the document holds."""
        if not isinstance(document, Mapping):
            raise InvalidJob(f"a stored retry policy is a document with 'class' and 'parameters', not {document!r}")
        policy = self._rebuilt(document)
        only = document.get("only") or ()
        return RetriableExceptionFilter(policy, only_names(only)) if only else policy

    def _rebuilt(self, document: Mapping[str, Any]) -> RetryPolicy:
        name, stored = document.get("class"), document.get("parameters")
        cls = self._classes.get(name) if isinstance(name, str) else None
        if cls is None:
            known = ", ".join(sorted(self._classes))
            raise InvalidJob(f"no retry policy {name!r} is registered here; known are {known}")
        parameters = self._imported({} if stored is None else stored)
        try:
            return cls.import_(parameters)
        except RecruiterError:
            raise
        except Exception as error:
            raise InvalidJob(f"{parameters!r} does not make a {name}: {type(error).__name__}: {error}") from error

    def _name_of(self, policy: RetryPolicy) -> str:
        for name, cls in self._classes.items():
            if cls is type(policy):
                return name
        raise InvalidJob(f"{policy!r} cannot be stored: its class is not registered (register it where tasks are)")

    def _exported(self, value: Any) -> Any:
        """Parameters may hold other policies at any depth; they become documents too."""
        if isinstance(value, RetryPolicy):
            return self.dump(value)
        if isinstance(value, Mapping):
            return {key: self._exported(item) for key, item in value.items()}
        return [self._exported(item) for item in value] if isinstance(value, list | tuple) else value

    def _imported(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            if value.keys() >= {"class", "parameters"} and value.keys() <= {"class", "parameters", "only"}:
                return self.load(value)
            return {key: self._imported(item) for key, item in value.items()}
        return [self._imported(item) for item in value] if isinstance(value, list) else value
