"""Execute: runs one job, in a child, and says what becomes of it. Whatever the user's code does is caught here."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from datetime import datetime
from types import CoroutineType
from typing import Any

from recruiter.clock import Clock
from recruiter.domain.job import Execution
from recruiter.domain.names import DEFAULT_METHOD
from recruiter.domain.policy_registry import PolicyRegistry
from recruiter.domain.retry import Archive, Decision, Failure, RetryPolicy, decide_failure, exception_names
from recruiter.domain.text import said_by
from recruiter.domain.why import Why
from recruiter.errors import RecruiterError
from recruiter.registry import Registry, TaskDefinition
from recruiter.store import moves
from recruiter.store.codec import Document, decode, id_of
from recruiter.store.moves import Ended

LONGEST_TRACE = 8_000


class Executor:
    def __init__(self, registry: Registry, policies: PolicyRegistry, clock: Clock, worker: str) -> None:
        self._registry = registry
        self._policies = policies
        self._clock = clock
        self._worker = worker
        self._asyncio: asyncio.Runner | None = None

    def run(self, raw: bytes) -> Ended:
        """Runs the job; never raises, whatever the document holds or the user's code does."""
        started_at = self._clock.now()
        try:
            document = decode(raw)
            task = self._registry.find(document["task"])
            if task is None:
                return moves.misplaced(document, started_at)
        except Exception as error:
            return moves.unreadable(id_of(raw), raw, started_at, f"cannot be read: {error}")
        try:
            return self._run(task, document, started_at)
        except Exception as error:  # of ours: a field of a kind that no job of ours has
            reason = f"cannot be run: {type(error).__name__}: {error}"
            return moves.unreadable(document["_id"], raw, self._clock.now(), reason)

    def _run(self, task: TaskDefinition, document: Document, started_at: datetime) -> Ended:
        try:
            call = task.runner(document["args"], document.get("method") or DEFAULT_METHOD)
            result = task.encode_result(self._finished(call))
        except BaseException as error:  # SystemExit and KeyboardInterrupt are the job's, not the worker's
            return self._failed(document, started_at, error)
        ended_at = self._clock.now()
        return moves.succeeded(document, Execution(started_at, ended_at, self._worker), ended_at, result)

    def close(self) -> None:
        if self._asyncio is not None:
            self._asyncio.close()

    def _finished(self, call: Callable[[], Any]) -> Any:
        result = call()
        if isinstance(result, CoroutineType):
            if self._asyncio is None:
                self._asyncio = asyncio.Runner()
            return self._asyncio.run(result)
        return result

    def _failed(self, document: Document, started_at: datetime, error: BaseException) -> Ended:
        now = self._clock.now()
        execution = Execution(
            started_at,
            now,
            self._worker,
            exception=exception_names(type(error))[0],
            message=said_by(error),
            trace=said_by(error, _trace, LONGEST_TRACE),
        )
        return moves.failed(document, execution, now, self._decide(document, now, error))

    def _decide(self, document: Document, now: datetime, error: BaseException) -> Decision:
        try:
            stored = document.get("retry_policy")
            policy: RetryPolicy | None = self._policies.load(stored) if stored is not None else None
        except RecruiterError as broken:
            return Archive(Why.POLICY_FAILED, str(broken))
        if document.get("at_most_once"):
            policy = None
        failure = Failure(
            attempt=document["attempts"] + 1,
            created_at=document["created_at"],
            scheduled_at=document["scheduled_at"],
            failed_at=now,
            exception=error,
            exception_classes=exception_names(type(error)),
        )
        return decide_failure(policy, failure)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
