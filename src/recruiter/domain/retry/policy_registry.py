"""Retry policies as documents (see class_registry.py), with the exceptions they are limited to.

{"class": "RetryManyTimes", "parameters": {"n": 3, "seconds": 60}, "only": ["ConnectionError"]}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from recruiter.domain.class_registry import ClassRegistry
from recruiter.domain.retry.decision import RetryPolicy, checked_names, only_names
from recruiter.domain.retry.policies import (
    DoNotDoItAgain,
    ExponentialBackoff,
    RetriableExceptionFilter,
    RetryForever,
    RetryManyTimes,
    SelectByException,
    TimeTable,
)


class PolicyRegistry(ClassRegistry[RetryPolicy]):
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
